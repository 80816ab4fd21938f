"""Another script engine that comes first, and a checkout that is not installed."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]

#: The smallest script engine of the public format: finds a script by tags and calls its dependencies and hooks.
OTHER_ENGINE = '''
import importlib.util, pathlib
from cmind.automation import Automation
from cmind import utils

class CAutomation(Automation):
    def run(self, i):
        """Run."""
        tags = [t for t in i["tags"].split(",") if not t.startswith("_")]
        found = self.search({"parsed_automation": [("script", "5b4e0237da074764")], "tags": ",".join(tags)})["list"]
        if not found:
            return {"return": 16, "error": "no scripts were found"}
        print("the other engine runs", found[0].path)
        meta, env = found[0].meta, i.get("env", {})
        for name in i["tags"].split(","):
            if name.startswith("_"):
                env.update(meta.get("variations", {}).get(name[1:], {}).get("env", {}))
        for dep in meta.get("deps", []):
            r = self.run({"tags": dep["tags"], "env": env})
            if r["return"]:
                return r
        r = utils.load_python_module({"path": found[0].path, "name": "customize"})
        if r["return"]:
            return r
        return r["code"].preprocess({"env": env, "state": {}, "meta": meta, "input": i, "automation": self,
                                     "artifact": found[0], "run_script_input": {"path": found[0].path}})
'''


@pytest.fixture
def other(home):
    """Register a repository with a script engine of its own, before ours; give its folder."""
    folder = home.repo.with_name("other")
    (folder / "automation" / "script").mkdir(parents=True)
    (folder / "cmr.yaml").write_text('alias: other\nuid: "00000000000000f3"\n')
    (folder / "automation" / "script" / "module.py").write_text(OTHER_ENGINE)
    (folder / "automation" / "script" / "_cm.yaml").write_text(
        yaml.safe_dump(
            {
                "alias": "script",
                "uid": "5b4e0237da074764",
                "automation_alias": "automation",
                "automation_uid": "bbeb15d8f0a944a4",
            }
        )
    )
    home.register(folder, ROOT, home.repo)
    return folder


def test_a_recipe_that_needs_the_package_tells_of_the_other_engine_and_how_to_select_ours(home, other):
    home.env.pop("PYTHONPATH")  # the other engine does not make our package importable
    home.script(
        "ours",
        {"deps": [{"tags": "get,generic-python-lib,_requirements"}]},
        customize="def preprocess(i): import cm4vllm.engine; return {'return': 0}\n",
    )
    done = home.cli("run", "script", "--tags=ours")
    assert "the other engine runs" in done.stdout
    assert done.returncode == 3
    assert "another script engine" in done.stderr
    assert str(other / "automation" / "script") in done.stderr
    assert "cm run cm4vllm:script --tags=" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_that_the_error_names_reaches_our_engine(home, other):
    home.script(
        "ours",
        customize="""
def preprocess(i):
    print("ours ran it" if getattr(i["automation"], "engine", "") == "cm4vllm" else "another ran it")
    return {"return": 0}
""",
    )
    done = home.cli("run", "cm4vllm:script", "--tags=ours")
    assert done.returncode == 0
    assert "ours ran it" in done.stdout


def test_the_first_dependency_of_every_recipe_that_needs_packages_is_the_one_with_the_guard():
    for path in sorted(ROOT.glob("script/*/_cm.yaml")):
        meta = yaml.safe_load(path.read_text())
        deps = meta.get("deps") or []
        tags = [dep["tags"] for dep in deps]
        guard = "get,generic-python-lib,_requirements"
        assert guard not in tags or tags[0] == guard, path


def test_checkout_that_is_registered_but_not_installed(home):
    home.env.pop("PYTHONPATH")
    home.script(
        "ours",
        customize="""
import subprocess, sys
def preprocess(i):
    import cm4vllm.engine
    return {"return": subprocess.run([sys.executable, "-c", "import cm4vllm.common"]).returncode}
""",
    )
    done = home.cli("run", "script", "--tags=ours")
    assert (done.returncode, done.stderr) == (0, "")

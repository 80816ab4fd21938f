import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.conftest import ROOT

from cm4vllm.common.programs.environments import make_environment, site_packages


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def preprocess(i):\n    return 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def preprocess(i):\n    return i['env']['CM_MISSING']\n", "KeyError: 'CM_MISSING'"),
        ("def preprocess(i):\n    raise SystemExit('bye')\n", "SystemExit: bye"),
    ],
)
def test_exceptions_are_told_with_file_and_line(home, code, text):
    folder = home.script("one", customize=code)
    done = home.done("run", "script", "--tags=one")
    assert done.returncode == 3
    assert text in done.stderr
    assert f"{folder / 'customize.py'}:2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", ["def preprocess(i):\n  return (", "import not_a_module_at_all\n"])
def test_a_customize_that_cannot_be_loaded(home, code):
    folder = home.script("one", customize=code)
    result = home.run("one")
    assert result["return"] == 3
    assert f"{folder / 'customize.py'}:" in result["error"]


def test_a_package_that_the_requirements_list_is_named_with_what_installs_it(home):
    folder = home.script("one", customize="import Not_A_Module.inner\n")
    (folder.parents[1] / "requirements.txt").write_text("other==1\nnot-a-module==2.0\n")
    result = home.run("one")
    assert result["return"] == 42
    assert f"-m pip install -r {folder.parents[1] / 'requirements.txt'}" in result["error"]
    assert f"{folder / 'customize.py'}:1" in result["error"]


@pytest.mark.parametrize("tags", ["run-mlperf,inference,_vllm", "detect,gpu", "generate,slurm-job"])
def test_a_plan_in_a_python_with_the_packages_of_cm_alone_names_what_installs_ours(tmp_path, tags):
    """As after `cm add repo` with a CM that was installed for another repository."""
    make_environment(tmp_path / "python")
    for name in tuple("cmind yaml _yaml requests urllib3 idna certifi charset_normalizer giturlparse".split()):
        for present in (Path(folder) / name for folder in sys.path if (Path(folder) / name).is_dir()):
            (site_packages(tmp_path / "python") / name).symlink_to(present)
            break
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "repos.json").write_text(json.dumps([str(ROOT)]))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [tmp_path / "python/bin/python", "-m", "cmind.cli", "run", "script", f"--tags={tags}", "--plan"],
        cwd=tmp_path,
        env={**kept, "CM_REPOS": str(tmp_path / "home"), "CM_CORE_SKIP_INTERNAL_REPOS": "yes"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 42, done.stdout + done.stderr
    assert f"{tmp_path}/python/bin/python -m pip install -r {ROOT}/requirements.txt" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("value", ["None", "{}", "'done'", "{'return': 'no'}"])
def test_a_result_that_is_none(home, value):
    home.script("one", customize=f"def postprocess(i): return {value}\n")
    result = home.run("one")
    assert result["return"] == 3
    assert "must return {'return': 0}" in result["error"]


def test_exception_inside_the_package_names_both_places(home):
    folder = home.script("one", customize="import json\ndef preprocess(i):\n    json.loads('{')\n")
    result = home.run("one")
    assert f"{folder / 'customize.py'}:3" in result["error"]
    assert "decoder.py" in result["error"]


def test_errors_of_the_tree_keep_their_exit_code_cause_and_remedy(home):
    home.script(
        "one",
        customize="""
from cm4vllm.common.errors import ServerDied
def preprocess(i):
    raise ServerDied("the server died", cause="out of memory", remedy="a smaller model")
""",
    )
    done = home.done("run", "script", "--tags=one")
    assert done.returncode == 33
    for text in ("the server died", "cause:  out of memory", "remedy: a smaller model"):
        assert text in done.stderr


def test_hooks_get_the_public_input(home):
    folder = home.script(
        "one",
        {"variations": {"v": {}}, "new_state_keys": ["got"]},
        customize="""
import os
def preprocess(i):
    assert i["artifact"].path == i["run_script_input"]["path"]
    assert i["artifact"].meta["alias"] == "one"
    assert i["run_script_input"]["env"] is i["env"]
    i["state"]["got"] = {"path": i["artifact"].path, "tags": i["script_tags"], "variations": i["variation_tags"],
                         "x": i["input"]["x"], "platform": i["os_info"]["platform"], "cwd": os.getcwd(),
                         "alias": i["meta"]["alias"], "keys": sorted(i)}
    return {"return": 0}
""",
    )
    got = home.run("one,_v", x="1")["new_state"]["got"]
    assert got["path"] == str(folder)
    assert (got["tags"], got["variations"], got["x"], got["platform"]) == (["one"], ["v"], "1", "linux")
    assert got["cwd"] == str(home.work)
    assert set(
        (
            "env state meta input automation artifact customize os_info recursion_spaces script_tags "
            "variation_tags run_script_input"
        ).split()
    ) <= set(got["keys"])


def test_values_that_hooks_write_become_text(home):
    home.script(
        "one", {"new_env_keys": ["CM_N"]}, customize="def preprocess(i): i['env']['CM_N'] = 3; return {'return': 0}\n"
    )
    assert home.run("one")["new_env"] == {"CM_N": "3"}


def test_extra_cache_tags_and_version_of_a_hook(home):
    home.script(
        "one",
        {"cache": True},
        customize="""
def postprocess(i): return {"return": 0, "version": "4.5", "add_extra_cache_tags": ["from-hook"]}
""",
    )
    assert home.run("one")["version"] == "4.5"
    assert home.done("find", "cache", "--tags=one,from-hook,version-4.5").stdout.strip()


REFUSING = """
from cm4vllm.common.errors import UsageError
def preprocess(i):
    raise UsageError("too slow", remedy="give --timeout=9, or --quiet; or cm run script --tags=two --timeout=9")
"""


def test_a_remedy_names_the_key_where_the_command_does_not_take_the_flag(home):
    home.script("two", {"input_mapping": {"timeout": "CM_TIMEOUT"}}, customize=REFUSING.replace("; or", "\\nor"))
    home.script("one", {"deps": [{"tags": "two"}]})
    home.script("three", {"deps": [{"tags": "two"}], "input_mapping": {"timeout": "CM_TIMEOUT"}})
    assert "give --env.CM_TIMEOUT=9, or --quiet" in home.run("one")["error"]
    assert "--tags=two --timeout=9" in home.run("one")["error"]
    for tags in ("two", "three"):
        assert "give --timeout=9, or --quiet" in home.run(tags)["error"]

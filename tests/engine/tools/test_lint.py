import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.engine.format.meta import load_script
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.tools.lint import Linter

ROOT = Path(__file__).resolve().parents[3]


def linter_of(repo: Path) -> Linter:
    repository = SimpleNamespace(path_with_prefix=str(repo), meta={"alias": "cm4vllm", "uid": ""})
    return Linter(
        Catalogue(SimpleNamespace(repos=SimpleNamespace(lst=[repository]), repos_path=os.devnull, index=None))
    )


def test_recipes_of_this_repository_are_clean():
    linter = linter_of(ROOT)
    texts = [str(finding) for script in linter.catalogue.all() for finding in linter.findings(script)]
    assert [*texts, *map(str, linter.duplicates())] == []
    assert len(linter.catalogue.all()) == len(list(ROOT.glob("script/*/_cm.yaml")))


@pytest.mark.parametrize(
    ("meta", "finding"),
    [
        ({"default-variation": "a"}, "unknown key 'default-variation'; did you mean 'default_variation'?"),
        ({"uid": "1234"}, "is not 16 hexadecimal digits"),
        ({"variations": {"a": {"alis": "b"}}}, "variation 'a': unknown key 'alis'; did you mean 'alias'?"),
        ({"versions": {"1": {"envv": {}}}}, "version '1': unknown key 'envv'; did you mean 'env'?"),
        ({"variations": {"a": {"base": ["b"]}}}, "implies 'b', which is not defined"),
        (
            {"variations": {"a": {"group": "g", "default": True}, "b": {"group": "g", "default": True}}},
            "second default",
        ),
        ({"variations": {"a": {"default": True}}}, "is a default, but has no group"),
        ({"deps": [{"tags": "nobody"}]}, "no script matches nobody"),
        ({"deps": [{"tags": "target,_x"}]}, "no script that matches target,_x has these variations; _x: known: y"),
        ({"deps": [{"tags": "target", "force-cache": True}]}, "unknown key 'force-cache'; did you mean 'force_cache'?"),
        ({"deps": [{"tags": "target", "only_if": "it rains"}]}, "unknown key 'only_if'"),
        ({"steps": [{"tags": "target"}]}, "unknown key 'steps'"),
        ({"first_inputs": ["plan", "plam"]}, "first_inputs: unknown key 'plam'; did you mean 'plan'?"),
        ({"input_mapping": {"a-b": "CM_AB"}}, "cannot be typed"),
        (
            {"deps": [{"tags": "target", "names": ["compiler"]}], "adr": {"compilr": {"tags": "_y"}}},
            "adr.compilr: nothing in what this script depends on has that name; did you mean 'compiler'?",
        ),
        ({"deps": [{"tags": "target"}], "variations": {"v": {"adr": {"dep": {"tags": "_y"}}}}}, "did you mean 'deep'?"),
        (
            {"deps": [{"tags": "target", "names": ["compiler"]}], "ad": {"deep": {"tags": "_y"}}},
            "ad.deep: nothing in this script's own dependencies has that name",
        ),
        (
            {"deps": [{"tags": "target", "names": ["compiler"]}], "adr": {"compiler": {"tagz": "_y"}}},
            "adr.compiler: unknown key 'tagz'; did you mean 'tags'?",
        ),
        ({"variations": {"a": {"group": "g"}, "b": {"group": "g"}, "a,b": {}}}, "variation 'a,b' never applies"),
        ({"variations": {"a": {}, "a,c": {}}}, "variation 'a,c' never applies: 'c' is not defined"),
        (
            {"variations": {"a": {}, "b": {"base": ["a"]}}, "invalid_variation_combinations": [["a", "b"]]},
            "variation 'b' never applies: variations _a, _b of one cannot be combined",
        ),
        (
            {"variations": {"a": {}, "b": {}}, "valid_variation_combinations": [["a"], ["b", "cc"]]},
            "valid_variation_combinations: 'cc' is not defined",
        ),
        ({"variations": {"a": {"base": ["a"]}}}, "'a' is its own base"),
        ({"variations": {"a": {"base": ["b"], "group": "g"}, "b": {"group": "g"}}}, "exclude each other"),
        ({"brings": [{"how": "install", "requirements": "list.txt"}]}, "list.txt does not exist"),
        ({"brings": [{"wat": "x"}]}, "unknown key 'wat'; did you mean 'what'?"),
        ({"new_env_keys": ["CM_ABC"], "promised_env_keys": ["CM_ABD"]}, "did you mean 'CM_ABC'?"),
        ({"script_name": "run2"}, "run2.sh does not exist"),
        ({"cache": True, "made_by": ["cm4vllm.engine.nothing"]}, "unknown module cm4vllm.engine.nothing"),
        ({"variations": {"a": {"env": ["CM_X"]}}}, "env must be a mapping"),
    ],
)
def test_findings(home, meta, finding):
    home.script("leaf")
    home.script("target", {"variations": {"y": {}}, "deps": [{"tags": "leaf", "names": ["deep"]}]})
    folder = home.script("one", meta)
    findings = linter_of(home.repo).findings(load_script(str(folder), ""))
    assert len(findings) == 1
    assert finding in str(findings[0])


def test_a_cached_script_says_which_of_our_code_makes_what_is_kept(home):
    code = "def preprocess(i):\n    from cm4vllm.common import units\n    return {'return': 0}\n"
    folder = home.script("one", {"cache": True}, customize=code)
    assert "made_by is missing" in str(linter_of(home.repo).findings(load_script(str(folder), ""))[0])
    folder = home.script("two", {"cache": True, "made_by": []}, customize=code)
    assert linter_of(home.repo).findings(load_script(str(folder), "")) == []


def test_a_finding_has_its_line(home):
    folder = home.script("one")
    (folder / "_cm.yaml").write_text((folder / "_cm.yaml").read_text() + "variations:\n  a:\n    alis: b\n")
    line = len((folder / "_cm.yaml").read_text().splitlines())
    assert str(linter_of(home.repo).findings(load_script(str(folder), ""))[0]).startswith(f"{folder}/_cm.yaml:{line}: ")


def test_names_below_code_that_runs_scripts_are_not_called_dead(home):
    home.script("target", customize="def preprocess(i): return i['automation'].run({'tags': 'x'})\n")
    folder = home.script("one", {"deps": [{"tags": "target"}], "adr": {"anything": {"tags": "_y"}}})
    assert linter_of(home.repo).findings(load_script(str(folder), "")) == []


def test_lint_on_the_command_line(home):
    for name in ("detect,os", "detect,cpu"):
        home.script(name)
    clean = home.done("lint", "script", "--tags=detect,os")
    assert clean.returncode == 0
    assert clean.stdout.splitlines()[-1] == "1 scripts, all clean"
    first = home.script("one")
    second = home.script("two", {"alis": "x"}, customize="def preprocess(i)\n")
    (second / "_cm.yaml").write_text((second / "_cm.yaml").read_text().replace("4a", "3a"))
    broken = home.script("three")
    (broken / "_cm.yaml").write_text("tags: [a\n")
    done = home.done("lint", "script")
    assert done.returncode == 3
    for text in (
        f"{second}/_cm.yaml",
        "did you mean 'alias'?",
        f"is that of {first}, which hides this script",
        f"{second}/customize.py:1: it is not Python",
        f"{broken}: ",
        "is not YAML",
    ):
        assert text in done.stdout, text
    assert "Traceback" not in done.stderr
    assert home.done("lint", "script", "two").returncode == 16
    for words in (["detect-*"], ["detect-os"], ["detect,os"], ["detect os"], ["synthetic:detect-cpu"]):
        assert home.done("lint", "script", *words).returncode == 0, words

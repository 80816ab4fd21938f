from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.engine.catalogue import Catalogue
from cm4vllm.engine.lint import lint
from cm4vllm.engine.meta import load_script

ROOT = Path(__file__).resolve().parents[2]


def catalogue_of(repo: Path) -> Catalogue:
    one = SimpleNamespace(path_with_prefix=str(repo), meta={"alias": "cm4vllm", "uid": ""})
    return Catalogue(SimpleNamespace(repos=SimpleNamespace(lst=[one]), index=None))


def test_recipes_of_this_repository_are_clean():
    catalogue = catalogue_of(ROOT)
    found = {script.alias: findings for script in catalogue.all() if (findings := lint(script, catalogue))}
    assert found == {}


def test_every_recipe_is_readable_and_has_a_uid_of_its_own():
    folders = [path.parent for path in ROOT.glob("script/*/_cm.yaml")]
    uids = [load_script(folder, "").uid for folder in folders]
    assert len(set(uids)) == len(uids)


@pytest.mark.parametrize(("meta", "finding"), [
    ({"default-variation": "a"}, "unknown key 'default-variation'; did you mean 'default_variation'?"),
    ({"uid": "1234"}, "is not 16 hexadecimal digits"),
    ({"variations": {"a": {"alis": "b"}}}, "variation 'a': unknown key 'alis'; did you mean 'alias'?"),
    ({"variations": {"a": {"base": ["b"]}}}, "implies 'b', which is not defined"),
    ({"deps": [{"tags": "nobody"}]}, "no script answers to nobody"),
    ({"deps": [{"tags": "target,_x"}]}, "no script that answers to target,_x has these variations"),
    ({"deps": [{"tags": "target", "force-cache": True}]}, "unknown key 'force-cache'; did you mean 'force_cache'?"),
    ({"input_mapping": {"a-b": "CM_AB"}}, "cannot be typed"),
])
def test_findings(home, meta, finding):
    home.script("target", {"variations": {"y": {}}})
    folder = home.script("one", meta)
    findings = lint(load_script(folder, ""), catalogue_of(home.repo))
    assert len(findings) == 1
    assert finding in findings[0]

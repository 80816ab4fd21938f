import json

import pytest
from cmind.core import CM

from cm4vllm.engine.tools.add import TEMPLATES


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_new_script_lints_clean_and_runs(home, kind):
    done = home.done("add", "script", "synthetic:my-recipe.2", "--tags=my,recipe", f"--template={kind}")
    assert done.returncode == 0, done.stderr
    folder = home.repo / "script" / "my-recipe.2"
    assert str(folder / "_cm.yaml") in done.stdout
    assert home.done("lint", "script", "my-recipe.2").stdout.splitlines()[-1] == "1 scripts, all clean"
    assert home.run("my,recipe", text="a b")["new_env"] == {"CM_MY_RECIPE_2_RESULT": "a b"}
    assert home.run("my,recipe", txt="a b")["return"] == 20
    assert home.done("test", "script", "my-recipe.2").returncode == 0
    typed = next(line for line in done.stdout.splitlines() if line.startswith("cm run"))
    assert home.done(*typed.split()[1:]).returncode == 0
    assert "my-recipe.2" in home.done("find", "script", "--tags=my,recipe").stdout


def test_where_a_new_script_goes(home):
    assert home.cli("add", "script", "here", cwd=home.repo).returncode == 0
    assert (home.repo / "script" / "here" / "README.md").is_file()
    assert home.done("add", "script", "else-where").returncode == 0
    assert (home.path / "repos" / "local" / "script" / "else-where" / "_cm.yaml").is_file()
    assert home.run("else,where")["return"] == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 20, "needs a name"),
        (["Bad Name"], 20, "cannot be the name of a script"),
        (["nowhere:x"], 16, "no repository 'nowhere'"),
        (["x", "--template=pyton"], 20, "did you mean 'python'?"),
        (["x", "--tags=_a"], 20, "cannot be a tag"),
        (["one"], 20, "a script 'one' exists already"),
        (["x", "--tags=one"], 20, "already matches one"),
    ],
)
def test_what_cannot_be_added_is_told(home, words, code, text):
    home.script("one")
    done = home.done("add", "script", *words)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


# --- `cm find script` finds what cmind's own search finds


def listed(home, tags="", *, artifact="", by_cmind=False):
    """Return the names of the folders found."""
    asked = {"action": "search", "automation": "script,5b4e0237da074764", "tags": tags, "artifact": artifact}
    result = CM(str(home.path)).access({**asked, "common": True} if by_cmind else asked)
    assert result["return"] == 0
    return [artifact.path.rpartition("/")[2] for artifact in result["list"]]


def test_tags_find_what_cminds_own_search_finds(home):
    for tags in ("shape,round,red", "shape,round,blue", "shape,edged,blue"):
        home.script(tags)
    for words in ("shape", "shape,round", "shape,-blue", "edged,blue"):
        assert listed(home, words) == listed(home, words, by_cmind=True) != []


def test_a_script_that_the_index_does_not_know_yet_is_found(home):
    home.script("old,one")
    assert listed(home, "old") == ["old-one"]
    home.script("new,one")
    assert listed(home, "new") == ["new-one"]


def test_a_tag_that_a_script_lost_does_not_find_it(home):
    home.script("shape,round")
    listed(home, "round")
    home.script("shape,round", {"tags": ["shape"]})
    assert listed(home, "round") == []


def test_names_find_as_cmind_does(home):
    home.script("shape,round")
    assert listed(home, artifact="shape-r*") == ["shape-round"]


def test_the_index_is_left_without_the_spaces_that_cmind_writes(home):
    home.script("one,two")
    index = home.path / "index.json"
    assert home.done("version").returncode == 0
    written = index.read_text()
    assert written.startswith("{\n")
    assert home.done("find", "script", "--tags=one").returncode == 0
    assert json.loads(index.read_text()) == json.loads(written)
    assert " " not in index.read_text()

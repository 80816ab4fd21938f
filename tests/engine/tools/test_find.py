"""`cm find script` finds what cmind's own search finds."""

import json

from cmind.core import CM


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
    assert home.cli("version").returncode == 0
    written = index.read_text()
    assert written.startswith("{\n")
    assert home.cli("find", "script", "--tags=one").returncode == 0
    assert json.loads(index.read_text()) == json.loads(written)
    assert " " not in index.read_text()

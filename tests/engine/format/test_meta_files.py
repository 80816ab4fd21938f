"""Parts of a meta that a data file states: names, the default one, and a variation of each entry."""

import os

import pytest

from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format.meta_files import data_unchanged, read_meta

ENTRIES = "- {name: v1, variation: _r1}\n- {name: v2, variation: _r2, default: true}\n"
META = """\
data: {rounds: FILE}
inputs:
  round: {key: CM_ROUND, values: [any, {names_of: rounds}], default: {default_of: rounds}}
variations:
  <variation>: {each_of: rounds, group: round, default: true, env: {CM_ROUND: <name>}}
  fast: {env: {CM_FAST: "yes"}}
"""


def meta(folder, entries=ENTRIES, text=META):
    (folder / "recipe").mkdir(exist_ok=True)
    (folder / "rounds.yaml").write_text(entries)
    (folder / "recipe/_cm.yaml").write_text(text.replace("FILE", str(folder / "rounds.yaml")))
    return read_meta(str(folder / "recipe"))


def test_the_entries_of_a_data_file_stand_in_a_meta(tmp_path):
    read = meta(tmp_path)
    assert read["inputs"]["round"] == {"key": "CM_ROUND", "values": ["any", "v1", "v2"], "default": "v2"}
    assert read["variations"] == {
        "r1": {"group": "round", "env": {"CM_ROUND": "v1"}},
        "r2": {"group": "round", "default": True, "env": {"CM_ROUND": "v2"}},
        "fast": {"env": {"CM_FAST": "yes"}},
    }


def test_a_changed_data_file_is_noticed(tmp_path):
    read = meta(tmp_path)
    assert data_unchanged(read)
    os.utime(tmp_path / "rounds.yaml", (1, 1))
    assert not data_unchanged(read)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ("- {title: v1}\n", META),
        ("- {name: v1, variation: _r1}\n", META),
        ("v1\n", META),
        (ENTRIES, META.replace("names_of: rounds", "names_of: others")),
        (ENTRIES, META.replace("{rounds: FILE}", "[rounds]")),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path, entries, text):
    with pytest.raises(RecipeError, match="do not fit together"):
        meta(tmp_path, entries, text)

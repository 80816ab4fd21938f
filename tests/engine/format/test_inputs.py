"""An input is described once; other scripts refer to it, and --help shows it with its values."""

import pytest

from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format.meta import load_script
from cm4vllm.engine.tools.help import describe
from cm4vllm.engine.tools.input_lists import input_lists
from cm4vllm.engine.tools.lint import own_findings

DEFINED = {
    "inputs": {
        "size": {"key": "CM_SIZE", "type": "integer", "help": "how many", "default": "1"},
        "kind": {"key": "CM_KIND", "values": ["a", "b"], "help": "which", "example": "a", "also": ["sort_of"]},
    }
}


@pytest.fixture
def metas(home):
    """Write two scripts, of which the second refers to the first; give the function that loads one."""
    home.script("defines", DEFINED, run='echo "$CM_SIZE $CM_KIND" > seen\n')
    home.script(
        "refers",
        {"inputs_of": {"defines": ["size", "sort_of"]}, "input_changes": {"size": {"default": "9", "several": True}}},
        run='echo "$CM_SIZE $CM_KIND" > seen\n',
    )
    return lambda name: load_script(str(home.repo / "script" / name), "synthetic")


def test_a_referred_input_is_that_of_the_script_that_defines_it(metas):
    script = metas("refers")
    assert script.input_mapping == {"size": "CM_SIZE", "sort_of": "CM_KIND"}
    assert script.input_description["size"]["desc"] == "how many"
    assert script.input_description["size"]["default"] == "9"
    assert script.input_description["size"]["several"] is True
    assert script.input_description["size"]["of"] == "defines"
    assert metas("defines").input_mapping == {"size": "CM_SIZE", "kind": "CM_KIND", "sort_of": "CM_KIND"}


def test_a_group_of_inputs_is_taken_as_a_whole(home):
    home.script("defines", {**DEFINED, "input_groups": {"some": ["size", "sort_of"]}})
    for named in ("some", ["some"], ["kind", "some"]):
        folder = home.script("refers", {"inputs_of": {"defines": named}})
        more = {"kind": "CM_KIND"} if "kind" in named else {}
        assert load_script(str(folder), "").input_mapping == {"size": "CM_SIZE", "sort_of": "CM_KIND", **more}


def test_inputs_of_many_are_listed_by_their_groups_and_those_that_come_first_before_them(home):
    groups = {"size": "server", "kind": "paths", "word": "of their own"}
    inputs = {flag: {"key": f"CM_{flag}", "group": group, "help": "h"} for flag, group in groups.items()}
    inputs |= {f"n{number}": {"key": f"CM_{number}", "help": "h"} for number in range(13)}
    meta = {"inputs": inputs, "first_inputs": ["word", "plan", "size"]}
    lists = input_lists(load_script(str(home.script("many", meta)), ""))
    assert {title: [flag for flag, _ in rows] for title, rows in lists.items()} == {
        "to begin with": ["--word", "--plan", "--size"],
        "paths": ["--kind"],
        "others": sorted(f"--n{number}" for number in range(13)),
    }
    assert dict(lists["to begin with"])["--plan"].endswith("nothing is run")
    few = {**meta, "inputs": {flag: inputs[flag] for flag in (*groups, "n1")}}
    assert input_lists(load_script(str(home.script("few", few)), "")).keys() == {""}


def test_inputs_of_the_public_form_are_one_list_unless_they_name_groups(home):
    flags = [f"flag_{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    public = {"input_mapping": {flag: flag.upper() for flag in flags}, "input_description": {"flag_a": "a text"}}
    script = load_script(str(home.script("public", public)), "")
    assert [flag for flag, _ in input_lists(script)[""]] == [f"--{flag}" for flag in flags]
    assert "\n  inputs\n    --flag_a  a text\n    --flag_b  sets FLAG_B\n" in describe(script)
    assert not any("group" in str(finding) for finding in own_findings(script))
    public["input_description"]["flag_z"] = {"desc": "z", "group": "Tuning"}
    lists = input_lists(load_script(str(home.script("public", public)), ""))
    assert [*lists] == ["Tuning", "others"] and lists["Tuning"] == [("--flag_z", "z")]


@pytest.mark.parametrize("tags", ["defines", "refers"])
def test_flags_of_both_forms_reach_the_script(home, metas, tags):
    assert home.run(tags, size="5", sort_of="b")["return"] == 0
    assert (home.work / "seen").read_text() == "5 b\n"


def test_the_public_form_counts_beside_it(home):
    public = {"input_mapping": {"old": "CM_OLD"}, "input_description": {"old": "a text"}}
    folder = home.script("both", {**DEFINED, **public})
    script = load_script(str(folder), "")
    assert script.input_mapping.keys() == {"old", "size", "kind", "sort_of"}
    assert script.input_description["old"] == "a text"


VARIED = {
    "variations": {
        "a": {"group": "kinds", "default": True, "env": {"CM_KIND": "a"}},
        "b.#": {"group": "kinds", "env": {"CM_KIND": "b of #"}},
        "other": {"env": {"CM_KIND": "other"}},
    }
}


def test_variations_of_a_group_are_shared_without_their_default(home):
    home.script("varied", VARIED)
    own = {"variations": {"c": {"group": "kinds", "env": {"CM_KIND": "c"}}}}
    home.script(
        "shares", {"variations_of": {"varied": ["kinds"]}, "new_env_keys": ["CM_KIND"], **own}, customize="# no code\n"
    )
    assert list(load_script(str(home.repo / "script" / "shares"), "").variations) == ["a", "b.#", "c"]
    for tags, expected in (
        ("", {}),
        (",_a", {"CM_KIND": "a"}),
        (",_b.9", {"CM_KIND": "b of 9"}),
        (",_c", {"CM_KIND": "c"}),
    ):
        assert home.run(f"shares{tags}")["new_env"] == expected
    assert home.run("shares,_a,_c")["return"] != 0


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"variations_of": {"nobody": ["kinds"]}}, "which is not a recipe of the same repository"),
        ({"variations_of": {"varied": ["kins"]}}, "did you mean 'kinds'?"),
        ({"inputs_of": {"nobody": ["size"]}}, "which is not a recipe of the same repository"),
        ({"inputs_of": {"defines": ["sise"]}}, "did you mean 'size'?"),
        ({"inputs_of": {"grouped": "sone"}}, "did you mean 'some'?"),
        ({"inputs_of": {"grouped": "some"}}, "names 'missing' of grouped"),
        ({"input_changes": {"size": {"default": "1"}}, "inputs": {}}, "which is no input of this script"),
    ],
)
def test_a_reference_to_nothing_is_an_error_of_the_recipe(home, metas, meta, text):
    home.script("varied", VARIED)
    home.script("grouped", {"input_groups": {"some": ["missing"]}})
    folder = home.script("wrong", meta)
    with pytest.raises(RecipeError) as caught:
        load_script(str(folder), "")
    assert text in str(caught.value)
    result = home.run("wrong")
    assert (result["return"], text in result["error"]) == (3, True)


def test_an_entry_of_the_cache_does_not_depend_on_how_an_input_is_described(home):
    home.script("one", {"cache": True, "input_mapping": {"size": "CM_SIZE"}}, run="echo run >> ../runs\n")
    home.run("one", size="3")
    home.script("other", {"inputs": {"size": {"key": "CM_SIZE", "help": "how many"}}})
    meta = {"uid": "000000000000001a", "cache": True, "inputs_of": {"other": ["size"]}}
    home.script("one", meta, run="echo run >> ../runs\n")
    home.run("one", size="3")
    assert len(home.entries()) == 1


def test_help_shows_type_values_default_and_example(metas):
    page = [" ".join(line.split()) for line in describe(metas("defines"), {"size": ["1", "2"]}).splitlines()]
    assert "--size=N how many (one of 1, 2; default: 1)" in page
    assert "--kind which (one of a, b; for example a)" in page
    assert "--sort_of the same as --kind" in page
    page = [" ".join(line.split()) for line in describe(metas("refers")).splitlines()]
    assert "--size=N how many (several are separated by commas; default: 9)" in page
    assert "--sort_of which (one of a, b; for example a)" in page


def test_help_asks_the_script_that_defines_an_input_for_its_values(home, metas, capsys):
    home.script(
        "defines",
        {**DEFINED, "variations": {"big": {"env": {"CM_BIG": "yes"}}}},
        customize="""
def values(i):
    return {"return": 0, "values": {"size": [8, 16] if i["env"].get("CM_BIG") else [1]}}
""",
    )
    for words, text in (
        (("show", "script", "refers"), "only 1"),
        (("show", "script", "--tags=defines,_big"), "one of 8, 16"),
    ):
        assert home.act(*words)["return"] == 0
        assert text in capsys.readouterr().out

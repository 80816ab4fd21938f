import pytest

from cm4vllm.engine.run.environment import substitute_all


def last(home, **given):
    return home.run("one", **given)["new_env"]["CM_X"]


META = {"new_env_keys": ["CM_*"], "input_mapping": {"x": "CM_X"}}


@pytest.mark.parametrize(
    ("meta", "given", "value"),
    [
        ({}, {"env": {"CM_X": "caller"}}, "caller"),
        ({"default_env": {"CM_X": "default"}}, {}, "default"),
        ({"default_env": {"CM_X": "default"}}, {"env": {"CM_X": "caller"}}, "caller"),
        ({"default_env": {"CM_X": "default"}, "env": {"CM_X": "meta"}}, {}, "meta"),
        ({"env": {"CM_X": "meta"}}, {"env": {"CM_X": "typed"}}, "typed"),
        ({"env": {"CM_X": "meta"}}, {"x": "flag"}, "flag"),
        ({"variations": {"v": {"env": {"CM_X": "variation"}}}}, {"tags": "_v", "env": {"CM_X": "typed"}}, "variation"),
        ({"variations": {"v": {"env": {"CM_X": "variation"}}}}, {"tags": "_v", "x": "flag"}, "flag"),
        ({"variations": {"v": {"default_env": {"CM_X": "variation"}}}}, {"tags": "_v", "env": {"CM_X": "t"}}, "t"),
        (
            {"variations": {"v": {"default_env": {"CM_X": "variation"}}}, "default_env": {"CM_X": "meta"}},
            {"tags": "_v"},
            "meta",
        ),
        (
            {"variations": {"v": {"env": {"CM_X": "variation"}}}, "versions": {"1": {"env": {"CM_X": "version"}}}},
            {"tags": "_v", "version": "1"},
            "version",
        ),
        ({"versions": {"1": {"env": {"CM_X": "version"}}}, "default_version": "1"}, {}, "version"),
        ({"versions": {"1": {"env": {"CM_X": "version"}}}}, {"version": "1", "x": "flag"}, "flag"),
        ({"variations": {"v": {"env": {"CM_X": "variation"}}}}, {"tags": "_v", "const": {"CM_X": "const"}}, "const"),
        ({"const": {"CM_X": "meta const"}}, {"const": {"CM_X": "const"}, "x": "flag"}, "meta const"),
        (
            {"variations": {"v": {"const": {"CM_X": "variation const"}}}, "const": {"CM_X": "c"}},
            {"tags": "_v"},
            "variation const",
        ),
    ],
)
def test_precedence(home, meta, given, value):
    home.script("one", {**META, **meta})
    tags = given.pop("tags", "")
    assert home.run(f"one,{tags}", **given)["new_env"]["CM_X"] == value


def test_caller_environment_gives_way_to_meta_but_the_typed_one_does_not(home):
    home.script("one", {**META, "env": {"CM_X": "meta"}})
    home.script("outer", {"deps": [{"tags": "one"}], "new_env_keys": ["CM_X"], "default_env": {"CM_X": "outer"}})
    assert home.run("outer")["new_env"]["CM_X"] == "meta"


@pytest.mark.parametrize(("strict", "value"), [(False, "flag"), (True, "dep")])
def test_flags_hold_against_exports_in_public_scripts_and_not_in_strict_ones(home, strict, value):
    home.script(
        "dep",
        {"new_env_keys": ["CM_X"], "strict_input": strict},
        customize="def preprocess(i): i['env']['CM_X'] = 'dep'; return {'return': 0}\n",
    )
    home.script("one", {**META, "strict_input": strict, "deps": [{"tags": "dep"}]})
    assert last(home, x="flag") == value


def test_values_are_text(home):
    home.script(
        "one",
        {
            "new_env_keys": ["CM_*", "+PATH"],
            "env": {"CM_INT": 3, "CM_FLOAT": 0.5, "CM_YES": True, "CM_NO": False, "CM_NONE": None, "+PATH": ["/a"]},
        },
    )
    assert home.run("one")["new_env"] == {
        "CM_INT": "3",
        "CM_FLOAT": "0.5",
        "CM_YES": "yes",
        "CM_NO": "no",
        "CM_NONE": "",
        "+PATH": ["/a"],
    }


def test_flag_forms_of_the_command_line(home):
    home.script(
        "one", {"new_env_keys": ["CM_*"], "input_mapping": {"list_of": "CM_LIST", "on": "CM_ON", "off": "CM_OFF"}}
    )
    done = home.done("run", "script", "--tags=one", "--list-of,=a,b", "--on", "--off-", "--print_env")
    assert done.returncode == 0
    for line in ("CM_LIST=a,b", "CM_ON=yes", "CM_OFF=no"):
        assert line in done.stdout


def test_lists_of_plus_keys_are_appended(home):
    home.script("dep", {"env": {"+PATH": ["/b", "/a"]}, "new_env_keys": ["+PATH"]})
    home.script("one", {"env": {"+PATH": ["/a"]}, "deps": [{"tags": "dep"}], "new_env_keys": ["+PATH"]})
    assert home.run("one")["new_env"]["+PATH"] == ["/a", "/b"]


def test_placeholder_cycles_end():
    env = {"A": "<<<B>>>", "B": "<<<A>>>", "C": "<<<C>>>"}
    substitute_all(env)
    assert env["C"] == "<<<C>>>"


def test_unresolved_values_are_withheld_from_dependencies(home):
    home.script("dep", {"default_env": {"CM_X": "dep"}, "new_env_keys": ["CM_X"]})
    home.script(
        "one", {"default_env": {"CM_X": "<<<CM_NOWHERE>>>"}, "deps": [{"tags": "dep"}], "new_env_keys": ["CM_X"]}
    )
    assert last(home) == "dep"


def test_a_note_says_when_a_variation_overrides_what_was_typed(home):
    home.script("one", {**META, "variations": {"v": {"env": {"CM_X": "variation"}}}})
    done = home.done("run", "script", "--tags=one,_v", "--env.CM_X=typed")
    assert "--const.CM_X=typed" in done.stdout


def test_update_meta_if_env(home):
    home.script(
        "one",
        {
            **META,
            "default_env": {"CM_X": "plain"},
            "update_meta_if_env": [{"enable_if_env": {"CM_ON": ["yes"]}, "env": {"CM_X": "updated"}}],
        },
    )
    assert last(home) == "plain"
    assert last(home, env={"CM_ON": "yes"}) == "updated"

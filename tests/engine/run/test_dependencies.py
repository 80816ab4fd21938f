import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.engine.format.dependency import Conditions

SHOW = {"new_env_keys": ["CM_SEEN"], "variations": {"a": {}, "b": {}, "c": {}, "v.#": {}, "-odd": {}}}
SEE = """
def preprocess(i):
    i["env"]["CM_SEEN"] = i["env"].get("CM_PART", "") + ",".join(i["variation_tags"])
    return {"return": 0}
"""


@pytest.fixture
def seen(home):
    """Return a function that runs a script with one dependency, and returns the variations that it got."""
    home.script("dep", SHOW, customize=SEE)

    def run(dependency, *, meta=None, tags="", **given):
        home.script("one", {"deps": [{"tags": "dep", **dependency}], "new_env_keys": ["CM_SEEN"], **(meta or {})})
        result = home.run(f"one,{tags}", **given)
        assert result["return"] == 0, result["error"]
        return result["new_env"].get("CM_SEEN")

    return run


@pytest.mark.parametrize(
    ("conditions", "env", "holds"),
    [
        ({"enable_if_env": {"X": ["yes"]}}, {"X": "foo"}, True),
        ({"enable_if_env": {"X": ["yes"]}}, {"X": "no"}, False),
        ({"enable_if_env": {"X": ["yes"]}}, {}, False),
        ({"enable_if_env": {"X": ["no"]}}, {}, True),
        ({"enable_if_env": {"X": ["no"]}}, {"X": "off"}, True),
        ({"enable_if_env": {"X": ["Offline"]}}, {"X": "offline"}, True),
        ({"enable_if_env": {"X": ["a"], "Y": ["b"]}}, {"X": "a"}, False),
        ({"enable_if_env": {"X": [True]}}, {"X": "1"}, True),
        ({"skip_if_env": {"X": ["a"], "Y": ["b"]}}, {"X": "a"}, True),
        ({"skip_if_env": {"X": ["a"], "Y": ["b"]}}, {"X": "a", "Y": "b"}, False),
        ({"skip_if_any_env": {"X": ["a"], "Y": ["b"]}}, {"X": "a"}, False),
        ({"skip_if_any_env": {"X": ["no"]}}, {}, True),
        ({"enable_if_any_env": {"X": ["a"], "Y": ["b"]}}, {"Y": "b"}, True),
        ({"enable_if_any_env": {"X": ["no"]}}, {}, False),
    ],
)
def test_conditions(conditions, env, holds):
    assert Conditions.of(conditions).hold(env) is holds


def test_environment_of_a_dependency_is_filled_from_its_parent(seen):
    assert seen({"env": {"CM_PART": "<<<CM_WHO>>>:"}}, env={"CM_WHO": "me"}) == "me:"


def test_tags_from_the_environment(seen):
    assert seen({"update_tags_from_env": ["CM_MORE"]}, env={"CM_MORE": "_a,_b"}) == "a,b"
    assert seen({"update_tags_from_env": ["CM_MORE"]}) == ""
    assert seen({"update_tags_from_env_with_prefix": {"_v.": ["CM_V"]}}, env={"CM_V": "1.2"}) == "v.1.2"
    assert (
        seen({"update_tags_from_env_with_prefix": {"_v.": ["CM_V"]}, "env": {"CM_V": "own"}}, env={"CM_V": "1.2"})
        == "v.own"
    )


def test_ad_is_for_this_script_alone_and_names_must_be_known(home):
    home.script("dep", SHOW, customize=SEE)
    home.script("one", {"deps": [{"tags": "dep", "names": ["d"]}], "new_env_keys": ["CM_SEEN"]})
    assert home.run("one", ad={"d": {"tags": "_b"}})["new_env"]["CM_SEEN"] == "b"
    result = home.run("one", ad={"e": {"tags": "_b"}})
    assert result["return"] == 20
    assert "'e'" in result["error"]


def test_variation_changes_dependencies(seen):
    meta = {
        "variations": {
            "v": {"adr": {"d": {"tags": "_a", "env": {"CM_PART": "adr:"}}}},
            "w": {"adr": {"d": {"tags": "_b", "enable_if_env": {"CM_ON": ["yes"]}}}},
        }
    }
    assert seen({"names": ["d"]}, meta=meta, tags="_v") == "adr:a"
    assert seen({"names": ["d"]}, meta=meta, tags="_w") == ""
    assert seen({"names": ["d"]}, meta=meta, tags="_w", env={"CM_ON": "1"}) == "b"


def test_dependency_of_a_variation_replaces_that_of_the_same_names(home):
    home.script("dep", SHOW, customize=SEE)
    home.script(
        "one",
        {
            "deps": [
                {"tags": "dep,_a", "names": ["d"], "enable_if_env": {"CM_ON": ["yes"]}},
                {"tags": "dep,_b", "names": ["d"], "skip_if_env": {"CM_ON": ["yes"]}},
            ],
            "variations": {"v": {"deps": [{"tags": "dep,_c", "names": ["d"]}]}},
        },
    )
    assert home.run("one")["deps"] == ["dep,_b"]
    assert home.run("one", env={"CM_ON": "yes"})["deps"] == ["dep,_a"]
    assert home.run("one,_v")["deps"] == ["dep,_c"]


def test_versions_of_a_dependency_are_its_own(home):
    home.script(
        "dep",
        {"new_env_keys": ["CM_SEEN"]},
        customize="""
def preprocess(i):
    i["env"]["CM_SEEN"] = i["env"].get("CM_VERSION", "none") + i["env"].get("CM_TMP_PIP_VERSION_STRING", "")
    return {"return": 0}
""",
    )
    home.script("plain", {"deps": [{"tags": "dep"}], "new_env_keys": ["CM_SEEN"]})
    home.script("fixed", {"deps": [{"tags": "dep", "version": "1.2"}], "new_env_keys": ["CM_SEEN"]})
    home.script("reused", {"deps": [{"tags": "dep", "reuse_version": True}], "new_env_keys": ["CM_SEEN"]})
    home.script(
        "limits", {"deps": [{"tags": "dep", "version_min": "1", "version_max": "2"}], "new_env_keys": ["CM_SEEN"]}
    )
    assert home.run("plain", version="3")["new_env"]["CM_SEEN"] == "none"
    assert home.run("fixed", version="3")["new_env"]["CM_SEEN"] == "1.2==1.2"
    assert home.run("reused", version="3")["new_env"]["CM_SEEN"] == "3==3"
    assert home.run("limits")["new_env"]["CM_SEEN"] == "none>=1,<=2"


def test_dependency_can_force_a_key_to_come_back(home):
    home.script("dep", {"env": {"CM_X": "x"}})
    home.script("one", {"deps": [{"tags": "dep", "force_new_env_keys": ["CM_X"]}], "new_env_keys": ["CM_X"]})
    assert home.run("one")["new_env"] == {"CM_X": "x"}


def test_dependency_hands_flags_to_its_script(home):
    home.script("dep", {"input_mapping": {"who": "CM_WHO"}, "strict_input": True, "new_env_keys": ["CM_WHO"]})
    home.script(
        "one",
        {
            "deps": [{"tags": "dep", "who": "<<<CM_NAME_OF>>>"}],
            "new_env_keys": ["CM_WHO"],
            "default_env": {"CM_NAME_OF": "bob"},
        },
    )
    assert home.run("one")["new_env"]["CM_WHO"] == "bob"


def test_fake_deps_records_tags_only(home):
    home.script("dep", run="touch ran")
    home.script("one", {"deps": [{"tags": "dep"}]})
    assert home.run("one", fake_deps=True)["deps"] == ["dep"]
    assert not (home.work / "ran").exists()


def test_imports_of_the_engine_stay_light():
    code = (
        "import sys; import cm4vllm.engine.run.execution; "
        "print([m for m in ('yaml', 'msgspec', 'rich', 'numpy', 'subprocess') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")},
    )
    assert done.stdout.strip() == "[]"


# --- required inputs: all that are missing are named at once, before anything runs


INPUTS = {
    "inputs": {
        "data": {"key": "CM_DATA", "type": "path", "default": "required", "help": "file of data", "also": ["input"]},
        "rate": {"key": "CM_RATE", "type": "number", "default": "required", "help": "samples/s"},
        "seed": {"key": "CM_SEED", "default": "none", "help": "seed"},
    }
}
COMPLETES = """
def before_deps(i):
    i["env"].setdefault("CM_RATE", "5")
    return {"return": 0}
"""


def test_all_missing_inputs_are_named_with_the_recipes_that_give_them(home):
    home.script("get,data", {"new_env_keys": ["CM_DATA"]})
    home.script("dep", run="touch ran")
    home.script("one", {**INPUTS, "deps": [{"tags": "dep"}]})
    for given in ({}, {"plan": True}):
        result = home.run("one", **given)
        assert result["return"] == 20
        for words in (
            "one is not given --data and --rate\n",
            "--data: file of data\n",
            "--data=..., as get-data gives it\n",
            "--rate=...",
        ):
            assert words in result["error"], (words, result["error"])
        assert "--seed" not in result["error"]
        assert "--input" not in result["error"]
    assert not (home.work / "ran").exists()
    assert "one is not given --rate\n" in home.run("one", input="x")["error"]


def test_an_input_counts_as_given_by_flag_environment_caller_or_hook(home):
    home.script("one", INPUTS)
    assert home.run("one", data="x", rate=0)["return"] == 0
    assert home.run("one", env={"CM_DATA": "x", "CM_RATE": "1"})["return"] == 0
    home.script("top", {"deps": [{"tags": "one"}], "env": {"CM_DATA": "x", "CM_RATE": "1"}})
    assert home.run("top")["return"] == 0
    assert home.run("one", prepare=True)["return"] == 0, "of a script that is only prepared nothing is asked"
    home.script("completed", INPUTS, customize=COMPLETES)
    for given in ({}, {"plan": True}):
        assert home.run("completed", data="x", **given)["return"] == 0

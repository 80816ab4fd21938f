"""Required inputs: all that are missing are named at once, before anything runs."""

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

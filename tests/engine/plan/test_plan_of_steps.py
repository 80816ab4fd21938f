"""The steps that a script's own code takes, in a plan and in the run."""

import pytest
from tests.engine.plan.planning import find, nodes, planned, told

STEPS = """
def steps(env):
    yield {"name": "b", "tags": "get,lib", "env": {"CM_KIND": "b"}}
    if env.get("CM_KIND") != "c":
        yield {"name": "as given", "tags": "get,lib"}

def plan(i):
    moon = {"name": "moon", "tags": "get,lib,_x", "only_if": "the moon is full"}
    return {"return": 0, "steps": [*steps(i["env"]), moon]}

def preprocess(i):
    for step in steps(i["env"]):
        done = i["automation"].run({"tags": step["tags"], "env": {**i["env"], **step.get("env", {})}, "quiet": True})
        if done["return"]: return done
    return {"return": 0}
"""


@pytest.mark.parametrize("kind", ["b", "c"])
def test_steps_are_taken_as_the_code_takes_them(home, ran, kind):
    home.script("get,lib", {"cache": True, "default_env": {"CM_KIND": "a"}, "variations": {"x": {}}})
    home.script("top", {"input_mapping": {"kind": "CM_KIND"}}, customize=STEPS)
    for _ in range(2):
        plan = planned(home, "top", kind=kind)
        steps = plan["plan"]["children"]
        assert [step["why"]["name"] for step in steps] == ["b", *(["as given"] if kind == "b" else []), "moon"]
        assert [step["certain"] for step in steps] == [True] * (len(steps) - 1) + [False]
        assert steps[-1]["why"]["only_if"] == ["only if the moon is full"]
        home.run("top", kind=kind)
        assert told(plan["plan"])[:-1] == ran
        ran.clear()


def test_what_the_code_sets_is_known_to_what_follows(home, ran):
    home.script(
        "teller",
        {"new_env_keys": ["CM_TOLD"]},
        customize="def plan(i): return {'return': 0, 'env': {'CM_TOLD': i['env'].get('CM_ASKED', 'a')}}\n"
        "def preprocess(i):\n    i['env'].update(plan(i)['env'])\n    return {'return': 0}\n",
    )
    home.script("other")
    home.script(
        "top",
        {
            "deps": [{"tags": "teller"}, {"tags": "other", "enable_if_env": {"CM_TOLD": ["b"]}}],
            "input_mapping": {"asked": "CM_ASKED"},
        },
    )
    for asked, taken in (("a", False), ("b", True)):
        plan = planned(home, "top", asked=asked)
        assert all(node["certain"] for node in nodes(plan["plan"]))
        home.run("top", asked=asked)
        assert told(plan["plan"]) == ran
        assert (("other", (), False) in ran) is taken
        ran.clear()


def test_a_value_that_a_step_gives_is_a_fact_for_those_after_it(home):
    home.script(
        "use",
        {
            "cache": True,
            "default_env": {"CM_RATE": ""},
            "deps": [{"tags": "fast", "enable_if_env": {"CM_RATE": ["9"]}}],
        },
    )
    home.script("fast")
    home.script(
        "top",
        customize="def plan(i): return {'return': 0, 'steps': [{'name': 's', 'tags': 'use', "
        "'unknown': {'CM_RATE': 'the step before'}, 'notes': ['a note'], 'data': {'a': 1}, "
        "'brings': [{'how': 'make', 'what': 'a thing', 'disk_bytes': 5}]}]}\n",
    )
    plan = planned(home, "top")
    (step,) = plan["plan"]["children"]
    assert step["children"][0]["why"]["only_if"] == ["depends on CM_RATE, which the step before sets"]
    assert (step["notes"], step["why"]["data"]) == (["a note"], {"a": 1})
    assert plan["summary"]["brings"] == [{"how": "make", "what": "a thing", "disk_bytes": 5, "measured": None}]
    tree = home.cli("plan", "script", "--tags=top").stdout
    assert "step s: use" in tree


def test_a_hook_that_only_refuses_leaves_open_what_the_code_sets(home):
    home.script("teller", {"new_env_keys": ["CM_TOLD"]}, customize="def plan(i): return {'return': 0}\n")
    home.script("other")
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "other", "enable_if_env": {"CM_TOLD": ["on"]}}]})
    assert find(planned(home, "top"), "other")["why"]["only_if"] == ["depends on CM_TOLD, which teller sets"]


REFUSED = """
def plan(i):
    from cm4vllm.common.errors import UsageError
    raise UsageError(f"CM_KIND={i['env']['CM_KIND']} is not supported", remedy="leave it out")

def preprocess(i):
    plan(i)
"""


def test_what_the_code_refuses_the_plan_refuses_with_the_same_message(home):
    home.script("base")
    home.script("top", {"deps": [{"tags": "base"}], "input_mapping": {"kind": "CM_KIND"}}, customize=REFUSED)
    home.script("above", {"deps": [{"tags": "top", "env": {"CM_KIND": "y"}}]})
    plan, done = planned(home, "top", kind="x"), home.run("top", kind="x")
    assert plan["return"] == done["return"] == 20
    assert plan["error"] == done["error"] == "--kind=x is not supported\n  remedy: leave it out"
    plan = planned(home, "above")
    assert plan["return"] == 20
    assert "CM_KIND=y is not supported" in plan["error"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [("[{'name': 'a'}]", "the step 'a' has no tags"), ("[{'tags': 'x', 'tgas': 'y'}]", "a step has no key 'tgas'")],
)
def test_a_step_of_the_wrong_shape_is_a_fault_of_the_recipe(home, steps, words):
    home.script("top", customize=f"def plan(i): return {{'return': 0, 'steps': {steps}}}\n")
    plan = planned(home, "top")
    assert plan["return"] == 3
    assert words in plan["error"]

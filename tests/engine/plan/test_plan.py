"""A plan says what a run then does, and runs nothing itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.plan.planning import HOOK, chain, find, nodes, planned, told

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("tags", ["top", "top,_x"])
@pytest.mark.parametrize("given", [{}, {"mode": "fast"}, {"mode": "slow"}])
def test_a_plan_agrees_with_the_run_before_and_after(home, ran, tags, given):
    chain(home)
    for _ in range(2):
        plan = planned(home, tags, **given)
        assert plan["return"] == 0
        assert all(node["certain"] for node in nodes(plan["plan"]))
        assert ran == []
        assert home.run(tags, **given)["return"] == 0
        assert told(plan["plan"]) == ran
        ran.clear()


@pytest.mark.parametrize("tags", ["get,mlperf,inference,loadgen", "detect,cpu"])
def test_a_plan_of_our_own_recipes_agrees_with_the_run(home, ran, tags):
    home.register(ROOT)
    for _ in range(2):
        plan = planned(home, tags)
        assert home.run(tags)["return"] == 0
        assert told(plan["plan"]) == ran
        ran.clear()


def test_nothing_of_a_script_is_run(home):
    home.script("shell", run="touch ran-shell")
    home.script("one", {"deps": [{"tags": "shell"}]}, customize="open('loaded', 'w')\ndef preprocess(i): 1 / 0\n")
    assert planned(home, "one")["return"] == 0
    assert list(home.work.iterdir()) == []


def test_what_only_a_run_can_tell_is_shown_as_such(home):
    home.script("teller", {"new_env_keys": ["CM_TOLD"]}, customize=HOOK.format({"CM_TOLD": "yes"}))
    home.script("other")
    home.script("get,lib", {"variations": {"name.#": {}}})
    home.script(
        "top",
        {
            "deps": [
                {"tags": "teller"},
                {"tags": "other", "enable_if_env": {"CM_TOLD": ["on"]}},
                {"tags": "get,lib,_name.<<<CM_TOLD>>>"},
                {"tags": "get", "update_tags_from_env": ["CM_TOLD"]},
            ]
        },
    )
    plan = planned(home, "top")
    other = find(plan, "other")
    assert other["why"]["only_if"] == ["depends on CM_TOLD, which teller sets"]
    assert not other["certain"]
    assert find(plan, "get-lib")["variations"] == ["name.<CM_TOLD>"]
    assert plan["plan"]["children"][-1]["status"] == "open"
    assert plan["plan"]["children"][-1]["depends_on"] == ["CM_TOLD, which teller sets"]


def test_a_tag_that_a_fact_may_or_may_not_add_is_not_guessed(home):
    home.script("teller", {"new_env_keys": ["CM_A", "CM_B"]}, run="true")
    group = {"group": "g"}
    home.script("get,src", {"variations": {"a.#": group, "b.#": group}, "new_env_keys": ["CM_SRC"]})
    home.script("other")
    home.script(
        "top",
        {
            "deps": [
                {"tags": "teller"},
                {"tags": "get,src", "update_tags_from_env_with_prefix": {"_a.": ["CM_A"], "_b.": ["CM_B"]}},
                {"tags": "other", "enable_if_env": {"CM_SRC": ["on"]}},
            ]
        },
    )
    plan = planned(home, "top")
    assert plan["return"] == 0
    assert plan["plan"]["children"][1]["depends_on"] == [f"CM_{name}, which teller sets" for name in "AB"]
    assert not find(plan, "other")["certain"]


def test_what_any_of_several_variations_brings_may_be_brought(home):
    home.script("teller", {"new_env_keys": ["CM_A"]}, run="true")
    home.script(
        "get,src",
        {
            "variations": {
                name: {"brings": [{"how": "install", "what": f"the {name} build"}]} for name in ("cpu", "gpu")
            }
        },
    )
    home.script(
        "top", {"deps": [{"tags": "teller"}, {"tags": "get,src", "update_tags_from_env_with_prefix": {"_": ["CM_A"]}}]}
    )
    page = home.done("plan", "script", "--tags=top").stdout
    assert "may install the cpu build" in page
    assert "may bring: 2 of unknown size" in page


def test_an_entry_that_a_shell_file_judges_is_open(home):
    folder = home.script("kept", {"cache": True})
    (folder / "validate_cache.sh").write_text("true\n")
    home.run("kept")
    assert planned(home, "kept")["plan"]["depends_on"] == ["what its validate_cache.sh says of the entry"]


def test_branches_that_need_not_be_taken_end(home):
    home.script("teller", {"new_env_keys": ["CM_TOLD"]}, run="true")
    names = [f"n{number}" for number in range(12)]
    for name in names:  # each may ask for each: paths through them have no end
        home.script(name, {"deps": [{"tags": other, "enable_if_env": {"CM_TOLD": ["on"]}} for other in names]})
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "n0"}]})
    assert len(list(nodes(planned(home, "top")["plan"]))) < 200


def test_a_key_that_a_pattern_may_have_set_is_a_fact(home):
    home.script("teller", {"new_env_keys": ["CM_T_*"]}, run="echo CM_T_X=yes >> tmp-run-env.out")
    home.script("other")
    home.script("middle", {"deps": [{"tags": "other", "enable_if_env": {"CM_T_X": ["on"]}}]})
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "middle"}]})
    assert find(planned(home, "top"), "other")["why"]["only_if"] == ["depends on CM_T_X"]


def test_what_a_cache_entry_holds_is_known(home, ran):
    home.script("teller", {"cache": True, "new_env_keys": ["CM_TOLD"]}, customize=HOOK.format({"CM_TOLD": "no"}))
    home.script("other")
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "other", "enable_if_env": {"CM_TOLD": ["on"]}}]})
    assert not find(planned(home, "top"), "other")["certain"]
    home.run("top")
    ran.clear()
    plan = planned(home, "top")
    assert find(plan, "teller")["entry"] == str(home.entries()[0])
    home.run("top")
    assert told(plan["plan"]) == ran


def test_a_promised_key_is_relied_upon_and_enforced(home, ran):
    promise = {"new_env_keys": ["CM_TOLD"], "promised_env_keys": ["CM_TOLD"]}
    home.script("teller", promise, customize=HOOK.format({"CM_TOLD": "x"}))
    home.script("other")
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "other", "skip_if_env": {"CM_TOLD": ["on"]}}]})
    plan = planned(home, "top")
    home.run("top")
    assert told(plan["plan"]) == ran
    home.script("liar", promise, customize=HOOK.format({"CM_TOLD": "no"}))
    failed = home.run("liar")
    assert failed["return"] == 3
    assert "ended without setting CM_TOLD" in failed["error"]


def test_an_entry_that_depends_on_a_fact_is_open_only_where_one_may_fit(home):
    home.script("teller", {"new_env_keys": ["CM_TOLD"]}, customize=HOOK.format({"CM_TOLD": "1"}))
    home.script("kept", {"cache": True, "default_env": {"CM_TOLD": ""}})
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "kept"}]})
    assert find(planned(home, "top"), "kept")["status"] == "to make"
    home.run("top")
    kept = find(planned(home, "top"), "kept")
    assert (kept["status"], kept["depends_on"]) == ("open", ["CM_TOLD, which teller sets"])


def test_hooks_before_later_dependencies_leave_their_conditions_open(home):
    home.script("other")
    home.script(
        "top",
        {"default_env": {"CM_X": "yes"}, "post_deps": [{"tags": "other", "enable_if_env": {"CM_X": ["on"]}}]},
        customize="def preprocess(i): return {'return': 0, 'skip': True}\n",
    )
    assert find(planned(home, "top"), "other")["why"]["only_if"] == [
        "only if preprocess does not skip it",
        "depends on CM_X",
    ]


def test_a_plan_fails_as_the_run_would_and_shows_where(home):
    home.script("good")
    home.script("top", {"deps": [{"tags": "good"}, {"tags": "nobody"}, {"tags": "good"}]})
    plan, done = planned(home, "top"), home.run("top")
    assert plan["return"] == done["return"] == 16
    assert [child["status"] for child in plan["plan"]["children"]] == ["to run", "fails", "to run"]
    assert "no scripts were found with the tags nobody" in plan["error"]


def test_a_failure_that_need_not_happen_is_only_shown(home):
    home.script("teller", {"new_env_keys": ["CM_TOLD"]}, run="true")
    home.script("top", {"deps": [{"tags": "teller"}, {"tags": "nobody", "enable_if_env": {"CM_TOLD": ["on"]}}]})
    assert planned(home, "top")["return"] == 0


def test_a_script_that_depends_on_itself_is_told(home):
    home.script("one", {"deps": [{"tags": "two"}]})
    home.script("two", {"deps": [{"tags": "one"}]})
    plan = planned(home, "one")
    assert plan["return"] == 3
    assert "one > two > one" in plan["error"]


def test_why_a_dependency_is_there(home):
    home.script("dep")
    home.script("top", {"variations": {"v": {"deps": [{"tags": "dep", "names": ["d"]}]}}})
    why = find(planned(home, "top,_v"), "dep")["why"]
    assert (why["phase"], why["of"], why["names"], why["variation"]) == ("deps", "top", ["d"], "v")


def test_what_is_brought_is_told_with_sizes_that_are_known(home):
    folder = home.script(
        "top",
        {
            "brings": [
                {"how": "download", "what": "weights", "disk_bytes": 3_000_000_000},
                {"how": "install", "what": "tools", "requirements": "list.txt"},
                {"how": "install", "package": "cmind", "shared": True},
                {"how": "install", "package": "no-such-package", "shared": True},
            ]
        },
    )
    (folder / "list.txt").write_text("one==1\ntwo==2\n")
    brings = planned(home, "top")["plan"]["brings"]
    assert [(bring["what"], bring["disk_bytes"]) for bring in brings] == [
        ("weights", 3_000_000_000),
        ("tools: 2 packages of list.txt", None),
        ("the package no-such-package", None),
    ]
    tree = home.done("plan", "script", "--tags=top").stdout
    assert "brings: 3.0 GB on disk; 2 of unknown size" in tree


def test_code_that_may_run_more_than_is_known_is_pointed_out(home):
    home.script("top", customize="def preprocess(i): return i['automation'].run({'tags': 'x'})\n")
    assert "may run further scripts" in planned(home, "top")["plan"]["notes"][0]


def test_on_the_command_line(home):
    chain(home)
    home.act("find", "script")
    tree = home.done("run", "script", "--tags=top", "--plan").stdout
    assert "├─ tool (_a)" in tree
    assert "made above" in tree
    assert json.loads(home.cli("run", "script", "--tags=top", "--plan", "--out=json").stdout)["plan"]["tags"] == "top"
    assert home.done("plan", "script", "--tags=top", "--graph").stdout.startswith("flowchart LR\n")
    wrong = home.done("plan", "script", "--tags=top,_y")
    assert wrong.returncode == 20
    assert "no variation 'y'" in wrong.stderr
    assert not [path for path in home.path.rglob("*") if Path(path).name == "cm-cached-state.json"]


def test_a_reader_that_goes_early_is_no_failure(home):
    home.script("top")
    home.act("find", "script")
    for words in ("plan script --tags=top", "lint script", "show script top", "show cache"):
        command = f"{sys.executable} -m cmind.cli {words} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", command], env=home.env, cwd=home.work, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_dependency_of_nearly_every_script_is_shown_once_and_counted(home):
    home.script("base")
    home.script("other", {"deps": [{"tags": "base"}]})
    home.script("third", {"deps": [{"tags": "base"}, {"tags": "base", "enable_if_env": {"CM_OTHER": ["yes"]}}]})
    home.script("top", {"deps": [{"tags": "base"}, {"tags": "other"}, {"tags": "third"}]})
    lines = home.done("plan", "script", "--tags=top").stdout.splitlines()
    tree = lines[next(n for n, line in enumerate(lines) if line.startswith("top ")) :]
    assert [" ".join(line.split()) for line in tree[:6]] == [
        "top to run",
        "├─ base to run",
        "├─ other to run",
        "└─ third to run",
        "",
        "met again: base (2x)",
    ]


@pytest.mark.parametrize(
    ("flags", "brought"),
    [({}, ["the model"]), ({"source": "/data/model.zip"}, []), ({"wanted": "1.5"}, ["the model", "release 1.5"])],
)
def test_what_is_brought_follows_the_environment(home, flags, brought):
    meta = {
        "input_mapping": {"source": "CM_SOURCE", "wanted": "CM_WANTED"},
        "brings": [
            {"how": "download", "what": "the model", "skip_if_env": {"CM_SOURCE": ["on"]}},
            {"how": "install", "what": "release <<<CM_WANTED>>>", "enable_if_env": {"CM_WANTED": ["on"]}},
        ],
    }
    home.script("top", meta)
    assert [bring["what"] for bring in planned(home, "top", **flags)["plan"]["brings"]] == brought


# --- the steps that a script's own code takes, in a plan and in the run


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
    assert plan["summary"]["brings"] == [
        {"how": "make", "what": "a thing", "disk_bytes": 5, "download_bytes": None, "measured": None}
    ]
    tree = home.done("plan", "script", "--tags=top").stdout
    assert "step s: use" in tree


def test_a_plan_for_another_machine_counts_nothing_of_this_one(home):
    home.script("kept", {"cache": True, "brings": [{"how": "download", "what": "weights", "disk_bytes": 1_000_000}]})
    home.script(
        "top",
        customize="def plan(i): return {'return': 0, 'elsewhere': i['env'].get('CM_THERE') == 'yes', "
        "'takes': '3 hours', 'steps': [{'name': 's', 'tags': 'kept'}], "
        "'brings': [{'how': 'download', 'what': 'more', 'disk_bytes': 2_000_000, 'download_bytes': 500_000}]}\n",
    )
    assert home.run("kept")["return"] == 0
    (here,) = planned(home, "top")["plan"]["children"]
    assert here["status"] == "cached"
    plan = planned(home, "top", env={"CM_THERE": "yes"})
    (there,) = plan["plan"]["children"]
    assert there["status"] == "to make" and plan["summary"]["takes"] == "3 hours"
    tree = home.done("plan", "script", "--tags=top", "--env.CM_THERE=yes").stdout
    assert tree.splitlines()[-1] == "in all: to download 1.5 MB; on disk 3.0 MB; 3 hours"


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

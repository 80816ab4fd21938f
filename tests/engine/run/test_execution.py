import json

import pytest

# Writes each phase's name to one file, so that the order is seen across processes.
NOTE = """
def note(i, text):
    with open(i["env"]["CM_LOG"], "a") as file:
        file.write(text + "\\n")
"""


def log_of(home):
    path = home.work / "log"
    return path.read_text().split() if path.exists() else []


def test_phases_run_in_the_public_order(home):
    for phase in ("deps", "prehook_deps", "posthook_deps", "post_deps"):
        home.script(f"one,{phase}", run=f'echo {phase} >> "$CM_LOG"')
    home.script(
        "whole",
        {phase: [{"tags": f"one,{phase}"}] for phase in ("post_deps", "posthook_deps", "prehook_deps", "deps")},
        customize=NOTE
        + """
def preprocess(i): note(i, "preprocess"); return {"return": 0}
def postprocess(i): note(i, "postprocess"); return {"return": 0}
""",
        run='echo run.sh >> "$CM_LOG"',
    )
    assert home.run("whole", env={"CM_LOG": str(home.work / "log")})["return"] == 0
    assert log_of(home) == ["deps", "preprocess", "prehook_deps", "run.sh", "posthook_deps", "postprocess", "post_deps"]


def test_result_has_the_public_keys(home):
    home.script("dep")
    home.script(
        "one",
        {
            "deps": [{"tags": "dep"}],
            "new_env_keys": ["CM_A", "CM_B_*"],
            "env": {"CM_A": 1, "CM_B_C": "x", "CM_D": "hidden"},
            "new_state_keys": ["known"],
            "state": {"known": [1], "other": 2},
        },
    )
    result = home.run("one")
    assert {"return", "env", "new_env", "state", "new_state", "deps"} <= set(result)
    assert result["new_env"] == {"CM_A": "1", "CM_B_C": "x"}
    assert result["new_state"] == {"known": [1]}
    assert result["deps"] == ["dep"]


def test_skip_can_name_another_script(home):
    home.script("other", {"env": {"CM_X": "from other"}, "new_env_keys": ["CM_X"]})
    home.script("one", customize="def preprocess(i): return {'return': 0, 'skip': True, 'script': {'tags': 'other'}}\n")
    assert home.run("one")["new_env"] == {"CM_X": "from other"}


def test_state_of_run_sh_is_merged(home):
    home.script("one", {"new_state_keys": ["from"]}, run="""echo '{"from": {"a": [1]}}' > tmp-run-state.json""")
    assert home.run("one")["new_state"] == {"from": {"a": [1]}}
    assert not list(home.work.glob("tmp-*"))


def test_nested_run_of_a_hook_is_part_of_the_same_run(home):
    home.script(
        "inner",
        {"new_env_keys": ["CM_Y"], "env": {"CM_Y": "<<<CM_X>>>!"}},
        customize="def cleanup(i): print('inner ends'); return {'return': 0}\n",
    )
    home.script(
        "outer",
        {"new_env_keys": ["CM_Z"]},
        customize="""
def preprocess(i):
    done = i["automation"].run({"tags": "inner", "env": {"CM_X": "hello"}, "quiet": True})
    if done["return"]: return done
    i["env"]["CM_Z"] = done["new_env"]["CM_Y"]
    print("outer goes on")
    return {"return": 0}
""",
    )
    done = home.cli("run", "script", "--tags=outer", "--out=json")
    assert json.loads(done.stdout)["new_env"] == {"CM_Z": "hello!"}
    assert done.stderr.index("outer goes on") < done.stderr.index("inner ends")


def test_nested_run_through_cmind_is_part_of_the_same_run_too(home):
    home.script("inner", customize="def cleanup(i): print('inner ends'); return {'return': 0}\n")
    home.script(
        "outer",
        customize="""
import cmind
def preprocess(i):
    r = i["automation"].cmind.access({"action": "run", "automation": "script", "tags": "inner"})
    print("outer goes on")
    return r
""",
    )
    output = home.done("run", "script", "--tags=outer").stdout
    assert output.index("outer goes on") < output.index("inner ends")


def test_a_script_refuses_its_inputs_before_its_dependencies_run(home):
    home.script("slow", customize="def preprocess(i): print('the dependency ran'); return {'return': 0}\n")
    home.script(
        "outer",
        {"deps": [{"tags": "slow"}]},
        customize="def before_deps(i): return {'return': 20 if i['env'].get('CM_BAD') else 0, 'error': 'bad'}\n",
    )
    refused = home.done("run", "script", "--tags=outer", "--env.CM_BAD=1")
    assert refused.returncode == 20 and "the dependency ran" not in refused.stdout + refused.stderr
    done = home.done("run", "script", "--tags=outer")
    assert done.returncode == 0 and "the dependency ran" in done.stdout + done.stderr


COMPLETES = """
def before_deps(i):
    env = i["env"]
    env["CM_KIND"] = "_b" if env["CM_SIZE"] == "large" else "_a"
    env["CM_SIZE"] = env["CM_SIZE"].upper()
    return {"return": 0}
"""


def test_dependencies_get_the_inputs_as_the_code_completed_them_in_plan_and_run(home):
    home.script(
        "part",
        {"variations": {"a": {"group": "kind"}, "b": {"group": "kind"}}, "new_env_keys": ["CM_GOT"]},
        customize="def preprocess(i):\n    i['env']['CM_GOT'] = i['env']['CM_SIZE'] + ','.join(i['variation_tags'])\n"
        "    return {'return': 0}\n",
    )
    home.script(
        "outer",
        {
            "strict_input": True,
            "input_mapping": {"size": "CM_SIZE"},
            "deps": [{"tags": "part", "update_tags_from_env": ["CM_KIND"]}],
            "new_env_keys": ["CM_GOT"],
        },
        customize=COMPLETES,
    )
    for size, expected in (("large", "LARGEb"), ("small", "SMALLa")):
        assert home.run("outer", size=size)["new_env"] == {"CM_GOT": expected}
        done = home.done("plan", "script", "--tags=outer", f"--size={size}")
        shown = done.stdout + done.stderr
        assert f"part (_{expected[-1]})" in shown or f"part,_{expected[-1]}" in shown, shown


def test_code_that_needs_a_package_runs_after_the_dependency_that_installs_it(home):
    (home.repo / "requirements.txt").write_text("made_by_a_dependency\n")
    home.script(
        "install",
        customize="import sys, types\n"
        "def preprocess(i):\n    sys.modules['made_by_a_dependency'] = types.ModuleType('made_by_a_dependency')\n"
        "    return {'return': 0}\n",
    )
    home.script("other", {"new_env_keys": ["CM_GOT"]}, customize=ECHO)
    home.script(
        "outer",
        {"deps": [{"tags": "install"}, {"tags": "other"}], "new_env_keys": ["CM_GOT"]},
        customize="def before_deps(i):\n    import made_by_a_dependency\n    i['env']['CM_SET'] = 'yes'\n"
        "    return {'return': 0}\n",
    )
    assert home.run("outer")["new_env"] == {"CM_GOT": "yes"}


ECHO = """
def preprocess(i):
    i["env"]["CM_GOT"] = i["env"].get("CM_SET", "")
    return {"return": 0}
"""


def test_failure_of_a_nested_run_keeps_its_exit_code_and_text(home):
    home.script("inner", customize="def preprocess(i): return {'return': 33, 'error': 'the server died'}\n")
    home.script("outer", customize="def preprocess(i): return i['automation'].run({'tags': 'inner'})\n")
    done = home.done("run", "script", "--tags=outer")
    assert done.returncode == 33
    assert "the server died" in done.stderr
    assert "outer > inner" in done.stderr


def test_a_failing_cleanup_does_not_keep_the_others_from_running(home):
    home.script("bad", customize="def cleanup(i): raise ValueError('broken')\n")
    home.script("good", {"deps": [{"tags": "first"}, {"tags": "bad"}]})
    home.script("first", customize="def cleanup(i): print('first cleaned'); return {'return': 0}\n")
    done = home.done("run", "script", "--tags=good")
    assert done.returncode == 0
    assert "first cleaned" in done.stdout
    assert "ValueError: broken" in done.stdout


def test_prepare_runs_dependencies_alone(home):
    home.script("dep", run='echo dep >> "$CM_LOG"')
    home.script("one", {"deps": [{"tags": "dep"}]}, run='echo one >> "$CM_LOG"')
    assert home.run("one", prepare=True, env={"CM_LOG": str(home.work / "log")})["return"] == 0
    assert log_of(home) == ["dep"]


def test_prepare_calls_the_hook_that_gets_what_the_code_of_the_script_runs(home):
    home.script("part")
    home.script(
        "one",
        customize="from pathlib import Path\n"
        "def prepare(i):\n    i['automation'].run({'tags': 'part'})\n"
        "    Path(i['env']['CM_LOG']).write_text('prepared')\n    return {'return': 0}\n"
        "def preprocess(i):\n    Path(i['env']['CM_LOG']).write_text('run')\n    return {'return': 0}\n",
    )
    log = home.work / "log"
    assert home.run("one", prepare=True, env={"CM_LOG": str(log)})["return"] == 0
    assert log.read_text() == "prepared"
    assert home.run("one", env={"CM_LOG": str(log)})["return"] == 0
    assert log.read_text() == "run"


def test_working_directory_is_left_as_it_was(home):
    home.script(
        "one", customize="import os\ndef preprocess(i): os.chdir('/'); return {'return': 0}\n", run="pwd > where"
    )
    assert home.run("one")["return"] == 0
    assert (home.work / "where").read_text().strip() == str(home.work)


# --- `--adr` reaches what carries a name: a dependency at any depth, and a recipe that another one's code runs


GROUPED = {
    "new_env_keys": ["CM_SEEN"],
    "input_mapping": {"speed": "CM_SPEED"},
    "variations": {
        "a": {"group": "g", "default": True},
        "b": {"group": "g"},
        "v.#": {"group": "g"},
        "w.#": {"group": "g"},
        "free": {},
    },
}
SEE = """
def preprocess(i):
    env = i["env"]
    seen = [*sorted(i["variation_tags"]), env.get("CM_SPEED", ""), env.get("CM_PART", ""), env.get("CM_VERSION", "")]
    env["CM_SEEN"] = ",".join(filter(None, seen))
    return {"return": 0}
"""
RUNNER = """
def plan(i):
    return {"return": 0, "steps": [{"name": "s", "tags": "dep,_a", "names": ["d"], "env": {"CM_PART": "own"}}]}


def preprocess(i):
    adr = i["input"].get("adr")
    done = i["automation"].run({"tags": "dep,_a", "names": ["d"], "env": {"CM_PART": "own"}, "adr": adr, "quiet": True})
    if done["return"]:
        return done
    i["env"]["CM_SEEN"] = done["new_env"]["CM_SEEN"]
    return {"return": 0}
"""


@pytest.fixture(params=["a dependency", "a recipe that code runs"])
def top(request, home):
    """Write a script that reaches another one, named d, in one of the two ways; return which."""
    home.script("dep", GROUPED, customize=SEE)
    if request.param == "a dependency":
        deps = [{"tags": "dep,_a", "names": ["d"], "env": {"CM_PART": "own"}}]
        home.script("top", {"deps": deps, "new_env_keys": ["CM_SEEN"]})
    else:
        home.script("top", {"new_env_keys": ["CM_SEEN"]}, customize=RUNNER)
    return request.param


def test_an_amendment_reaches_dependencies_and_recipes_that_code_runs_alike(home, top):
    expected = {
        "_b": "b,own",  # replaces the variation of its group
        "_v.1/x": "v.1/x,own",
        "_free": "a,free,own",
        "_a": "a,own",
    }
    for tags, seen in expected.items():
        plan = home.run("top", plan=True, adr={"d": {"tags": tags}})
        result = home.run("top", adr={"d": {"tags": tags}})
        assert result["return"] == plan["return"] == 0, tags
        assert result["new_env"]["CM_SEEN"] == seen, tags
        (child,) = plan["plan"]["children"]
        assert sorted(child["variations"]) == sorted(word for word in seen.split(",") if word != "own"), tags
        assert child["why"]["names"] == ["d"]
        assert child["tags"] == {"_free": "dep,_a,_free"}.get(tags, f"dep,{tags}")  # without the replaced variation
    more = {"d": {"speed": "9", "env": {"CM_PART": "other"}, "version": "1.2"}}
    assert home.run("top", adr=more)["new_env"]["CM_SEEN"] == "a,9,other,1.2"
    assert home.run("top", plan=True, adr=more)["plan"]["children"][0]["version_asked"] == "==1.2"


def test_two_variations_of_one_group_in_one_amendment_are_refused(home, top):
    result = home.run("top", adr={"d": {"tags": "_b,_v.1"}})
    assert (result["return"], "exclude each other" in result["error"]) == (20, True)
    assert home.run("top", plan=True, adr={"d": {"tags": "_b,_v.1"}})["return"] == 20


def test_what_is_said_on_the_command_line_replaces_what_a_meta_says(home):
    home.script("dep", GROUPED, customize=SEE)
    deps = [{"tags": "dep,_a", "names": ["d"]}]
    home.script("top", {"deps": deps, "new_env_keys": ["CM_SEEN"], "variations": {"x": {"adr": {"d": {"tags": "_b"}}}}})
    assert home.run("top,_x")["new_env"]["CM_SEEN"] == "b"
    assert home.run("top,_x", adr={"d": {"tags": "_w.2"}})["new_env"]["CM_SEEN"] == "w.2"
    assert home.run("top,_x", adr={"d": {"tags": "_w.2"}})["deps"] == ["dep,_w.2"]


def test_a_name_that_nothing_has_is_a_warning_in_plan_and_run(home):
    home.script("deep")
    home.script("dep", {"variations": {"x": {"deps": [{"tags": "deep", "names": ["compiler"]}]}}})
    home.script("top", {"deps": [{"tags": "dep", "names": ["d"]}]})
    warning = "WARNING: --adr.compilr has no effect: no dependency of top has that name; did you mean 'compiler'?"
    for flags in ((), ("--plan",)):
        wrong = home.done("run", "script", "--tags=top", "--adr.compilr.tags=_x", *flags)
        assert (wrong.returncode, wrong.stdout.count(warning) + wrong.stderr.count(warning)) == (0, 1), wrong
        right = home.done("run", "script", "--tags=top", "--adr.compiler.tags=deep", "--adr.d.tags=dep", *flags)
        assert "WARNING" not in right.stdout + right.stderr


@pytest.mark.parametrize(
    "code", [RUNNER, RUNNER.replace('i["automation"].run(', '(lambda f: f)(i["automation"].run)(')]
)
def test_of_a_script_whose_code_runs_others_no_name_is_known(home, code):
    home.script("dep", GROUPED, customize=SEE)
    home.script("top", {"new_env_keys": ["CM_SEEN"]}, customize=code)
    done = home.done("run", "script", "--tags=top", "--adr.other.tags=_x")
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False)


def test_code_can_ask_what_an_amendment_reaches(home):
    home.script("deep")
    home.script("dep", {"input_mapping": {"speed": "CM_SPEED"}, "deps": [{"tags": "deep", "names": ["d", "e"]}]})
    asked = 'i["automation"].adr_targets({"tags": "dep,_any"})'
    home.script(
        "top",
        customize=f"def preprocess(i):\n    print({asked})\n    return {{'return': 0}}\n\n\n"
        f"def plan(i):\n    print({asked})\n    return {{'return': 0}}\n",
    )
    for flags in ((), ("--plan",)):
        done = home.done("run", "script", "--tags=top", *flags)
        assert str({"return": 0, "inputs": {"speed": "CM_SPEED"}, "names": ["d", "e"]}) in done.stdout


READS = 'def preprocess(i):\n    print(i["env"].get("CM_KNOWN_KEY", ""))\n    return {"return": 0}\n'


@pytest.mark.parametrize("key", ["CM_KNOWN_KYE", "CUDA_VISIBLE_DEVICES"])
def test_an_environment_key_that_nothing_reads_is_a_warning_in_plan_and_run(home, key):
    home.script("dep", customize=READS)
    home.script("top", {"deps": [{"tags": "dep"}], "input_mapping": {"known": "CM_KNOWN_KEY"}})
    for flags in ((), ("--plan",)):
        wrong = home.done("run", "script", "--tags=top", f"--env.{key}=x", *flags)
        said = f"WARNING: --env.{key} has no effect: nothing below top reads it"
        assert (wrong.returncode, (wrong.stdout + wrong.stderr).count(said)) == (0, 1), wrong
        right = home.done("run", "script", "--tags=top", "--env.CM_KNOWN_KEY=x", "--env.HF_TOKEN=y", *flags)
        assert "WARNING" not in right.stdout + right.stderr


def test_a_shell_file_and_the_programs_that_it_starts_may_read_every_key(home):
    home.script("dep", run="env > /dev/null\n")
    home.script("top", {"deps": [{"tags": "dep"}]})
    done = home.done("run", "script", "--tags=top", "--env.ANY_KEY=x")
    assert "WARNING" not in done.stdout + done.stderr


READS_SIZE = READS.replace("CM_KNOWN_KEY", "CM_SIZE")


def other_repository(home, name, tags, text, *, own=()):
    """Register a second repository with a script whose file `name` has this text; and write `own` scripts here."""
    repo = home.path.parent / "other"
    folder = repo / "script" / "theirs"
    folder.mkdir(parents=True)
    (repo / "cmr.yaml").write_text('alias: other\nuid: "00000000000000f3"\n')
    written = home.script(tags)
    (folder / "_cm.yaml").write_text((written / "_cm.yaml").read_text().replace("00000001a", "00000009b"))
    (folder / name).write_text(text)
    if tags not in own:
        (written / "_cm.yaml").unlink()
    home.register(home.engine, home.repo, repo)


@pytest.mark.parametrize(("name", "between"), [("customize.py", ("middle",)), ("run.sh", ())])
def test_a_key_that_a_dependency_in_another_repository_reads_has_an_effect(home, name, between):
    other_repository(home, name, "dep", READS_SIZE if name == "customize.py" else 'echo "$CM_SIZE"\n')
    for tags in between:
        home.script(tags, {"deps": [{"tags": "dep"}]})
    home.script("top", {"deps": [{"tags": between[0] if between else "dep"}]})
    for flags in ((), ("--plan",)):
        done = home.done("run", "script", "--tags=top", "--env.CM_SIZE=x", *flags)
        assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done


def test_what_a_script_of_another_repository_reads_has_none_where_the_own_one_is_meant(home):
    other_repository(home, "customize.py", "dep", READS_SIZE, own=("dep",))
    home.script("top", {"deps": [{"tags": "dep"}]})
    done = home.done("run", "script", "--tags=top", "--env.CM_SIZE=x")
    assert "WARNING: --env.CM_SIZE has no effect" in done.stdout + done.stderr

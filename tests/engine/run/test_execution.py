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


@pytest.mark.parametrize("phase", ["deps", "prehook_deps", "posthook_deps", "post_deps"])
def test_a_dependency_that_nothing_answers_fails_the_run(home, phase):
    home.script("whole", {phase: [{"tags": "bogus,dependency"}]})
    result = home.run("whole")
    assert result["return"] == 16
    assert "no scripts were found" in result["error"]


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


def test_only_exported_keys_of_a_dependency_reach_its_parent(home):
    home.script("dep", {"env": {"CM_OUT": "seen", "CM_HIDDEN": "unseen"}, "new_env_keys": ["CM_OUT"]})
    home.script("one", {"deps": [{"tags": "dep"}], "new_env_keys": ["CM_*"]})
    new_env = home.run("one")["new_env"]
    assert new_env["CM_OUT"] == "seen"
    assert "CM_HIDDEN" not in new_env


def test_skip_ends_the_script_before_run_sh_and_post_deps(home):
    home.script("later", run='echo later >> "$CM_LOG"')
    home.script(
        "one",
        {"post_deps": [{"tags": "later"}]},
        run='echo run >> "$CM_LOG"',
        customize="def preprocess(i): return {'return': 0, 'skip': True}\n",
    )
    result = home.run("one", env={"CM_LOG": str(home.work / "log")})
    assert result["return"] == 0
    assert result["skipped"]
    assert log_of(home) == []


def test_skip_can_name_another_script(home):
    home.script("other", {"env": {"CM_X": "from other"}, "new_env_keys": ["CM_X"]})
    home.script("one", customize="def preprocess(i): return {'return': 0, 'skip': True, 'script': {'tags': 'other'}}\n")
    assert home.run("one")["new_env"] == {"CM_X": "from other"}


def test_values_with_equal_signs_come_back_whole_from_run_sh(home):
    home.script(
        "one",
        {"new_env_keys": ["CM_*"]},
        run="""
echo "CM_URL=http://host/?q=1&r=2" > tmp-run-env.out
echo "CM_ABC=a=b=c" >> tmp-run-env.out
echo '{"from": "run.sh"}' > tmp-run-state.json
""",
    )
    new_env = home.run("one")["new_env"]
    assert new_env["CM_URL"] == "http://host/?q=1&r=2"
    assert new_env["CM_ABC"] == "a=b=c"
    assert not list(home.work.glob("tmp-*"))


def test_state_of_run_sh_is_merged(home):
    home.script("one", {"new_state_keys": ["from"]}, run="""echo '{"from": {"a": [1]}}' > tmp-run-state.json""")
    assert home.run("one")["new_state"] == {"from": {"a": [1]}}


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
    output = home.cli("run", "script", "--tags=outer").stdout
    assert output.index("outer goes on") < output.index("inner ends")


def test_a_script_refuses_its_inputs_before_its_dependencies_run(home):
    home.script("slow", customize="def preprocess(i): print('the dependency ran'); return {'return': 0}\n")
    home.script(
        "outer",
        {"deps": [{"tags": "slow"}]},
        customize="def before_deps(i): return {'return': 20 if i['env'].get('CM_BAD') else 0, 'error': 'bad'}\n",
    )
    refused = home.cli("run", "script", "--tags=outer", "--env.CM_BAD=1")
    assert refused.returncode == 20 and "the dependency ran" not in refused.stdout + refused.stderr
    done = home.cli("run", "script", "--tags=outer")
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
        done = home.cli("plan", "script", "--tags=outer", f"--size={size}")
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
    done = home.cli("run", "script", "--tags=outer")
    assert done.returncode == 33
    assert "the server died" in done.stderr
    assert "outer > inner" in done.stderr


def test_a_failing_cleanup_does_not_keep_the_others_from_running(home):
    home.script("bad", customize="def cleanup(i): raise ValueError('broken')\n")
    home.script("good", {"deps": [{"tags": "first"}, {"tags": "bad"}]})
    home.script("first", customize="def cleanup(i): print('first cleaned'); return {'return': 0}\n")
    done = home.cli("run", "script", "--tags=good")
    assert done.returncode == 0
    assert "first cleaned" in done.stdout
    assert "ValueError: broken" in done.stdout


def test_cleanup_runs_when_the_script_itself_fails(home):
    home.script(
        "one",
        customize="""
def preprocess(i): return {"return": 7, "error": "no"}
def cleanup(i): print("cleaned"); return {"return": 0}
""",
    )
    done = home.cli("run", "script", "--tags=one")
    assert done.returncode == 7
    assert "cleaned" in done.stdout


def test_fake_run_reaches_dependencies(home):
    home.script("dep", run='echo dep >> "$CM_LOG"')
    home.script("one", {"deps": [{"tags": "dep"}]}, run='echo one >> "$CM_LOG"')
    result = home.run("one", fake_run=True, env={"CM_LOG": str(home.work / "log")})
    assert result["return"] == 0
    assert result["deps"] == ["dep"]
    assert log_of(home) == []


def test_prepare_runs_dependencies_alone(home):
    home.script("dep", run='echo dep >> "$CM_LOG"')
    home.script("one", {"deps": [{"tags": "dep"}]}, run='echo one >> "$CM_LOG"')
    assert home.run("one", prepare=True, env={"CM_LOG": str(home.work / "log")})["return"] == 0
    assert log_of(home) == ["dep"]


def test_working_directory_is_left_as_it_was(home):
    home.script(
        "one", customize="import os\ndef preprocess(i): os.chdir('/'); return {'return': 0}\n", run="pwd > where"
    )
    assert home.run("one")["return"] == 0
    assert (home.work / "where").read_text().strip() == str(home.work)


def test_metas_are_not_changed_by_a_run(home):
    home.script("dep", {"variations": {"a.#": {"env": {"CM_V": "#"}}}, "new_env_keys": ["CM_V"]})
    home.script(
        "one",
        {"deps": [{"tags": "dep", "names": ["d"]}], "new_env_keys": ["CM_V"]},
        customize="""
def preprocess(i):
    i["meta"]["tags"].append("changed")
    i["meta"].clear()
    return {"return": 0}
""",
    )
    home.script(
        "both",
        customize="""
def preprocess(i):
    first = i["automation"].run({"tags": "one", "adr": {"d": {"tags": "_a.1"}}})
    second = i["automation"].run({"tags": "one", "adr": {"d": {"tags": "_a.2"}}})
    print("seen", first["new_env"]["CM_V"], second["new_env"]["CM_V"])
    return {"return": 0}
""",
    )
    assert "seen 1 2" in home.cli("run", "script", "--tags=both").stdout

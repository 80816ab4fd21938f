"""Faults of the public engine that this one must not have, numbered as docs/engine.md lists them."""

import json
import os
import subprocess
import sys

import pytest

EXPORT = {"new_env_keys": ["CM_*"]}


def new_env(result):
    assert result["return"] == 0, result.get("error")
    return result["new_env"]


@pytest.mark.parametrize("value", ["http://host/?q=1&r=2", "a=b=c", "=", "x="])
def test_01_values_of_tmp_run_env_out_keep_their_equal_signs(home, value):
    home.script("one", EXPORT, run=f"echo 'CM_X={value}' > tmp-run-env.out\n")
    assert new_env(home.run("one"))["CM_X"] == value


def test_02_the_environment_of_a_dependency_arrives_when_the_parent_has_none(home):
    home.script(
        "dep",
        EXPORT,
        customize="def preprocess(i): i['env']['CM_SEEN'] = i['env'].get('CM_D', 'none'); return {'return': 0}\n",
    )
    home.script("one", {"deps": [{"tags": "dep", "env": {"CM_D": "given"}}], **EXPORT})
    assert new_env(home.run("one"))["CM_SEEN"] == "given"


@pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
def test_03_the_order_of_tags_from_adr_does_not_depend_on_the_hash_seed(home, seed):
    names = "abcdef"
    home.script("dep", {**EXPORT, "variations": {name: {"env": {"CM_X": name}} for name in names}})
    home.script("one", {**EXPORT, "deps": [{"tags": "dep", "names": ["d"]}]})
    done = home.cli(
        "run",
        "script",
        "--tags=one",
        "--adr.d.tags=" + ",".join(f"_{name}" for name in names),
        "--out=json",
        PYTHONHASHSEED=seed,
    )
    assert json.loads(done.stdout[done.stdout.index("{") :])["new_env"]["CM_X"] == "f"


def test_04_a_default_request_is_not_served_by_an_entry_of_another_variation(home):
    home.script(
        "one",
        {
            **EXPORT,
            "cache": True,
            "variations": {
                "w": {"group": "g", "default": True, "env": {"CM_X": "w"}},
                "w2": {"group": "g", "env": {"CM_X": "w2"}},
            },
        },
    )
    assert new_env(home.run("one,_w2"))["CM_X"] == "w2"
    assert new_env(home.run("one"))["CM_X"] == "w"


def test_05_renewal_keeps_the_default_version(home):
    home.script("one", {**EXPORT, "cache": True, "default_version": "2.0"})
    home.run("one")
    assert new_env(home.run("one", renew=True))["CM_VERSION"] == "2.0"
    assert "version-2.0" in json.loads((home.entries()[0] / "_cm.json").read_bytes())["tags"]


def test_06_a_version_that_is_too_old_is_an_error_and_leaves_no_entries(home):
    home.script("one", {"cache": True}, customize="def postprocess(i): return {'return': 0, 'version': '1.0'}\n")
    for _ in range(2):
        result = home.run("one", version_min="2.0")
        assert result["return"] == 1
        assert ">=2.0 is wanted" in result["error"]
    assert home.entries() == []


def test_07_a_derived_variation_overrides_its_base(home):
    home.script(
        "one",
        {**EXPORT, "variations": {"low": {"env": {"CM_X": "low"}}, "top": {"base": ["low"], "env": {"CM_X": "top"}}}},
    )
    assert new_env(home.run("one,_top"))["CM_X"] == "top"


def test_08_constants_conditions_and_constant_state_of_the_meta_count(home):
    home.script(
        "one",
        {
            **EXPORT,
            "new_state_keys": ["s"],
            "const": {"CM_C": "meta"},
            "env": {"CM_C": "env"},
            "update_meta_if_env": [{"enable_if_env": {"CM_ON": ["yes"]}, "env": {"CM_U": "updated"}}],
            "variations": {"v": {"const_state": {"s": {"a": 1}}}},
        },
    )
    result = home.run("one,_v", env={"CM_ON": "yes"})
    assert new_env(result) == {"CM_C": "meta", "CM_U": "updated", "CM_ON": "yes"}
    assert result["new_state"] == {"s": {"a": 1}}


def test_09_what_a_person_types_beats_the_meta_and_fake_runs_are_fake_all_the_way_down(home):
    home.script(
        "dep", run="touch dep-ran\n", customize="def preprocess(i): open('hook-ran', 'w'); return {'return': 0}\n"
    )
    home.script("one", {**EXPORT, "env": {"CM_X": "meta"}, "deps": [{"tags": "dep"}]}, run="touch one-ran\n")
    assert new_env(home.run("one", env={"CM_X": "typed"}, fake_run=True))["CM_X"] == "typed"
    assert list(home.work.iterdir()) == []


@pytest.mark.parametrize("value", ['say "hi"', "$(touch pwned)", "`touch pwned`", "a\nb", "\\"])
def test_10_values_are_not_code(home, value):
    home.script("one", run='printf %s "$CM_X" > seen\n')
    assert home.run("one", env={"CM_X": value})["return"] == 0
    assert (home.work / "seen").read_text() == value
    assert not (home.work / "pwned").exists()


@pytest.mark.parametrize(("command", "told"), [("exit 7", "exit status 7"), ("kill -KILL $$", "killed by SIGKILL")])
def test_11_the_real_exit_status_is_told_and_exceptions_are_explained(home, command, told):
    home.script("one", run=f"{command}\n")
    assert told in home.run("one")["error"]
    folder = home.script("two", customize="def preprocess(i):\n    raise ValueError('wrong')\n")
    result = home.run("two")
    assert result["return"] == 3
    assert f"{folder / 'customize.py'}:2" in result["error"]


def test_12_running_a_script_does_not_change_its_meta(home):
    home.script("dep", {**EXPORT, "variations": {"v.#": {"env": {"CM_V": "#"}}}})
    home.script("one", {**EXPORT, "deps": [{"tags": "dep", "update_tags_from_env_with_prefix": {"_v.": ["CM_N"]}}]})
    home.script(
        "both",
        EXPORT,
        customize="""
def preprocess(i):
    seen = [i["automation"].run({"tags": "one", "env": {"CM_N": n}}) for n in "12"]
    i["env"]["CM_BOTH"] = " ".join(one["new_env"]["CM_V"] + ":" + one["deps"][0] for one in seen)
    return {"return": 0}
""",
    )
    assert new_env(home.run("both"))["CM_BOTH"] == "1:dep,_v.1 2:dep,_v.2"


def test_13_a_failure_inside_a_dependency_fails_the_run(home):
    home.script("dep", run="exit 1\n")
    home.script("one", {"deps": [{"tags": "dep"}]}, run="touch went-on\n")
    assert home.run("one")["return"] == 2
    assert not (home.work / "went-on").exists()


def test_14_warnings_are_told_and_records_hold_only_what_happened(home):
    home.script("one", {**EXPORT, "env": {"CM_X": "1"}, "warnings": ["mind the gap"]})
    done = home.cli("run", "script", "--tags=one", "--repro")
    assert "mind the gap" in done.stdout
    record = json.loads((home.work / "cm-output.json").read_bytes())
    assert record == {"return": 0, "error": "", "new_env": {"CM_X": "1"}, "new_state": {}}


def test_15_simultaneous_runs_lose_no_entry_of_each_other(home):
    for name in "abcd":
        home.script(name, {"cache": True}, run="sleep 0.2\n")
    home.act("find", "script")
    runs = [home.start("run", "script", f"--tags={name}") for name in "abcd"]
    assert [process.wait(timeout=60) for process in runs] == [0] * 4
    for process in runs:
        process.communicate()
    index = json.loads((home.path / "index.json").read_bytes())
    assert sorted(index["cache"]) == sorted(index["541d6f712a6b464e"]) == [entry.name for entry in home.entries()]
    assert len(index["cache"]) == 4
    assert not any("tmp" in json.loads((entry / "_cm.json").read_bytes())["tags"] for entry in home.entries())


def test_16_standard_output_carries_information_and_a_token_goes_into_no_url(home):
    home.script(
        "one",
        {"input_mapping": {"url": "CM_GIT_URL"}, "new_env_keys": ["CM_GIT_URL"], "env": {"CM_GIT_AUTH": "yes"}},
        run='echo "$CM_GIT_URL"; git config --list > seen\n',
    )
    home.act("find", "script")
    done = home.cli(
        "run", "script", "--tags=one", "--url=https://github.com/a/b", "--gh_token=very-secret-token", "--print_env"
    )
    assert done.stderr == ""
    assert "CM_GIT_URL=https://github.com/a/b" in done.stdout
    assert "https://github.com/a/b\n" in done.stdout
    assert "very-secret-token" not in done.stdout
    # git still gets it: by its configuration, which no list of processes shows.
    assert "http.https://github.com/.extraheader" in (home.work / "seen").read_text().lower()


def test_17_a_hundred_dependencies_start_no_process_of_the_engines_own(home):
    for number in range(20):
        home.script(f"d{number}")
    home.script("one", {"deps": [{"tags": f"d{number}"} for number in range(20)]})
    code = (
        "import subprocess, os, sys, cmind\n"
        "def refuse(*a, **k): raise SystemExit('a process was started')\n"
        "os.system = subprocess.Popen = os.posix_spawn = refuse\n"
        "r = cmind.access({'action': 'run', 'automation': 'script', 'tags': 'one'})\n"
        "sys.exit(r['return'])\n"
    )
    home.act("find", "script")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **home.env},
        cwd=home.work,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

import json
import signal
import time

import pytest

CLEANUP = """
import time, pathlib
def preprocess(i): print("start {0}"); return {{"return": 0}}
def cleanup(i): print("clean {0}"); return {{"return": 0}}
"""


def start_chain(home):
    """Start a run of three scripts with cleanups, the last of which waits; return it once that one does."""
    for name in ("first", "second"):
        home.script(name, customize=CLEANUP.format(name))
    home.script("outer", {"deps": [{"tags": "first"}]}, customize="""
import pathlib, time
def preprocess(i):
    r = i["automation"].run({"tags": "second"})
    if r["return"]: return r
    pathlib.Path("waits").touch()
    try:
        time.sleep(60)
    except Exception:
        print("swallowed")
    return {"return": 0}
def cleanup(i): print("clean outer"); return {"return": 0}
""")
    process = home.start("run", "script", "--tags=outer")
    while not (home.work / "waits").exists():
        assert process.poll() is None
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(("signum", "code", "name"), [
    (signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")])
def test_a_stopped_run_cleans_up_in_reverse_order(home, signum, code, name):
    process = start_chain(home)
    process.send_signal(signum)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == code
    cleaned = [line for line in output.splitlines() if line.startswith("clean")]
    assert cleaned == ["clean second", "clean outer", "clean first"]
    assert f"the run was stopped by {name}" in errors
    assert "Traceback" not in errors + output


def test_a_second_stop_interrupts_one_cleanup_only(home):
    home.script("first", customize=CLEANUP.format("first"))
    home.script("outer", {"deps": [{"tags": "first"}]}, customize="""
import pathlib, time
def preprocess(i): pathlib.Path("waits").touch(); time.sleep(60); return {"return": 0}
def cleanup(i): pathlib.Path("cleans").touch(); time.sleep(60); return {"return": 0}
""")
    process = home.start("run", "script", "--tags=outer")
    for name in ("waits", "cleans"):
        while not (home.work / name).exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "clean first" in output


def test_an_ignored_signal_stays_ignored(home):
    home.script("one", customize="""
import os, signal
def preprocess(i):
    os.kill(os.getpid(), signal.SIGHUP)
    print("still here")
    return {"return": 0}
""")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = home.cli("run", "script", "--tags=one")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.returncode == 0
    assert "still here" in done.stdout


def test_handlers_are_given_back(home):
    home.script("one")
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    home.run("one")
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before


@pytest.mark.parametrize("flag", ["-j", "--out=json"])
def test_json_has_standard_output_for_itself(home, flag):
    home.script("one", {"new_env_keys": ["CM_*"], "env": {"CM_X": "1"}}, run="echo noise",
                customize="def preprocess(i): print('noise'); return {'return': 0}\n")
    home.cli("find", "script")  # cmind announces its first index on standard output
    done = home.cli("run", "script", "--tags=one", flag, "--env.CM_GH_TOKEN=very-secret")
    result = json.loads(done.stdout)
    assert result["return"] == 0
    assert result["new_env"]["CM_X"] == "1"
    assert "noise" in done.stderr
    assert "very-secret" not in done.stdout


def test_silent_and_verbose(home):
    home.script("dep")
    home.script("one", {"deps": [{"tags": "dep"}]})
    home.cli("find", "script")  # cmind announces its first index on standard output
    lines = {flag: len(home.cli("run", "script", "--tags=one", flag).stdout.splitlines())
             for flag in ("-s", "--quiet", "-v")}
    assert lines["-s"] == 0
    assert lines["-s"] < lines["--quiet"] < lines["-v"]


def test_time_and_environment_are_printed_when_asked_for(home):
    home.script("one", {"new_env_keys": ["CM_*"], "default_env": {"CM_API_KEY": "very-secret", "CM_X": "1"}})
    output = home.cli("run", "script", "--tags=one", "--time", "--print_env").stdout
    assert "took 0." in output
    assert "CM_X=1" in output
    assert "very-secret" not in output


def test_flags_that_do_nothing_say_so(home):
    home.script("one")
    output = home.cli("run", "script", "--tags=one", "--docker_cache=no").stdout
    assert output.count("--docker_cache is accepted and ignored") == 1


def test_a_fault_of_the_engine_is_told_without_traceback(home, monkeypatch):
    home.script("one")
    from cm4vllm.engine import execution

    def broken(*_args):
        raise LookupError("an invariant broke")
    monkeypatch.setattr(execution, "select", broken)
    result = home.run("one")
    assert result["return"] == 1
    assert "an invariant broke" in result["error"]
    assert "test_session.py" in result["error"]

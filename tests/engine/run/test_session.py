import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.engine.waiting import wait_for

CLEANUP = """
import time, pathlib
def preprocess(i): print("start {0}"); return {{"return": 0}}
def cleanup(i): print("clean {0}"); return {{"return": 0}}
"""


def start_chain(home):
    """Start a run of three scripts with cleanups, the last of which waits; return it once that one does."""
    for name in ("first", "second"):
        home.script(name, customize=CLEANUP.format(name))
    home.script(
        "outer",
        {"deps": [{"tags": "first"}]},
        customize="""
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
""",
    )
    return started(home, "outer")


def started(home, tags):
    """Start a run; return it once a script of it has written that it waits."""
    process = home.start("run", "script", f"--tags={tags}")
    wait_for(home.work / "waits")
    return process


@pytest.mark.parametrize(
    ("signum", "code", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
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
    home.script(
        "outer",
        {"deps": [{"tags": "first"}]},
        customize="""
import pathlib, time
def preprocess(i): pathlib.Path("waits").touch(); time.sleep(60); return {"return": 0}
def cleanup(i): pathlib.Path("cleans").touch(); time.sleep(60); return {"return": 0}
""",
    )
    process = home.start("run", "script", "--tags=outer")
    for name in ("waits", "cleans"):
        wait_for(home.work / name)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "clean first" in output


def start_server(home):
    """Start a run whose script has started a server; return it once the server serves."""
    peer = Path(__file__).parents[2] / "serving" / "peer.py"
    home.script(
        "outer",
        customize=f"""
import pathlib, sys, time
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import start_all, stop
STARTED = []
def preprocess(i):
    wanted = [(ServerSettings(model="m", name="some-model"), pathlib.Path("server").absolute())]
    argv = [sys.executable, {str(peer)!r}, "{{port}}"]
    STARTED.extend(start_all(pathlib.Path(sys.executable), wanted, argv=argv))
    pathlib.Path("waits").touch()
    time.sleep(60)
    return {{"return": 0}}
def cleanup(i):
    stop(STARTED[0])
    return {{"return": 0}}
""",
    )
    return started(home, "outer")


@pytest.mark.parametrize(
    ("start", "first", "then"),
    [
        (start_chain, signal.SIGTERM, (signal.SIGTERM,)),
        (start_server, signal.SIGTERM, (signal.SIGHUP,)),
        (start_server, signal.SIGINT, (signal.SIGINT,)),
        (start_chain, signal.SIGINT, (signal.SIGTERM, signal.SIGINT)),
        (start_chain, signal.SIGHUP, (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_signals_one_after_another_end_a_run_without_a_traceback(home, start, first, then):
    process = start(home)
    process.send_signal(first)
    while process.poll() is None:
        for signum in then:
            process.send_signal(signum)
            time.sleep(0.002)
    output, errors = process.communicate(timeout=20)
    assert process.returncode in {code for signum in (first, *then) for code in (-signum, 128 + signum)}
    assert "Traceback" not in errors + output
    if {first, *then} == {signal.SIGINT}:
        assert process.returncode == 130 and "the run was stopped by Ctrl-C" in errors
    state = home.work / "server" / "supervisor.json"
    assert start is start_chain or gone(json.loads(state.read_text())["server"])


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_in_the_foreground_ctrl_c_ends_the_wait_and_another_signal_the_run(home, signum, code):
    home.script(
        "outer",
        customize="""
import pathlib
from cm4vllm.serving.supervision.own_supervisors import wait_for_end
def preprocess(i):
    wait_for_end(lambda: pathlib.Path("waits").touch(), "stopping the server")
    return {"return": 0}
""",
    )
    process = started(home, "outer")
    process.send_signal(signum)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, "stopping the server" in output) == (code, not code)
    assert "Traceback" not in errors


def gone(pid):
    """Wait until a process has ended."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return True


def test_an_ignored_signal_stays_ignored(home):
    home.script(
        "one",
        customize="""
import os, signal
def preprocess(i):
    os.kill(os.getpid(), signal.SIGHUP)
    print("still here")
    return {"return": 0}
""",
    )
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
    home.script(
        "one",
        {"new_env_keys": ["CM_*"], "env": {"CM_X": "1"}},
        run="echo noise",
        customize="def preprocess(i): print('noise'); return {'return': 0}\n",
    )
    home.act("find", "script")  # cmind announces its first index on standard output
    done = home.cli("run", "script", "--tags=one", flag, "--env.CM_GH_TOKEN=very-secret")
    result = json.loads(done.stdout)
    assert result["return"] == 0
    assert result["new_env"]["CM_X"] == "1"
    assert "noise" in done.stderr
    assert "very-secret" not in done.stdout


def test_silent_and_verbose(home):
    home.script("dep")
    home.script("one", {"deps": [{"tags": "dep"}]})
    home.act("find", "script")  # cmind announces its first index on standard output
    lines = {
        flag: len(home.cli("run", "script", "--tags=one", flag).stdout.splitlines()) for flag in ("-s", "--quiet", "-v")
    }
    assert lines["-s"] == 0
    assert lines["-s"] < lines["--quiet"] < lines["-v"]


def test_time_and_environment_are_printed_when_asked_for(home):
    home.script("one", {"new_env_keys": ["CM_*"], "default_env": {"CM_API_KEY": "very-secret", "CM_X": "1"}})
    begin = time.monotonic()
    output = home.cli("run", "script", "--tags=one", "--time", "--print_env").stdout
    (took,) = re.findall(r"took (\d+\.\d) s", output)
    assert float(took) < time.monotonic() - begin + 0.1
    assert "CM_X=1" in output
    assert "very-secret" not in output


def test_flags_that_do_nothing_say_so(home):
    home.script("one")
    output = home.cli("run", "script", "--tags=one", "--docker_cache=no").stdout
    assert output.count("--docker_cache is accepted and ignored") == 1


def test_a_fault_of_the_engine_is_told_without_traceback(home, monkeypatch):
    home.script("one")
    from cm4vllm.engine.run import execution

    def broken(*_args):
        raise LookupError("an invariant broke")

    monkeypatch.setattr(execution, "select", broken)
    result = home.run("one")
    assert result["return"] == 1
    assert "an invariant broke" in result["error"]
    assert "test_session.py" in result["error"]


def in_a_removed_folder(home, *words):
    """Run `cm` in a working directory that is removed before it starts."""
    gone = home.work / "gone"
    gone.mkdir()
    command = f'rmdir "{gone}" && exec "$0" -m cmind.cli "$@"'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, *words],
        cwd=gone,
        env=home.env,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("run", "script", "--tags=one"),
        ("dockerfile", "script", "--tags=one"),
        ("run", "script", "--tags=one", "--repro"),
    ],
)
def test_a_working_directory_that_was_removed_is_named(home, words):
    home.script("one", run="true\n")
    home.act("find", "script")
    done = in_a_removed_folder(home, *words)
    assert "Traceback" not in done.stderr
    assert done.returncode == 20, (done.stdout, done.stderr)
    assert "the working directory" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [("find", "script", "--tags=one"), ("test", "script", "one"), ("run", "script", "--tags=one", "--help")]
)
def test_what_needs_no_working_directory_works_without_one(home, words):
    home.script("one", run="true\n")
    home.act("find", "script")
    done = in_a_removed_folder(home, *words)
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_a_working_directory_that_a_script_removes_masks_no_error(home):
    home.script("one", run="rmdir $PWD; exit 7\n")
    home.script(
        "two",
        customize="""
import os
def preprocess(i):
    os.rmdir(os.getcwd())
    raise ValueError("the cause")
""",
    )
    for tags, text in (("one", "exit status 7"), ("two", "the cause")):
        work = home.work / tags
        work.mkdir()
        done = home.cli("run", "script", f"--tags={tags}", cwd=work)
        assert text in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("phase", ["deps", "prehook_deps", "posthook_deps", "post_deps"])
def test_a_script_that_depends_on_itself_is_refused(home, phase):
    home.script("one", {phase: [{"tags": "two"}]})
    home.script("two", {phase: [{"tags": "one"}]})
    result = home.run("one")
    assert result["return"] == 3
    assert "depends on itself" in result["error"]
    assert "one > two > one" in result["error"]
    assert "RecursionError" not in result["error"]


def test_a_script_whose_environment_grows_with_each_turn_is_refused_too(home):
    home.script("one", {"deps": [{"tags": "one", "env": {"CM_X": "<<<CM_X>>>x"}}]})
    result = home.run("one", env={"CM_X": "x"})
    assert result["return"] == 3
    assert "depends on itself" in result["error"]


def test_a_hook_that_runs_its_own_script_is_refused(home):
    home.script(
        "one",
        customize="""
def preprocess(i):
    return i["automation"].run({"tags": "one"})
""",
    )
    result = home.run("one")
    assert result["return"] == 3
    assert "depends on itself" in result["error"]


def test_a_script_may_depend_on_itself_in_another_environment(home):
    home.script(
        "one",
        {"deps": [{"tags": "one", "env": {"CM_INNER": "yes"}, "skip_if_env": {"CM_INNER": ["yes"]}}]},
        run="echo run >> runs\n",
    )
    assert home.run("one")["return"] == 0
    assert (home.work / "runs").read_text() == "run\nrun\n"

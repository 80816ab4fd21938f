"""The guardian: processes that run.sh started end with an engine that was killed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cm4vllm.engine.run.shell_script import Guardian


def wait_until(holds, condition):
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, condition
        time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # gone before it was opened, or before it was read
        return False


@pytest.mark.parametrize(
    "started", ["sleep 600 & echo $! > sleeper; wait", "sh -c 'echo $$ > sleeper; exec sleep 600'"]
)
def test_a_killed_engine_leaves_nothing_of_its_run_sh(home, started):
    home.script("one", run=started)
    process = home.start("run", "script", "--tags=one")
    sleeper = home.work / "sleeper"
    wait_until(lambda: sleeper.exists() and sleeper.read_text().endswith("\n"), "run.sh did not start")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not alive(int(sleeper.read_text())), "what run.sh started lives on")


def test_a_stop_within_the_start_of_run_sh_ends_it(home, monkeypatch):
    started = []

    class Stopped(subprocess.Popen):
        def __init__(self, *words, **given):
            super().__init__(*words, **given)
            if "pass_fds" in given:  # not the guardian itself
                started.append(self)
                raise KeyboardInterrupt

    home.script("one", run="echo $$ > sleeper; exec sleep 600")
    monkeypatch.setattr(subprocess, "Popen", Stopped)
    assert home.run("one")["return"] == 130
    try:
        started[0].communicate(timeout=20)
    finally:
        started[0].kill()


def test_what_an_ended_run_sh_left_running_is_not_touched(home):
    home.script("one", run="sleep 600 > /dev/null 2>&1 & echo $! > sleeper")
    assert home.cli("run", "script", "--tags=one").returncode == 0
    sleeper = int((home.work / "sleeper").read_text())
    time.sleep(0.1)
    try:
        assert alive(sleeper)
    finally:
        os.kill(sleeper, signal.SIGKILL)


def test_a_guardian_that_was_killed_harms_no_run():
    """Calls of a guardian without a process raise nothing."""
    guardian = Guardian()
    guardian.start()
    guardian._process.kill()
    guardian._process.wait()
    guardian.ended(os.getpid())
    guardian.close()

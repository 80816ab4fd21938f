"""Child processes: their output, their exit in words, and their end with their parent."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cm4vllm.common.programs.processes import exit_in_words, run

SRC = Path(__file__).parents[2] / "src"


def test_output_and_status_are_kept():
    done = run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"])
    assert not done.ok
    assert done.status == 7
    assert set(done.output.split()) == {"out", "err"}


def test_the_log_holds_everything_and_the_tail_its_end(tmp_path):
    done = run([sys.executable, "-c", "print('\\n'.join(map(str, range(500))))"], log=tmp_path / "log")
    assert (tmp_path / "log").read_text().count("\n") == 500
    assert done.tail(2) == "498\n499"


@pytest.mark.parametrize(
    ("status", "words"), [(7, "exit status 7"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_exit_in_words(status, words):
    assert exit_in_words(status) == words


CHILD = f"""
import sys, time
sys.path.insert(0, {str(SRC)!r})
from cm4vllm.common.programs.processes import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
print(child.pid, flush=True)
child.wait()
"""


def test_a_child_dies_with_its_parent_even_by_kill_9():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        words = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        pid = int((words - {"ready"}).pop())
        process.send_signal(signal.SIGKILL)
        process.wait()
    for _ in range(600):
        if not _alive(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the child outlived its parent by 30 s")


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:  # gone before it was opened, or before it was read
        return False


@pytest.mark.parametrize("logged", [False, True])
def test_what_a_command_started_ends_with_it_when_it_is_left(tmp_path, logged):
    pid = tmp_path / "pid"
    log = tmp_path / "log" if logged else None
    for timeout_s in (1, 20):  # in the first second the shell may have stood still
        begin = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            run(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"], log=log, timeout_s=timeout_s)
        assert time.monotonic() - begin < 50
        if pid.exists() and pid.read_text():
            break
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid.read_text())).wait(30)

"""The first process of a container, run outside of one: ends with its program, and with the writer of its pipe."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.serving.launched import gone

from cm4vllm.serving import containers

PROGRAM = Path(containers.__file__).parents[1] / "in_container" / "first_process.py"


@pytest.fixture
def pipe(tmp_path):
    """Yield a named pipe with a writer: its path, and the descriptor."""
    path = tmp_path / "supervisor"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    yield path, descriptor
    with contextlib.suppress(OSError):
        os.close(descriptor)


def start(pipe, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, pipe[0], *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def python(pipe, code: str) -> subprocess.Popen[str]:
    return start(pipe, sys.executable, "-c", code)


def test_it_ends_with_the_status_of_its_program(pipe):
    process = python(pipe, "raise SystemExit(7)")
    assert process.communicate(timeout=40)[0] == ""
    assert process.returncode == 7


def test_a_signal_reaches_the_program(pipe):
    code = "import signal, time; signal.signal(15, lambda *_: exit(3)); print('up', flush=True); time.sleep(60)"
    process = python(pipe, code)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(40) == 3
    process.stdout.close()


def test_a_program_that_is_killed_has_the_status_of_a_shell(pipe):
    process = python(pipe, "import os; os.kill(os.getpid(), 9)")
    process.communicate(timeout=40)
    assert process.returncode == 128 + signal.SIGKILL


def test_orphans_of_the_program_are_reaped(pipe):
    code = "import os, time\nif os.fork() == 0:\n    os._exit(0)\ntime.sleep(0.5)"
    process = python(pipe, code)
    process.communicate(timeout=40)
    assert process.returncode == 0


def test_it_ends_when_the_supervisor_is_gone(pipe):
    process = python(pipe, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    program = psutil.Process(int(process.stdout.readline()))
    began = time.monotonic()
    os.close(pipe[1])
    assert "the supervisor of this container has ended" in process.communicate(timeout=40)[0]
    assert process.returncode == 97
    assert time.monotonic() - began < 30
    assert gone([program])  # killed before, and perhaps not yet gone


def test_without_the_pipe_nothing_is_started(pipe, tmp_path):
    process = start((tmp_path / "none", 0), "/bin/echo", "started")
    assert "cannot be watched" in process.communicate(timeout=40)[0]
    assert process.returncode == 97


def test_a_program_that_does_not_exist_is_named(pipe):
    process = start(pipe, "/no/such/program")
    assert "/no/such/program cannot be started in the container" in process.communicate(timeout=40)[0]
    assert process.returncode == 127

"""Killed tests: nothing that they started with `cm` outlives them."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

#: Starts what a test starts by `cm.start`, here a process that would never end, and waits.
TESTS = """
import sys, time
from pathlib import Path
sys.path += [str(Path.cwd().parents[1]), str(Path.cwd().parent)]
from conftest import Cm
running = Cm(Path(sys.argv[1])).start(inside=(sys.executable, "-c", "import time; time.sleep(600)"))
print(running.process.pid, flush=True)
time.sleep(600)
"""


def test_what_a_test_started_ends_when_the_tests_are_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TESTS, tmp_path], cwd=Path(__file__).parent, text=True, stdout=subprocess.PIPE
    ) as tests:
        started = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    try:
        started.wait(10)
    except psutil.TimeoutExpired:
        started.kill()
        pytest.fail("it lives on")

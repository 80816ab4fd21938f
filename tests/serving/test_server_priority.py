"""A server's niceness while it is measured: its processes' and threads', and its session's."""

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.server_priority import give_way
from cm4vllm.serving.supervisor import descendants, start_supervised

#: A server with a second process and a second thread, as vLLM's has many.
SERVER = """
import subprocess, sys, threading, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path):
    process = start_supervised(
        [sys.executable, "-c", SERVER],
        {},
        spec=tmp_path / "spec",
        log=tmp_path / "log",
        state=tmp_path / "state",
        grace_s=1.0,
    )
    while len(descendants(process.pid)) < 2 or sum(len(threads(pid)) for pid in descendants(process.pid)) < 3:
        time.sleep(0.02)
    yield process.pid
    process.stdin.close()
    process.wait(20)


def threads(pid: int) -> list[int]:
    return [thread.id for thread in psutil.Process(pid).threads()]


def group(pid: int) -> str:
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text().split()[-1] if file.exists() else "none"


def record(supervisor: int, niceness: int, **more) -> ServerRecord:
    return ServerRecord(
        endpoint="",
        model_name="m",
        max_model_len=1,
        version="",
        supervisor_pid=supervisor,
        niceness=niceness,
        **{"owned": True, **more},
    )


def test_all_of_a_server_gives_way_and_its_supervisor_does_not(supervisor):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    give_way(record(supervisor, 7))
    priorities = {os.getpriority(os.PRIO_PROCESS, thread) for pid in descendants(supervisor) for thread in threads(pid)}
    assert priorities == {min(19, own + 7)}
    assert {group(pid) for pid in descendants(supervisor)} <= {"7", "none"}
    assert os.getpriority(os.PRIO_PROCESS, supervisor) == own
    assert group(supervisor) in ("0", "none")
    give_way(record(supervisor, 0))
    assert group(descendants(supervisor)[0]) in ("0", "none")


def test_a_member_gives_way_too_and_a_server_of_somebody_else_does_not(supervisor):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    give_way(record(supervisor, 7, owned=False))
    assert os.getpriority(os.PRIO_PROCESS, descendants(supervisor)[0]) == own
    first = record(supervisor, 7, owned=False, members=[record(supervisor, 5)])
    give_way(first)
    assert os.getpriority(os.PRIO_PROCESS, descendants(supervisor)[0]) == min(19, own + 5)


def test_a_number_that_is_no_supervisors_any_more_is_left_alone():
    child = psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        give_way(record(os.getpid(), 7))
        give_way(record(2**22 + 1, 7))
        assert child.nice() == psutil.Process().nice()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("grouped", [True, False])
def test_a_niceness_that_cannot_be_taken_back_is_told(supervisor, monkeypatch, capsys, grouped):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(Path, "exists", lambda _: grouped)
    give_way(record(supervisor, 0))
    said = "".join(capsys.readouterr())
    assert ("only root may lower it" in said) is not grouped

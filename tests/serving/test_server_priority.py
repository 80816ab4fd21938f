"""A server's niceness while it is measured: its processes' and threads', and its session's."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.supervision.server_priority import give_way
from cm4vllm.serving.supervision.supervisor import descendants, start_supervised

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


#: Starts sessions of a normal user, gives each a niceness, and prints what they have. It becomes that user after its
#: imports, and starts a command that every user may execute: Python and PATH may lie where only root may enter.
SESSIONS = """
import os, shutil, subprocess, sys
from pathlib import Path
from cm4vllm.serving.supervision.server_priority import _set_session
sleep = os.path.realpath(shutil.which("sleep"))
os.setgroups([]), os.setgid(65534), os.setuid(65534)
started = [subprocess.Popen([sleep, "600"], start_new_session=True) for _ in range(int(sys.argv[1]))]
for process in started:
    _set_session(process.pid, 5)
print(*[Path(f"/proc/{process.pid}/autogroup").read_text().split()[-1] for process in started])
for process in started:
    process.kill()
"""


@pytest.mark.parametrize("sessions", [2, 3, 5])
def test_every_session_of_a_normal_user_gets_it(sessions):
    if os.geteuid() or not Path("/proc/self/autogroup").exists():
        pytest.skip("only root may become another user; and the kernel must group sessions")
    words = [sys.executable, "-c", SESSIONS, str(sessions)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert said.stdout.split() == ["5"] * sessions and "WARNING" not in said.stdout


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

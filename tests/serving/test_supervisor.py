"""The supervisor as a process, by what it leaves: its state file, its log, and no other process."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from cm4vllm.records.server import ServerRecord
from cm4vllm.serving import supervisor as module
from cm4vllm.serving.supervision.own_supervisors import give_way
from cm4vllm.serving.supervisor import descendants, start_supervised

#: The folder in which the processes of a server find their sitecustomize.
SITE = Path(module.__file__).with_name("end_with_supervisor")


@pytest.fixture
def supervise(tmp_path):
    """Start a supervisor of a command; give its process."""
    started = []

    def start(*argv, env=None, grace_s=1.0, state=tmp_path / "state.json", last=(), **options):
        given = {"argv": argv, "env": env or {}, "grace_s": grace_s, "last": last}
        files = {"log": str(tmp_path / "server.log"), "state": str(state)}
        (tmp_path / "spec.json").write_text(json.dumps({**given, **files}))
        words = [sys.executable, "-m", module.__name__, str(tmp_path / "spec.json")]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options))
        return started[-1]

    yield start
    for process in started:
        process.stdin.close()
        process.wait(30)
        process.stderr.close()


def state(tmp_path) -> dict:
    return json.loads((tmp_path / "state.json").read_bytes())


def wait_for(path: Path, word: str = "") -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or word not in path.read_text():
        assert time.monotonic() < deadline, f"{path} holds no {word!r}"
        time.sleep(0.02)


def test_the_servers_own_end_is_noted_with_its_status(supervise, tmp_path):
    process = supervise(sys.executable, "-c", "print('hello'); raise SystemExit(7)")
    assert process.wait(30) == 7
    noted = state(tmp_path)
    assert 0 <= time.monotonic() - noted.pop("noted_at_s") < 30
    assert noted == {"supervisor": process.pid, "server": noted["server"], "status": 7, "reason": "it ended by itself"}
    assert (tmp_path / "server.log").read_text() == "hello\n"


def test_a_server_may_open_as_many_files_as_the_system_allows(supervise, tmp_path):
    """vLLM keeps a low soft limit where the hard one is below 65,535."""
    code = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    lower = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, 4096))
    assert supervise(sys.executable, "-c", code, preexec_fn=lower).wait(30) == 0
    assert (tmp_path / "server.log").read_text() == "4096 4096\n"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", ""])
def test_a_signal_and_the_pipes_end_end_the_server(supervise, tmp_path, name):
    process = supervise(sys.executable, "-uc", "import time; print('up'); time.sleep(60)", grace_s=20)
    wait_for(tmp_path / "server.log", "up")
    process.send_signal(getattr(signal, f"SIG{name}")) if name else process.stdin.close()
    process.wait(30)
    assert state(tmp_path)["status"] == -15
    assert state(tmp_path)["reason"] == (f"ended by SIG{name}" if name else "the run that owned it ended")


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace_period(supervise, tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = supervise(sys.executable, "-c", code, grace_s=0.5)
    wait_for(tmp_path / "server.log", "up")
    begin = time.monotonic()
    process.stdin.close()
    process.wait(30)
    assert 0.5 <= time.monotonic() - begin < 30
    assert state(tmp_path)["status"] == -9


def test_an_orderly_end_is_waited_for(supervise, tmp_path):
    code = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(0.5), print('saved'), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    process = supervise(sys.executable, "-c", code, grace_s=20)
    wait_for(tmp_path / "server.log", "up")
    process.stdin.close()
    process.wait(30)
    assert "saved" in (tmp_path / "server.log").read_text()
    assert state(tmp_path)["status"] == 0


def test_a_server_has_a_session_of_its_own_and_our_environment_without_our_packages(supervise, tmp_path, monkeypatch):
    """A service named vllm does not reach it, and its own path comes after ours."""
    for name, value in {"PYTHONPATH": "/ours", "VLLM_PORT": "tcp://10.0.0.7:8000", "VLLM_HOST_IP": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    names = "('PYTHONPATH', 'VLLM_PORT', 'VLLM_HOST_IP')"
    code = f"import os; print(os.getsid(0) == os.getpid(), *map(os.environ.get, {names}))"
    supervise(sys.executable, "-c", code, env={"PYTHONPATH": "/given"}).wait(30)
    assert (tmp_path / "server.log").read_text() == f"True {SITE}{os.pathsep}/given None 127.0.0.1\n"


def test_ended_orphans_do_not_stay_as_zombies(supervise, tmp_path):
    code = (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        if os.fork() == 0:\n"
        "            time.sleep(0.1)\n        os._exit(0)\n    os.wait()\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    process = supervise(sys.executable, "-c", code)
    wait_for(tmp_path / "server.log", "up")
    deadline = time.monotonic() + 30
    while len(children := psutil.Process(process.pid).children(recursive=True)) > 1:  # zombies are among them
        assert time.monotonic() < deadline, children
        time.sleep(0.02)
    assert [child.status() == psutil.STATUS_ZOMBIE for child in children] == [False]


def test_a_state_that_cannot_be_written_does_not_keep_the_server_alive(supervise, tmp_path):
    process = supervise(sys.executable, "-c", "pass", state="/proc/none/state.json")
    process.wait(30)
    assert process.stderr.read() == ""


def test_a_container_gets_the_pipe_a_name_and_the_supervisors_number(supervise, tmp_path):
    code = "import os, sys; print(*sys.argv[1:], os.listdir(sys.argv[1]), flush=True)"
    last = ["/bin/sh", "-c", f"echo {{container}} > {tmp_path}/removed"]
    process = supervise(sys.executable, "-c", code, "{watched}", "{container}", "{supervisor}", last=last)
    assert process.wait(30) == 0
    watched, name, supervisor, *files = (tmp_path / "server.log").read_text().split()
    assert (files, int(supervisor)) == (["['supervisor']"], process.pid)
    assert not Path(watched).exists()
    assert (tmp_path / "removed").read_text() == f"{name}\n"


# --- a server's niceness while it is measured: its processes' and threads', and its session's


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
    # By its state, which it writes when the server's process runs already, it is known as the server's supervisor.
    while not (tmp_path / "state").exists() or sum(len(threads(pid)) for pid in descendants(process.pid)) < 3:
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
from cm4vllm.serving.supervision.own_supervisors import _set_session
sleep = os.path.realpath(shutil.which("sleep"))
os.setgroups([]), os.setgid(65534), os.setuid(65534)
started = [subprocess.Popen([sleep, "600"], start_new_session=True) for _ in range(int(sys.argv[1]))]
for process in started:
    _set_session(process.pid, 5)
print(*[Path(f"/proc/{process.pid}/autogroup").read_text().split()[-1] for process in started])
for process in started:
    process.kill()
"""


def test_every_session_of_a_normal_user_gets_it(sessions=3):
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


def test_a_supervisor_is_known_by_the_same_words_in_every_version():
    """A version that knew it by another name would end the servers of this one as left by an earlier server."""
    assert module.__name__ == "cm4vllm.serving.supervisor"

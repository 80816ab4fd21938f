"""No process is left after any end of a server or of its owner."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import peer
from tests.serving.launched import PEER, STUBBORN, family, gone, launch

from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.common.records import read_record
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving import server as module
from cm4vllm.serving.server import SERVER_FILE, stop
from cm4vllm.serving.supervision import own_supervisors
from cm4vllm.serving.supervision.death_reasons import death_reason


def test_orphans_that_ignore_sigterm_end_too(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 1.0)
    record = launch(tmp_path, argv=[sys.executable, "-c", STUBBORN, *PEER[1:]])
    processes = family(record.supervisor_pid)
    assert len(processes) == 3
    stop(record)
    assert gone(processes, 0.1)


def test_the_servers_end_takes_its_orphans_along(tmp_path):
    record = launch(tmp_path, argv=[sys.executable, "-c", STUBBORN, *PEER[1:]])
    processes = family(record.supervisor_pid)
    next(
        process
        for process in processes
        if process.pid != record.supervisor_pid and peer.__file__ in process.cmdline()[1]
    ).kill()
    assert gone(processes)


OWNER = """
import sys, time
from pathlib import Path
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import (start_all)
parts = [(ServerSettings(model="m", name=sys.argv[2]), Path(sys.argv[1]))]
record = start_all(Path(sys.executable), parts, argv=sys.argv[3:])[0]
print("READY", flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path):
    """A process that owns a server with stubborn orphans, in a process group of its own."""
    words = [sys.executable, "-c", OWNER, str(tmp_path), peer.MODEL, sys.executable, "-c", STUBBORN, *PEER[1:]]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=die_with_parent
    )
    for line in process.stdout:
        if line.strip() == "READY":
            break
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_however_the_owner_ends_no_process_is_left(owner, tmp_path, signum):
    record = read_record(tmp_path / SERVER_FILE, ServerRecord)
    processes = family(record.supervisor_pid)
    assert len(processes) == 3
    os.killpg(owner.pid, signum)  # as Ctrl-C does: the whole group at once
    owner.wait(60)
    assert gone(processes)


@pytest.mark.parametrize(
    "killed", ["owner", "supervisor", "server", "owner supervisor", "supervisor server", "owner supervisor orphan"]
)
def test_whoever_is_killed_no_process_is_left(owner, tmp_path, killed):
    record = read_record(tmp_path / SERVER_FILE, ServerRecord)
    supervisor, *others = family(record.supervisor_pid)
    server = next(process for process in others if peer.__file__ in process.cmdline()[1])
    orphan = next(process for process in others if process != server)
    processes = {"owner": psutil.Process(owner.pid), "supervisor": supervisor, "server": server, "orphan": orphan}
    for signum in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another's end before its own
        for who in killed.split():
            os.kill(processes[who].pid, signum)
    assert gone([supervisor, *others])


def test_a_killed_supervisor_is_told_as_the_cause(tmp_path):
    record = launch(tmp_path)
    processes = family(record.supervisor_pid)
    processes[0].kill()
    assert gone(processes)
    assert "its supervisor was killed" in death_reason(record)
    stop(record)


#: Has the title of an engine, and ends when it is told to.
ENGINE = """
import os, subprocess, sys
subprocess.Popen(["VLLM::EngineCore", "-c", "import time; time.sleep(600)"], executable=sys.executable)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def engines(record: ServerRecord) -> list[psutil.Process]:
    return [process for process in family(record.supervisor_pid) if process.cmdline()[0] == "VLLM::EngineCore"]


def wait_until_watched(record: ServerRecord) -> None:
    """Wait until the supervisor has read that its server is ready: it tells the end of each engine from then on."""
    pipe, deadline = own_supervisors._owned[record.supervisor_pid].stdin, time.monotonic() + 30
    while any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timing
def test_the_end_of_an_engine_is_the_servers_end_and_is_told_within_2_seconds(tmp_path):
    record = launch(tmp_path, argv=[sys.executable, "-c", ENGINE, *PEER[1:]])
    processes = family(record.supervisor_pid)
    (engine,) = engines(record)
    wait_until_watched(record)
    engine.kill()
    assert gone(processes, 2)
    assert "its process VLLM::EngineCore" in death_reason(record)
    assert f"({engine.pid}) ended, killed by SIGKILL" in death_reason(record)


#: Has an engine that forks: the copy has the engine's title, and ends before it, as one does that runs a command.
FORKING_ENGINE = ENGINE.replace("import time;", "import os, time; os.fork();")


def test_a_copy_that_an_engine_has_forked_is_no_engine(tmp_path):
    record = launch(tmp_path, argv=[sys.executable, "-c", FORKING_ENGINE, *PEER[1:]])
    deadline = time.monotonic() + 30
    while len(titled := engines(record)) < 2:  # the server may be ready before its engine has forked
        assert time.monotonic() < deadline, titled
        time.sleep(0.02)
    engine, copy = sorted(titled, key=lambda process: process.parent() in titled)
    wait_until_watched(record)
    copy.terminate()
    assert gone([copy])
    time.sleep(1.0)
    assert death_reason(record) is None
    engine.kill()
    assert gone([engine, psutil.Process(record.supervisor_pid)])
    assert f"({engine.pid}) ended, killed by SIGKILL" in death_reason(record)


#: Does not watch its supervisor (-I ignores PYTHONPATH), as a process of the server that is no Python would.
UNWATCHED = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.timing  # any other test that starts a server would end what is left
def test_what_a_killed_supervisor_leaves_is_ended_by_the_next_start_and_nothing_else(tmp_path, capsys):
    stranger = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
    other = launch(tmp_path / "other", argv=[sys.executable, "-c", UNWATCHED, *PEER[1:]])
    record = launch(tmp_path / "first", argv=[sys.executable, "-c", UNWATCHED, *PEER[1:]])
    try:
        supervisor, *others = family(record.supervisor_pid)
        stray = next(process for process in others if "-I" in process.cmdline())
        supervisor.kill()
        assert gone([process for process in others if process != stray])
        assert stray.is_running()
        stop(launch(tmp_path / "second"))
        assert gone([stray], 1)
        assert f"({stray.pid})" in capsys.readouterr().out
        assert death_reason(other) is None
        assert stranger.poll() is None
    finally:
        stop(other)
        stranger.kill()
        stranger.wait()

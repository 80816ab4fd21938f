"""Leftovers of a killed server: its supervisor or the next start removes sockets and shared memory."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.serving.supervision.ipc_files import IpcFiles, remove_abandoned, require_shared_memory
from cm4vllm.serving.supervision.own_supervisors import end_orphans
from cm4vllm.serving.supervisor import READY, SUPERVISOR_PIPE, start_supervised

#: As vLLM's processes: a socket named by a uuid, a segment of shared memory, and a semaphore that two processes share
#: by its name; as the client of MLPerf Endpoints: a folder with an open file, and one with a socket. It removes none.
SERVER = """
import mmap, os, signal, socket, sys, time, uuid
from _multiprocessing import SemLock
from pathlib import Path
place = os.path.join(os.environ["VLLM_RPC_BASE_PATH"], str(uuid.uuid4()))
socket.socket(socket.AF_UNIX).bind(place)
segment = f"/dev/shm/psm_{uuid.uuid4().hex[:8]}"
memory = os.open(segment, os.O_RDWR | os.O_CREAT)
os.ftruncate(memory, 4096)
held = mmap.mmap(memory, 4096)
name = f"/mp-{uuid.uuid4().hex[:8]}"
lock = SemLock(1, 1, 1, name, False)
events, ipc = (Path("/dev/shm", f"{kind}_{uuid.uuid4().hex[:8]}") for kind in ("benchmark", "zmq"))
events.mkdir()
ipc.mkdir()
opened = (events / "events").open("w")
socket_there = socket.socket(socket.AF_UNIX)
socket_there.bind(str(ipc / "commands"))
print(place, segment, f"/dev/shm/sem.{name[1:]}", events, ipc, flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder, for this test alone, with a path that a socket may have."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


def supervised(folder, argv):
    files = {name: folder / name for name in ("spec", "log", "state")}
    return start_supervised(argv, {}, **files, grace_s=1.0)


@pytest.fixture
def started(tmp_path, temporary):
    """Start such a server; give its supervisor, its process, and the files that it made."""
    log, supervisor = tmp_path / "log", supervised(tmp_path, [sys.executable, "-c", SERVER])
    while not (log.exists() and log.read_text().endswith("\n")):
        time.sleep(0.02)
    files = [Path(word) for word in log.read_text().split()]
    assert all(file.exists() for file in files)
    assert files[0].is_relative_to(temporary)
    supervisor.stdin.write(READY)
    supervisor.stdin.flush()
    while len(list(files[0].parent.iterdir())) < len(files):
        time.sleep(0.02)
    (server,) = [int(pid) for pid in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()]
    yield supervisor, server, files
    supervisor.stdin.close()
    supervisor.wait(20)


@pytest.mark.parametrize("how", ["asked", "server killed"])
def test_the_supervisor_removes_what_the_server_left(started, how):
    supervisor, server, files = started
    if how == "asked":
        supervisor.stdin.close()
    else:
        os.kill(server, signal.SIGKILL)
    supervisor.wait(20)
    assert not any(file.exists() for file in [*files, files[0].parent])


def test_where_the_supervisor_is_killed_too_the_next_cleaning_removes_it_and_not_a_living_servers(started):
    supervisor, server, files = started
    end_orphans()
    assert all(file.exists() for file in files)
    supervisor.kill()
    with contextlib.suppress(ProcessLookupError):  # the kernel has killed it with its supervisor
        os.kill(server, signal.SIGKILL)
    supervisor.wait(20)
    assert all(file.exists() for file in files)
    end_orphans()
    assert not any(file.exists() for file in [*files, files[0].parent])


#: As vLLM's file of torch.distributed; and what else programs leave in the folder for temporary files.
LEFT = """
import os, tempfile, time, uuid
from pathlib import Path
place = Path(tempfile.gettempdir())
(place / f"vllm_dist_{uuid.uuid4().hex}").write_text("store")
(place / "pymp-left").mkdir()
(place / "pymp-left" / "file").touch()
print(place, os.environ["RAY_TMPDIR"], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["asked", "server killed", "all killed"])
def test_a_server_leaves_nothing_in_the_folder_for_temporary_files(tmp_path, how):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        code = (
            "import sys, time; from cm4vllm.serving.supervisor import start_supervised\n"
            "from pathlib import Path\n"
            "words = [sys.executable, '-c', sys.argv[1]]; at = Path(sys.argv[2])\n"
            "begun = start_supervised(words, {}, spec=at / 'spec', log=at / 'log', state=at / 'state', grace_s=1.0)\n"
            "print(begun.pid, flush=True); sys.stdin.read(); begun.stdin.close(); begun.wait(20)\n"
            "from cm4vllm.serving.supervision.own_supervisors import end_orphans; end_orphans()"
        )
        env = {**os.environ, "TMPDIR": folder}
        env.pop("VLLM_RPC_BASE_PATH", None)
        owner = subprocess.Popen(
            [sys.executable, "-c", code, LEFT, str(tmp_path)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        supervisor = int(owner.stdout.readline())
        while not ((tmp_path / "log").exists() and (tmp_path / "log").read_text().endswith("\n")):
            time.sleep(0.02)
        place, ray = (tmp_path / "log").read_text().split()
        assert Path(place).is_relative_to(folder) and ray == folder
        own = Path(place).parent.name
        assert {path.name for path in Path(folder).iterdir()} == {own, f".{own}.cm4vllm.json"}
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        for pid in {"asked": [], "server killed": children, "all killed": [supervisor, *children]}[how]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        owner.communicate("", timeout=60)
        assert list(Path(folder).iterdir()) == []


def test_a_socket_fits_where_the_temporary_folders_path_is_too_long_for_one(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path / ("x" * 60)))
    ipc_files = IpcFiles.begin()
    try:
        assert len(f"{ipc_files.folder}/01234567-89ab-cdef-0123-456789abcdef") <= 107
    finally:
        ipc_files.remove()
    assert not ipc_files.folder.exists()


def test_a_program_or_its_place_for_sockets_that_cannot_be_made_leaves_nothing(tmp_path, temporary, monkeypatch):
    supervisor = supervised(tmp_path, ["/no/such/program"])
    supervisor.communicate(timeout=20)
    assert supervisor.returncode == 127
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/proc/none")
    supervisor = supervised(tmp_path, [sys.executable, "-c", ""])
    supervisor.communicate(timeout=20)
    assert supervisor.returncode == 127
    assert "/proc/none" in (tmp_path / "state").read_text()


def test_a_machine_without_shared_memory_is_refused_with_the_remedy():
    require_shared_memory()
    hidden = 'mount -t tmpfs -o size=4k,ro none /dev/shm && exec "$@"'
    program = (
        "from cm4vllm.common.errors import NotWritable\n"
        "from cm4vllm.serving.supervision.ipc_files import require_shared_memory\n"
        "try: require_shared_memory()\n"
        "except NotWritable as error: print(error)\n"
    )
    argv = ["unshare", "--mount", "--map-root-user", "sh", "-c", hidden, "-", sys.executable, "-c", program]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no mount namespace can be made here")
    assert "nothing can be made in /dev/shm" in done.stdout and "mount -t tmpfs tmpfs /dev/shm" in done.stdout


def test_shared_memory_is_tried_without_another_process(tmp_path, monkeypatch):
    """Python starts a process that tracks what others share where they are not forked, and starts it without -P."""
    monkeypatch.chdir(tmp_path)
    program = (
        "import multiprocessing, multiprocessing.resource_tracker as tracker\n"
        "from cm4vllm.serving.supervision.ipc_files import require_shared_memory\n"
        "multiprocessing.set_start_method('spawn')\n"
        "require_shared_memory()\n"
        "assert tracker._resource_tracker._pid is None\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


@pytest.mark.parametrize("name", ["benchmark_mydata", "psm_mine"])
def test_folders_of_others_in_shared_memory_are_left_alone_however_old(name):
    mine = Path("/dev/shm") / f"{name}{os.getpid()}"
    mine.mkdir()
    try:
        (mine / "data").write_text("mine")
        os.utime(mine, (1, 1))
        end_orphans()
        assert (mine / "data").read_text() == "mine"
    finally:
        shutil.rmtree(mine)


def test_shared_memory_that_another_process_made_again_under_the_same_name_is_left_alone(temporary):
    used = Path("/dev/shm") / f"benchmark_again{os.getpid()}"
    used.mkdir()
    ipc_files = IpcFiles.begin()
    try:
        with (used / "events").open("w"):
            ipc_files.note_memory([os.getpid()])
        used.rename(used.with_name(f"{used.name}-moved"))  # its inode is not given to the next
        used.mkdir()
        (used / "data").write_text("of another process")
        ipc_files.remove()
        assert (used / "data").read_text() == "of another process"
    finally:
        shutil.rmtree(used)
        shutil.rmtree(used.with_name(f"{used.name}-moved"), ignore_errors=True)


def test_folders_without_our_note_and_those_of_another_job_are_left_alone(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    mine = temporary / "cm4vllm-ipc-mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with scratch_folder() as folder:
        remove_abandoned()
        assert folder.exists()
    assert (mine / "notes.txt").read_text() == "mine"
    shutil.rmtree(mine)


@pytest.mark.parametrize("supervisor", [1, 99999])
def test_a_process_of_another_pid_namespace_is_left_alone(supervisor):
    """A container has its own numbers: its supervisor's is that of another process here, or of none."""
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "sleep", "60"]
    env = {**os.environ, SUPERVISOR_PIPE: f"/proc/{supervisor}/fd/5"}
    if subprocess.run([*words[:-2], "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system allows no PID namespace")
    inside = "import subprocess, os; subprocess.Popen(['sleep', '60']).wait()"
    outer = {name: value for name, value in env.items() if name != SUPERVISOR_PIPE}
    words[-2:] = ["env", f"{SUPERVISOR_PIPE}={env[SUPERVISOR_PIPE]}", sys.executable, "-c", inside]
    with subprocess.Popen(words, env=outer):
        try:
            deadline = time.monotonic() + 10
            while not (sleeping := marked_as(env[SUPERVISOR_PIPE], "sleep")) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert sleeping
            end_orphans()
            assert marked_as(env[SUPERVISOR_PIPE], "sleep") == sleeping
        finally:
            for pid in marked_as(env[SUPERVISOR_PIPE], "sleep"):  # the program around it ends with it
                os.kill(pid, signal.SIGKILL)


def marked_as(pipe, program):
    """Return the processes of a program that have this pipe in their environment."""
    sleeping = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marked = f"{SUPERVISOR_PIPE}={pipe}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if marked and (folder / "comm").read_text().strip() == program:
                sleeping.append(int(folder.name))
    return sorted(sleeping)


#: A job in a container with `--ipc=host`: /dev/shm and /tmp are those of the host, the processes have other numbers.
INSIDE = """
import sys, time; from pathlib import Path; from cm4vllm.serving.supervisor import READY, start_supervised
at = Path(sys.argv[2]); words = [sys.executable, '-c', sys.argv[1]]
begun = start_supervised(words, {}, spec=at / 'spec', log=at / 'log', state=at / 'state', grace_s=1.0)
while not ((at / 'log').exists() and (at / 'log').read_text().endswith('\\n')): time.sleep(0.02)
begun.stdin.write(READY); begun.stdin.flush()
print((at / 'log').read_text(), end='', flush=True)
sys.stdin.readline()
from cm4vllm.serving.supervision.own_supervisors import end_orphans; end_orphans(); print('cleaned', flush=True)
sys.stdin.readline()
begun.stdin.close(); begun.wait(20)
"""


def test_a_job_in_a_container_and_one_outside_leave_each_others_shared_memory_alone(started, tmp_path):
    words = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system allows no PID namespace")
    _, _, ours = started
    (tmp_path / "inside").mkdir()
    words += [sys.executable, "-c", INSIDE, SERVER, str(tmp_path / "inside")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as container:
        theirs = [Path(word) for word in container.stdout.readline().split()]
        assert len(theirs) == len(ours) and not set(theirs) & set(ours)
        while len(list(theirs[0].parent.iterdir())) < len(theirs):  # each is noted
            time.sleep(0.02)
        end_orphans()
        remove_abandoned()
        assert all(file.exists() for file in theirs)
        container.stdin.write("\n")
        container.stdin.flush()
        assert container.stdout.readline() == "cleaned\n"
        assert all(file.exists() for file in ours)
        container.communicate("\n", timeout=60)
    assert not any(file.exists() for file in [*theirs, theirs[0].parent])
    assert all(file.exists() for file in ours)

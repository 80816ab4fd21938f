"""A job of MLPerf Endpoints whose processes are killed: the same command finishes it, and nothing is left behind."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cm4vllm.campaign.ledger import State, read_ledger
from cm4vllm.common.errors import RunIncomplete
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.serving.supervision.ipc_files import BASE
from cm4vllm.serving.supervisor import descendants

JOB = Path(__file__).with_name("small_curve.py")
ROOT = Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")
POINTS = range(1, 8)


class Curve:
    """A job in a folder of its own; `client` is the record of the client, None for small_client.py."""

    #: The reference client takes ten to twenty seconds to start, for three probes and for each point.
    patience_s, patience_with_client_s = 120.0, 400.0

    def __init__(self, folder, client=None, *given, **env):
        self.folder, self.out, self.log = folder, folder / "results" / "endpoints" / "test", folder / "job.log"
        self.shared = set()
        self.held = folder / "held"
        self.held.mkdir()
        self.env = {**env, "SMALL_HELD": str(self.held)}
        if client:
            self.patience_s = self.patience_with_client_s
        self.arguments = [sys.executable, JOB, folder, *([client] if client else []), *given]

    def start(self):
        with self.log.open("w") as log:
            return subprocess.Popen(
                self.arguments,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests"))), **self.env},
            )

    def hold(self, *points):
        """Have small_client.py stay at the first answer of these points, so that none ends before it is killed."""
        for point in points:
            (self.held / f"point-{point}").touch()

    def release(self, point):
        """Have the next attempt at a point made to its end."""
        (self.held / f"point-{point}").unlink()

    def planned(self, process):
        """Wait for the planned curve; return its points."""
        path, deadline = self.out / "curve" / "curve.json", time.monotonic() + self.patience_s
        while not path.exists():
            assert process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return json.loads(path.read_text())["plan"]["points"]

    def wait_for(self, process, point, attempt, beyond=0):
        """Wait until the client of an attempt has `beyond` answers; return the ids of it and its supervisor."""
        deadline = time.monotonic() + self.patience_s
        while True:
            assert process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            entered = read_ledger(self.out).states.get(f"point {point}")
            if entered is not None and entered.last.state is State.RUNNING and entered.last.attempt == attempt:
                client = self.processes(f"point-{point}")
                if client is not None and self.answers(point) > beyond and (used := noted_memory_of(*client)):
                    self.shared |= used
                    return client
            time.sleep(0.05)

    def answers(self, point):
        """Return how many answers the client of a point shows."""
        log = self.out / "points" / f"point-{point}.log"
        return max(map(int, re.findall(rb"(\d+)/\d+ \[", log.read_bytes())), default=0) if log.exists() else 0

    def processes(self, name):
        """Return the ids of a client and of its supervisor; None while it does not run."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.out / "points" / f"{name}.spec.json") in words and (pids := descendants(process.pid)):
                return pids[0], process.pid
        return None

    def server(self):
        return json.loads((self.out / "server" / "supervisor.json").read_text())["server"]

    def digests(self, points):
        return {
            str(path.relative_to(self.out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for point in points
            for path in sorted((self.out / "points" / f"point-{point}").rglob("*"))
            if path.is_file()
        }

    def attempts(self):
        return [read_ledger(self.out).states[f"point {point}"].attempts for point in POINTS]

    def left(self):
        """Return the processes that have the job's folder in their environment or on their command line."""
        here = str(self.folder)
        left = []
        for process in psutil.process_iter():
            try:
                if here in " ".join([*process.cmdline(), *process.environ().values()]) and process.pid != os.getpid():
                    left.append(process)
            except psutil.Error:
                continue
        return [process.cmdline() for process in psutil.wait_procs(left, 30)[1]]


def noted_memory_of(client, supervisor):
    """Return the shared memory of a client once its supervisor, which looks once a second, has noted all of it."""
    used = shared_memory_of([client, supervisor, *descendants(supervisor)])
    try:
        noted = Path(psutil.Process(client).environ()[BASE])
    except psutil.NoSuchProcess:
        return set()
    return used if all((noted / f"used-{path.lstat().st_ino}").is_symlink() for path in used) else set()


def shared_memory_of(pids):
    """Return what processes have open or mapped below /dev/shm: files and, for those in a folder, the folder."""
    used, inodes = set(), set()
    for pid in pids:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            inodes |= {int(inode) for inode in re.findall(r" (\d+) +/dev/shm/", maps)}
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            used |= {SHARED_MEMORY / link.split("/")[3] for link in links if link.startswith("/dev/shm/")}
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(OSError):
            used |= {path} if path.stat().st_ino in inodes else set()
    return used


def killed_in_turn(curve):
    """Kill the job in its fourth point; in its next run a client, the server, a supervisor; then stop a client."""
    curve.hold(4, 5, 6, 7)
    process = curve.start()
    curve.wait_for(process, 4, 1)
    process.kill()
    process.wait()
    assert curve.left() == []
    finished = curve.digests([1, 2, 3])
    assert len(finished) > 9
    process = curve.start()
    client, _ = curve.wait_for(process, 4, 2)
    curve.release(4)
    os.kill(client, signal.SIGKILL)
    curve.wait_for(process, 5, 1)
    curve.release(5)
    os.kill(curve.server(), signal.SIGKILL)
    _, supervisor = curve.wait_for(process, 6, 1)
    curve.release(6)
    os.kill(supervisor, signal.SIGKILL)
    client, _ = curve.wait_for(process, 7, 1)
    curve.release(7)
    os.kill(client, signal.SIGINT)
    assert process.wait(curve.patience_s) == 0, curve.log.read_text()
    output = curve.log.read_text()
    assert curve.digests([1, 2, 3]) == finished
    assert curve.attempts()[3:] == [3, 2, 2, 2]
    for point in (1, 2, 3):
        assert f"point {point}: kept" in output
    for words in (
        "point 4: attempt 1 of 2 is made again: the reference client ended early: killed by SIGKILL",
        "point 5: attempt 1 of 2 is INVALID, and the server is started again: the server ended during the run",
        "point 6: attempt 1 of 2 is made again: the reference client ended early: its supervisor was killed",
        "point-7 is not whole",
    ):
        assert words in output, output
    assert curve.left() == []
    assert curve.shared
    assert [path for path in curve.shared if path.exists()] == []


def test_a_curve_whose_processes_end_early_in_turn_is_finished_by_the_same_command(tmp_path):
    """The points are given, and the last one asks for a server with further options."""
    given = ("CM_MLPERF_ENDPOINTS_POINTS_GIVEN=1,2,4,7,13,23,40", "CM_MLPERF_ENDPOINTS_POINT_ARGS=40: --max-num-seqs=8")
    interrupted = tmp_path / "interrupted"
    curve = Curve(tmp_path, None, "SECONDS=0.1", *given, SMALL_INTERRUPTED=str(interrupted))
    ends_early_at_each_attempt(curve)
    curve.release(1)
    killed_in_turn(curve)

    # An interrupt in an accuracy run fails the point, and it is made again.
    assert interrupted.exists()
    assert re.search("[1-8] of 8 samples of the accuracy run were issued", ledger_of(curve))
    assert sorted(curve.attempts()[:3]) == [1, 2, 3]
    records = [json.loads((curve.out / f"points/point-{number}/point.json").read_text()) for number in POINTS]
    assert [record["server"]["argv"].count("--max-num-seqs=8") for record in records] == [0] * 6 + [1]


def ends_early_at_each_attempt(curve):
    """Stop the client of the first point at each attempt: the point fails by its counts."""
    curve.hold(1)
    process = curve.start()
    for attempt in (1, 2):
        os.kill(curve.wait_for(process, 1, attempt)[0], signal.SIGINT)
    assert process.wait(curve.patience_s) == RunIncomplete.exit_code
    output = curve.log.read_text()
    assert "samples were issued" in output and "run the same command again" in output
    assert not (curve.out / "points" / "point-1" / "point.json").exists()
    assert curve.left() == []


def ledger_of(curve):
    return (curve.out / "ledger.jsonl").read_text()


@pytest.mark.long
def test_an_interrupt_in_an_accuracy_run_of_the_reference_client_is_found(tmp_path, reference_client):
    """After it the client scores what it has, calls that complete, and ends with 0."""
    samples = 60
    curve = Curve(tmp_path, reference_client, f"SAMPLES={samples}")
    process = curve.start()
    number = next(n for n, point in enumerate(curve.planned(process), 1) if point["accuracy"])
    client = curve.wait_for(process, number, 1, beyond=curve.planned(process)[number - 1]["samples"])
    os.kill(client[0], signal.SIGINT)
    curve.wait_for(process, number, 2)
    assert f"of {samples} samples of the accuracy run were issued" in ledger_of(curve)
    process.kill()
    process.wait()
    assert curve.left() == []


@pytest.mark.long
def test_the_reference_clients_processes_are_killed_in_turn(tmp_path, reference_client):
    killed_in_turn(Curve(tmp_path, reference_client))

"""One job in a folder of its own, what is known of it, and what may happen to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import psutil

from clients.programs import compile_program
from cm4vllm.campaign.ledger import LEDGER_FILE, State, read_ledger
from cm4vllm.campaign.live.status import STATUS_FILE
from cm4vllm.campaign.rehearsal.profile import FAULT_FILE
from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.files import sha256_of
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.common.records import read_record
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord

#: Seconds that a job on the fast server may take, and that processes may take to end.
JOB_S, END_S = 240.0, 20.0
#: The environment variable by which the processes of a trial are known.
MARK = "FAULT_TRIAL"
#: Between two looks whether the moment has come.
LOOK_S = 0.05
#: Seconds that a run is taken to last whose number of samples LoadGen alone knows.
UNKNOWN_S = 10.0
#: The bytes of the small file system: what the job wants free before it begins, and a little more.
DISK_BYTES = 536 * 2**20
#: The difference allowed between LoadGen's rate and that by the monotonic clock: LoadGen counts from its first query.
RATE_APART = 0.5
#: The folder of the segments of shared memory.
SHARED_MEMORY = Path("/dev", "shm")
_CLOCK_FILE, _FAULT_FILE = "clock", "fault"


@dataclass(frozen=True)
class JobKind:
    """A kind of job: `argv` starts it in a folder; `runs` are the runs that it makes, each as SCENARIO/MODE.

    `cm` are words of the command line of its own process, `server` those of its server's. It takes at most `longest_s`.
    With `in_runs` a fault happens during a LoadGen run, when a drawn share of its samples is done.
    """

    argv: Callable[[Path], list[str]]
    runs: frozenset[str]
    cm: str
    server: str
    longest_s: float = JOB_S
    in_runs: bool = False


@dataclass(frozen=True)
class Fault:
    """An event that happens to a job. `loses` is true where it removes finished runs.

    `codes` are the exit codes of the job that it may end with, where they are known; a signal that comes before the job
    has begun to handle it ends its process.
    """

    happen: Callable[[Trial], None]
    loses: bool = False
    codes: tuple[int, ...] = ()
    with_disk: bool = False
    with_clock: bool = False
    on_terminal: bool = False
    ignores_hangup: bool = False


@dataclass
class Trial:
    """A job in a folder of its own, and the fault that happens to it.

    It happens `moment_s` after the job's start, or where `run` is named, as soon as this run, SCENARIO/MODE, has done
    that `share` of its samples. `step` was then under way, and `hit` are words of the
    command line of the process that was killed.
    """

    seed: int
    folder: Path
    kind: JobKind
    name: str = ""
    moment_s: float = 0.0
    run: str = ""
    share: float = 0.0
    step: str = ""
    hit: str = ""
    code: int = 0
    wrong: list[str] = field(default_factory=list)
    attempts: int = 0
    clock: Path | None = None
    _terminal: int = -1
    memory: set[Path] = field(default_factory=set)

    @property
    def out(self) -> Path:
        return self.folder / "results" / "test"

    def start(self, fault: Fault | None = None) -> subprocess.Popen[bytes]:
        """Start the job, for a fault that needs it on a terminal, or with a clock of its own."""
        env = {**os.environ, MARK: str(self.folder), "TERM": "xterm", FAULT_FILE: str(self.folder / _FAULT_FILE)}
        if self.clock is not None:
            env |= {"LD_PRELOAD": str(self.clock), "CLOCK_FILE": str(self.folder / _CLOCK_FILE)}
        on_terminal = fault is not None and fault.on_terminal
        hangup = signal.SIG_IGN if fault is not None and fault.ignores_hangup else signal.SIG_DFL

        def take_terminal() -> None:
            die_with_parent()
            if on_terminal:
                signal.signal(signal.SIGHUP, hangup)
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        with (self.folder / "job.log").open("ab") as log:
            place: int | IO[bytes] = log
            if on_terminal:
                self._terminal, place = pty.openpty()
            process = subprocess.Popen(
                self.kind.argv(self.folder),
                stdin=place if on_terminal else subprocess.DEVNULL,
                stdout=place,
                stderr=place,
                start_new_session=True,
                preexec_fn=take_terminal,
                env=env,
            )
            if isinstance(place, int):
                os.close(place)
                threading.Thread(target=self._read_terminal, daemon=True).start()
        return process

    def _read_terminal(self) -> None:
        with (self.folder / "job.log").open("ab") as log, contextlib.suppress(OSError):
            while data := os.read(self._terminal, 65536):
                log.write(data)
                log.flush()

    def close_terminal(self) -> None:
        """Close the terminal as a window is closed; the reading thread ends with it."""
        terminal, self._terminal = self._terminal, -1
        if terminal >= 0:
            # A descriptor that a thread reads stays open until the read ends: have the kernel hang up at once.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDONLY), terminal)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the moment of the fault, or the end of the job."""
        if not self.run:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.moment_s)
            return
        began = time.monotonic()
        while process.poll() is None and not self.in_run():
            time.sleep(LOOK_S)
        self.moment_s = time.monotonic() - began

    def in_run(self) -> bool:
        """Return True if the run has done its share of samples, or has ended before that was seen."""
        name = self.run.replace("/", " ")
        state = read_ledger(self.out).states.get(name)
        if state is not None and state.last.state not in (State.PLANNED, State.RUNNING):
            return True
        status = object_of(self.out / STATUS_FILE)
        under_way = {step["name"] for step in status.get("steps", ()) if step["state"] == State.RUNNING}
        if name not in under_way or not (run := status["run"]):
            return False
        if run["total"]:
            return bool(run["done"] >= max(1, self.share * run["total"]))
        return bool(run["elapsed_s"] >= self.share * UNKNOWN_S)

    def processes(self, words: str = "") -> list[int]:
        """Return the processes of the trial, those whose command line has these words."""
        every = psutil.process_iter(["environ", "cmdline"])
        marked = (process for process in every if (process.info["environ"] or {}).get(MARK) == str(self.folder))
        return [process.pid for process in marked if words in " ".join(process.info["cmdline"] or ())]

    def note_memory(self) -> None:
        """Note the segments of shared memory that processes of the trial have mapped: they must be gone at its end."""
        for pid in self.processes():
            with contextlib.suppress(psutil.Error):
                files = (entry.path for entry in psutil.Process(pid).memory_maps())
                self.memory |= {path for path in map(Path, files) if path.parent == SHARED_MEMORY}

    def finished(self) -> dict[str, Any]:
        """Return what is whole: each LoadGen run, as SCENARIO/MODE, with the digests of its logs."""
        records = ((path, object_of(path)) for path in self.out.glob(f"runs/*/*/*/*/{RUN_FILE}"))
        return {"/".join(path.parent.parts[-2:]): record["files"] for path, record in records if "files" in record}

    def says(self, fault: str) -> None:
        """Set a fault of the fast server from now on; an empty text ends it."""
        (self.folder / _FAULT_FILE).write_text(fault, encoding="utf-8")

    def set_clock(self, seconds: float) -> None:
        """Set the clock of the job's processes forward."""
        path = self.folder / _CLOCK_FILE
        with path.open("r+b" if path.exists() else "w+b") as file:  # the processes have mapped it
            file.write(struct.pack("=q", int(seconds * 1e9)))

    def look(self) -> None:
        """Note what is left of the job once it has ended: processes, a port, a run that is not whole, odd times."""
        deadline = time.monotonic() + END_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            self.wrong.append(f"{len(left)} processes left")
        for path in self.memory:
            if path.exists():
                self.wrong.append(f"{path} is left of its shared memory")
        for path in self.out.glob("server/**/server.json"):
            address = urlsplit(object_of(path).get("endpoint", ""))
            with contextlib.suppress(OSError):
                socket.create_connection((address.hostname or "", address.port or 0), timeout=2).close()
                self.wrong.append(f"something still listens at {address.netloc}")
        for name, files in self.finished().items():
            folder = next(self.out.glob(f"runs/*/*/{name}"))
            if any(sha256_of(folder / log) != digest for log, digest in files.items()):
                self.wrong.append(f"the run {name} is not whole")
        self.wrong += list(self._odd_times())

    def _odd_times(self) -> Iterator[str]:
        """Yield each time or rate that is not what the monotonic clock says."""
        with contextlib.suppress(OSError):
            for line in (self.out / LEDGER_FILE).read_bytes().splitlines():
                took_s = json.loads(line).get("took_s") if line.endswith(b"}") else None
                if took_s is not None and not 0 <= took_s <= self.kind.longest_s:
                    yield f"the ledger has a step of {took_s} s"
        for name in [name for name in self.finished() if name.endswith("/performance")]:
            folder = next(self.out.glob(f"runs/*/*/{name}"))
            record = read_record(folder / RUN_FILE, RunRecord)
            rate, stated = record.client.completed / record.duration_s, read_performance(folder).samples_per_second
            if not rate * (1 - RATE_APART) <= stated <= rate / (1 - RATE_APART):
                yield f"LoadGen's {stated:g} samples/s are not the clock's {rate:g}"

    @contextlib.contextmanager
    def prepared(self, fault: Fault) -> Iterator[None]:
        """Have what a fault needs: a small file system for the results, a clock of its own."""
        if fault.with_clock:
            self.clock = clock_library()
            self.set_clock(0)
        if not fault.with_disk:
            yield
            return
        results = self.folder / "results"
        results.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(results)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(results)], check=False)


def clock_library() -> Path | None:
    """Return the library that gives processes a clock of their own; None without a C compiler."""
    source = Path(__file__).with_name("clock.c")
    return compile_program(source, "-shared", "-fPIC", "-ldl") if shutil.which(os.environ.get("CC", "cc")) else None

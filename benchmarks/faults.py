"""Faults at random moments of a small whole job: `python benchmarks/faults.py [--rounds=N] [--json=FILE]`.

Each of N trials has its own seed: it draws a fault and a moment, and lets the fault happen to a job of two LoadGen runs
on a fast server (fault_injection/). After each it looks whether something finished was lost, something half done was
taken for whole, or a process was left (and with it a port or memory); and whether the same command then ends well. A
full disk is tried where this user may mount a small file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cm4vllm.campaign.ledger import is_under_way, read_ledger
from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.records import RUN_FILE
from fault_injection.server import FAULT_FILE
from figures import arguments, figure, report

JOB = Path(__file__).with_name("fault_injection") / "job.py"
#: Seconds in which a fault is drawn, that a job may take, and that processes may take to end.
MOMENT_S, JOB_S, END_S = 10.0, 240.0, 20.0
#: The environment variable by which the processes of a trial are known.
MARK = "FAULT_TRIAL"
#: The bytes of the small file system: what the job wants free before it begins, and a little more.
DISK_BYTES = 536 * 2**20


@dataclass
class Trial:
    """A job in a folder of its own, and the fault that happens to it."""

    seed: int
    folder: Path
    fault: str = ""
    moment_s: float = 0.0
    step: str = ""
    code: int = 0
    wrong: list[str] = field(default_factory=list)
    attempts: int = 0

    @property
    def out(self) -> Path:
        return self.folder / "results" / "test"

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "job.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(JOB), str(self.folder), "CM_MLPERF_LOADGEN_MAX_IN_FLIGHT=2"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, MARK: str(self.folder)},
            )

    def processes(self, words: str = "") -> list[int]:
        """Return the processes of the trial, those whose command line has these words."""
        found = []
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (
                    place.name.isdigit()
                    and f"{MARK}={self.folder}\0".encode() in (place / "environ").read_bytes()
                    and words.encode() in (place / "cmdline").read_bytes()
                ):
                    found.append(int(place.name))
        return found

    def finished(self) -> dict[str, Any]:
        """Return what is whole: each LoadGen run with the digests of its logs."""
        runs = {}
        for path in self.out.glob(f"runs/*/*/*/*/{RUN_FILE}"):
            with contextlib.suppress(OSError, ValueError):
                runs[path.parent.name] = json.loads(path.read_bytes())["files"]
        return runs

    def says(self, fault: str) -> None:
        (self.folder / FAULT_FILE).write_text(fault, encoding="utf-8")


def _kill(words: str, signum: signal.Signals = signal.SIGKILL) -> Callable[[Trial], None]:
    def happen(trial: Trial) -> None:
        for pid in trial.processes(words)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    return happen


def _second_run(trial: Trial) -> None:
    is_first_at_work = is_under_way(trial.out)
    second = trial.start()
    if second.wait(JOB_S) != 20 and is_first_at_work:
        trial.wrong.append(f"a second run in the folder ended with {second.returncode}, not 20")


def _vanish(trial: Trial) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(trial.folder / "results")


def _fill(trial: Trial) -> None:
    with contextlib.suppress(OSError), (trial.folder / "results" / "filler").open("wb") as file:
        while True:
            file.write(bytes(2**16))


#: What happens, by its name.
FAULTS: dict[str, Callable[[Trial], None]] = {
    "kill -9 of cm": _kill("job.py"),
    "SIGTERM to cm": _kill("job.py", signal.SIGTERM),
    "kill -9 of LoadGen": _kill("cm4vllm.loadgen.process"),
    "kill -9 of a worker": _kill("cm4vllm.loadgen.worker"),
    "kill -9 of the server": _kill("server.py"),
    "two runs in one folder": _second_run,
    "results folder vanishes": _vanish,
    "server hangs": lambda trial: trial.says("hang"),
    "server ten times slower": lambda trial: trial.says("slow"),
    "server answers rubbish": lambda trial: trial.says("rubbish"),
    "disk full": _fill,
}
#: Faults after which what was finished is gone, because it was removed.
LOSING = ("results folder vanishes",)


def main() -> int:
    """Try the faults, print what came of each, and return the exit code."""
    parser = arguments("Faults at random moments of a small whole job", rounds=len(FAULTS))
    parser.add_argument("--first", type=int, default=0, help="first seed (%(default)s)")
    options = parser.parse_args()
    print(f"{'seed':>4}  {'fault':<24}  {'at':>6}  {'step':<20}  code  attempts  wrong")
    wrong = 0
    for seed in range(options.first, options.first + options.rounds):
        one = _tried(seed)
        wrong += bool(one.wrong)
        print(
            f"{one.seed:>4}  {one.fault:<24}  {one.moment_s:>4.1f} s  {one.step:<20}  {one.code:>4}  "
            f"{one.attempts:>8}  {'; '.join(one.wrong) or '-'}",
            flush=True,
        )
    return report([figure("trials with something wrong", [wrong], "trials", at_most=0)], options.json)


def _tried(seed: int) -> Trial:
    draw = random.Random(seed)  # noqa: S311 - a moment
    names = list(FAULTS) if os.geteuid() == 0 else [name for name in FAULTS if name != "disk full"]
    fault, moment_s = names[seed % len(names)], draw.uniform(0.5, MOMENT_S)
    with tempfile.TemporaryDirectory(prefix="fault-") as place:
        trial = Trial(seed, Path(place), fault, moment_s)
        with _disk(trial):
            _happen(trial)
            _look_at(trial)
    return trial


@contextlib.contextmanager
def _disk(trial: Trial) -> Iterator[None]:
    """Have the results lie on a small file system of their own, for a fault that fills it."""
    if trial.fault != "disk full":
        yield
        return
    results = trial.folder / "results"
    results.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(results)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(results)], check=False)


def _happen(trial: Trial) -> None:
    process = trial.start()
    time.sleep(trial.moment_s)
    with contextlib.suppress(OSError):
        states = read_ledger(trial.out).states.values()
        trial.step = next((state.last.step for state in states if str(state.last.state) == "running"), "")
    finished = trial.finished()
    FAULTS[trial.fault](trial)
    if trial.fault == "server hangs":
        _wait_until_noticed(trial, process)
        trial.says("")
    try:
        trial.code = process.wait(JOB_S)
    except subprocess.TimeoutExpired:
        trial.wrong.append(f"the job had not ended after {JOB_S:.0f} s")
        process.terminate()
        trial.code = process.wait(JOB_S)
    trial.says("")
    (trial.folder / "results" / "filler").unlink(missing_ok=True)
    lost = [name for name, files in finished.items() if trial.finished().get(name) != files]
    if lost and trial.fault not in LOSING:
        trial.wrong.append(f"lost: {', '.join(lost)}")


def _wait_until_noticed(trial: Trial, process: subprocess.Popen[bytes]) -> None:
    """Wait until the job has given up a step that asks the server, or has ended."""
    deadline = time.monotonic() + JOB_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if any(str(state.last.state) == "failed" for state in read_ledger(trial.out).states.values()):
                return
        time.sleep(0.2)


def _look_at(trial: Trial) -> None:
    """Note what a fault has left, and whether the same command then ends well."""
    deadline = time.monotonic() + END_S
    while (left := trial.processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        trial.wrong.append(f"{len(left)} processes left")
    _require_whole(trial)
    finished = trial.finished()
    if code := trial.start().wait(JOB_S):
        last = (trial.folder / "job.log").read_text(encoding="utf-8", errors="replace")[-300:]
        trial.wrong.append(f"the next command ended with {code}: {last}")
    if any(trial.finished().get(name) != files for name, files in finished.items()):
        trial.wrong.append("the next command made again what was finished")
    if set(trial.finished()) != {"accuracy", "performance"}:
        trial.wrong.append("the next command did not make all runs")
    _require_whole(trial)
    trial.attempts = max(
        (
            state.attempts
            for name, state in read_ledger(trial.out).states.items()
            if name.startswith("Offline ") and ":" not in name
        ),
        default=0,
    )


def _require_whole(trial: Trial) -> None:
    for name, files in trial.finished().items():
        folder = next(trial.out.glob(f"runs/*/*/*/{name}"))
        if any(sha256_of(folder / log) != digest for log, digest in files.items()):
            trial.wrong.append(f"the {name} run is not whole")


if __name__ == "__main__":
    sys.exit(main())

"""Faults at random moments of a whole job: `python benchmarks/faults.py [--rounds=N] [--json=FILE] [--real]`.

Each of N trials has its own seed: it draws a fault and a moment, and lets the fault happen to a job of two LoadGen runs
on a fast server (fault_injection/). After each it looks whether something finished was lost, something half done was
taken for whole, a process, a port or an odd time was left; and whether the same command then ends well. A full disk is
tried where this user may mount a small file system, a clock that is set where there is a C compiler.

With --real the job is the main one, `cm run script --tags=run-mlperf,inference,_vllm`, on the tiny model and the real
vLLM, in the CM home that $CM_REPOS names; the processes killed are cm's, LoadGen's, a worker, the server, its engine.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from cm4vllm.campaign.ledger import read_ledger
from fault_injection.trial import FAULTS, REAL_FAULTS, SMALL_JOB, Fault, JobKind, Trial, clock_library
from figures import arguments, figure, report

#: Seconds in which a fault is drawn, for the small job and for the real one.
MOMENT_S, REAL_MOMENT_S = 10.0, 100.0
#: The samples of a run of the real job.
REAL_SAMPLES = 64

REAL_JOB = JobKind(
    argv=lambda folder: [
        str(Path(sys.executable).with_name("cm")),
        "run",
        "script",
        "--tags=run-mlperf,inference,_vllm",
        "--run_checker=no",
        f"--test_query_count={REAL_SAMPLES}",
        f"--output_dir={folder / 'results'}",
    ],
    runs=frozenset({"Offline/accuracy", "Offline/performance", "Server/accuracy", "Server/performance"}),
    cm="run script --tags=run-mlperf",
    server="serve",
    longest_s=900.0,
)


def main() -> int:
    """Try the faults, print what came of each, and return the exit code."""
    parser = arguments("Faults at random moments of a whole job", rounds=len(FAULTS))
    parser.add_argument("--first", type=int, default=0, help="first seed (%(default)s)")
    parser.add_argument("--real", action="store_true", help="the main job on the real vLLM")
    options = parser.parse_args()
    kind, faults = (REAL_JOB, REAL_FAULTS) if options.real else (SMALL_JOB, _possible())
    moment_s = REAL_MOMENT_S if options.real else MOMENT_S
    print(f"{'seed':>4}  {'fault':<24}  {'at':>7}  {'step':<22}  code  attempts  wrong")
    wrong = 0
    for seed in range(options.first, options.first + options.rounds):
        one = _tried(seed, kind, faults, moment_s)
        wrong += bool(one.wrong)
        print(
            f"{one.seed:>4}  {one.name:<24}  {one.moment_s:>5.1f} s  {one.step:<22}  {one.code:>4}  "
            f"{one.attempts:>8}  {'; '.join(one.wrong) or '-'}",
            flush=True,
        )
    return report([figure("trials with something wrong", [wrong], "trials", at_most=0)], options.json)


def _possible() -> Mapping[str, Fault]:
    """Return the faults that can be tried here, by name."""
    may_mount, has_clock = os.geteuid() == 0, clock_library() is not None
    return {
        name: fault
        for name, fault in FAULTS.items()
        if (may_mount or not fault.with_disk) and (has_clock or not fault.with_clock)
    }


def _tried(seed: int, kind: JobKind, faults: Mapping[str, Fault], latest_s: float) -> Trial:
    draw = random.Random(seed)  # noqa: S311 - a moment
    name, moment_s = list(faults)[seed % len(faults)], draw.uniform(0.5, latest_s)
    with tempfile.TemporaryDirectory(prefix="fault-") as place:
        trial = Trial(seed, Path(place), kind, name, moment_s)
        with trial.prepared(faults[name]):
            _happen(trial, faults[name])
            trial.look()
            _again(trial)
    return trial


def _happen(trial: Trial, fault: Fault) -> None:
    process = trial.start(fault)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(trial.moment_s)
    with contextlib.suppress(OSError):
        states = read_ledger(trial.out).states.values()
        trial.step = next((state.last.step for state in states if str(state.last.state) == "running"), "")
    finished = trial.finished()
    fault.happen(trial)
    try:
        trial.code = process.wait(trial.kind.longest_s)
    except subprocess.TimeoutExpired:
        trial.wrong.append(f"the job had not ended after {trial.kind.longest_s:.0f} s")
        process.terminate()
        trial.code = process.wait(trial.kind.longest_s)
    if fault.codes and trial.code not in fault.codes:
        trial.wrong.append(f"the job ended with {trial.code}: {_last_words(trial)}")
    trial.says("")
    (trial.folder / "results" / "filler").unlink(missing_ok=True)
    lost = [name for name, files in finished.items() if trial.finished().get(name) != files]
    if lost and not fault.loses:
        trial.wrong.append(f"lost: {', '.join(lost)}")


def _again(trial: Trial) -> None:
    """Note whether the same command then ends well, and keeps what was finished."""
    finished, began = trial.finished(), time.monotonic()
    if code := trial.start().wait(trial.kind.longest_s):
        trial.wrong.append(f"the next command ended with {code}: {_last_words(trial)}")
    if any(trial.finished().get(name) != files for name, files in finished.items()):
        trial.wrong.append("the next command made again what was finished")
    if missing := sorted(trial.kind.runs - set(trial.finished())):
        trial.wrong.append(f"the next command did not make {', '.join(missing)} in {time.monotonic() - began:.0f} s")
    trial.look()
    trial.attempts = max(
        (state.attempts for name, state in read_ledger(trial.out).states.items() if ":" not in name), default=0
    )


def _last_words(trial: Trial) -> str:
    return (trial.folder / "job.log").read_text(encoding="utf-8", errors="replace")[-300:]


if __name__ == "__main__":
    sys.exit(main())

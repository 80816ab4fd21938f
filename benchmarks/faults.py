"""Faults at random moments of a whole job: `python benchmarks/faults.py [--rounds=N] [--json=FILE] [--real]`.

Each of N trials has its own seed: it draws a fault and a moment, and lets the fault happen to a job of two LoadGen runs
on a fast server (fault_injection/). A process that is to be killed is waited for; the table says which it was. After
each trial it looks whether something finished was lost, something half done was taken for whole, a process, a port,
shared memory or an odd time was left; and whether the same command then ends well. A full disk is tried where this user
may mount a small file system, a clock that is set where there is a C compiler.

With --real the job is the main one, `cm run script --tags=run-mlperf,inference,_vllm`, on the tiny model and the real
vLLM, in the CM home that $CM_REPOS names. A process of cm, LoadGen, a worker, the server, its engine or its supervisor
is killed during a LoadGen run, when a drawn share of its samples is done.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from cm4vllm.campaign.ledger import is_under_way, read_ledger
from cm4vllm.serving.supervisor import parent_of
from fault_injection.trial import END_S, LOOK_S, Fault, JobKind, Trial, clock_library
from figures import CM, arguments, figure, report

#: Seconds from the start of the small job in which a fault is drawn; a process to kill is waited for.
MOMENT_S = 10.0
#: The samples of a run of the real job: its accuracy runs take some seconds, so that a fault can come within them.
REAL_SAMPLES = 200

#: The columns of the table, which is printed in Markdown.
COLUMNS = ("seed", "fault", "at", "step under way", "process killed", "exit code", "attempts", "wrong")

REAL_JOB = JobKind(
    argv=lambda folder: [
        *(str(CM), "run", "script", "--tags=run-mlperf,inference,_vllm", "--run_checker=no"),
        f"--test_query_count={REAL_SAMPLES}",
        f"--output_dir={folder / 'results'}",
    ],
    runs=frozenset({"Offline/accuracy", "Offline/performance", "Server/accuracy", "Server/performance"}),
    cm="run script --tags=run-mlperf",
    server="vllm.entrypoints.cli.main serve",
    longest_s=900.0,
    in_runs=True,
)


#: Seconds by which the clock is set.
CLOCK_S = 3600
#: The beginnings of the command lines of vLLM's own processes.
ENGINES = "VLLM::"


def _kill(which: str, signum: signal.Signals, trial: Trial, *, ends_server: bool = False) -> None:
    """Send a signal to a process of the job, as soon as there is one; to none where the job ends before.

    With `ends_server` all processes of the server must end by it.
    """
    words = {"cm": trial.kind.cm, "server": trial.kind.server}.get(which, which)
    while not (pids := trial.processes(words)) and trial.processes(trial.kind.cm):
        time.sleep(LOOK_S)
    trial.note_memory()
    server = trial.processes(trial.kind.server) + trial.processes(ENGINES)
    for pid in pids[:1]:
        with contextlib.suppress(OSError):
            os.kill(pid, signum)
            trial.hit = words
    if ends_server and trial.hit:
        _see_end(server, trial)


def _see_end(server: list[int], trial: Trial) -> None:
    """Note which processes of a server that was killed go on; the job may start another one meanwhile."""
    deadline = time.monotonic() + END_S
    while (left := [pid for pid in server if parent_of(pid) is not None]) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    if left:
        trial.wrong.append(f"{len(left)} processes of the killed server went on for {END_S:.0f} s")


def _second_run(trial: Trial) -> None:
    is_first_at_work = is_under_way(trial.out)
    second = trial.start()
    if second.wait(trial.kind.longest_s) != 20 and is_first_at_work:
        trial.wrong.append(f"a second run in the folder ended with {second.returncode}, not 20")


def _vanish(trial: Trial) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(trial.folder / "results")


def _fill(trial: Trial) -> None:
    with contextlib.suppress(OSError), (trial.folder / "results" / "filler").open("wb") as file:
        while True:
            file.write(bytes(2**16))


def _hang(trial: Trial) -> None:
    """Hang until the job has given up a step that asks the server, or has ended."""
    trial.says("hang")
    deadline = time.monotonic() + trial.kind.longest_s
    while trial.processes(trial.kind.cm) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if any(str(state.last.state) == "failed" for state in read_ledger(trial.out).states.values()):
                break
        time.sleep(0.2)
    trial.says("")


def _killed(which: str, *, ends_server: bool = False) -> Fault:
    return Fault(partial(_kill, which, signal.SIGKILL, ends_server=ends_server))


#: The faults of the small job on the fast server, by name.
FAULTS: Mapping[str, Fault] = {
    "kill -9 of cm": _killed("cm"),
    "kill -9 of LoadGen": _killed("cm4vllm.loadgen.process.main"),
    "kill -9 of a worker": _killed("cm4vllm.loadgen.client.worker"),
    "kill -9 of the server": _killed("server", ends_server=True),
    "SIGTERM to cm": Fault(partial(_kill, "cm", signal.SIGTERM), codes=(0, 143, -signal.SIGTERM)),
    "two runs in one folder": Fault(_second_run, codes=(0,)),
    "results folder vanishes": Fault(_vanish, loses=True),
    "server hangs": Fault(_hang),
    "server ten times slower": Fault(lambda trial: trial.says("slow"), codes=(0,)),
    "server answers rubbish": Fault(lambda trial: trial.says("rubbish")),
    "disk full": Fault(_fill, codes=(0, 40), with_disk=True),
    "clock set forward": Fault(lambda trial: trial.set_clock(CLOCK_S), codes=(0,), with_clock=True),
    "clock set back": Fault(lambda trial: trial.set_clock(-CLOCK_S), codes=(0,), with_clock=True),
    "terminal closed": Fault(Trial.close_terminal, codes=(0, 129, -signal.SIGHUP), on_terminal=True),
    "terminal closed, nohup": Fault(Trial.close_terminal, codes=(0,), on_terminal=True, ignores_hangup=True),
}
#: The faults of the real job, by name.
REAL_FAULTS: Mapping[str, Fault] = {
    "kill -9 of the server": _killed("server", ends_server=True),
    "kill -9 of vLLM's engine": _killed("VLLM::EngineCore", ends_server=True),
    "kill -9 of its supervisor": _killed("cm4vllm.serving.supervisor", ends_server=True),
    "kill -9 of cm": _killed("cm"),
    "kill -9 of LoadGen": _killed("cm4vllm.loadgen.process.main"),
    "kill -9 of a worker": _killed("cm4vllm.loadgen.client.worker"),
}

#: The small job, and its settings: few requests in flight, so that it takes some seconds.
SMALL_JOB = JobKind(
    argv=lambda folder: [
        sys.executable,
        str(Path(__file__).with_name("fault_injection") / "job.py"),
        str(folder),
        "CM_MLPERF_LOADGEN_MAX_IN_FLIGHT=2",
    ],
    runs=frozenset({"Offline/accuracy", "Offline/performance"}),
    cm="job.py",
    server="rehearsal/start.py",
)


def main() -> int:
    """Try the faults, print what came of each, and return the exit code."""
    parser = arguments("Faults at random moments of a whole job", rounds=len(FAULTS))
    parser.add_argument("--first", type=int, default=0, help="first seed (%(default)s)")
    parser.add_argument("--real", action="store_true", help="the main job on the real vLLM")
    options = parser.parse_args()
    may_mount, has_clock = os.geteuid() == 0, clock_library() is not None
    possible = {
        name: fault
        for name, fault in FAULTS.items()
        if (may_mount or not fault.with_disk) and (has_clock or not fault.with_clock)
    }
    kind, faults = (REAL_JOB, REAL_FAULTS) if options.real else (SMALL_JOB, possible)
    print(_line(COLUMNS), _line(["---"] * len(COLUMNS)), sep="\n", flush=True)
    wrong = 0
    for seed in range(options.first, options.first + options.rounds):
        trial = tried(seed, kind, faults)
        wrong += bool(trial.wrong)
        print(_line(_cells(trial)), flush=True)
    return report([figure("trials with something wrong", [wrong], "trials", at_most=0)], options.json)


def _cells(trial: Trial) -> tuple[object, ...]:
    when = f"{trial.moment_s:.1f} s" + (f", {trial.share:.0%} of {trial.run}" if trial.run else "")
    wrong = " ".join("; ".join(trial.wrong).split()) or "-"
    hit = trial.hit.replace("vllm.entrypoints.cli.main", "vllm") or "-"
    return trial.seed, trial.name, when, trial.step or "-", hit, trial.code, trial.attempts, wrong


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def tried(seed: int, kind: JobKind, faults: Mapping[str, Fault]) -> Trial:
    """Have the fault of a seed happen to a job, and return what came of it."""
    draw = random.Random(seed)  # noqa: S311 - a moment
    name, cycle = list(faults)[seed % len(faults)], seed // len(faults)
    with tempfile.TemporaryDirectory(prefix="fault-") as place:
        trial = Trial(seed, Path(place), kind, name)
        if kind.in_runs:  # each fault comes to each run before one comes twice
            trial.run, trial.share = sorted(kind.runs)[(seed + cycle) % len(kind.runs)], draw.random()
        else:
            trial.moment_s = draw.uniform(0.5, MOMENT_S)
        with trial.prepared(faults[name]):
            _happen(trial, faults[name])
            trial.look()
            _again(trial)
    return trial


def _happen(trial: Trial, fault: Fault) -> None:
    process = trial.start(fault)
    trial.wait(process)
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

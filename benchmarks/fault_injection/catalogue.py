"""The faults, by name: what happens to a job, and the small job that all of them happen to."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cm4vllm.campaign.ledger import is_under_way, read_ledger
from cm4vllm.serving.supervisor import parent_of
from fault_injection.trial import END_S, LOOK_S, Fault, JobKind, Trial

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
        str(Path(__file__).with_name("job.py")),
        str(folder),
        "CM_MLPERF_LOADGEN_MAX_IN_FLIGHT=2",
    ],
    runs=frozenset({"Offline/accuracy", "Offline/performance"}),
    cm="job.py",
    server="rehearsal/start.py",
)

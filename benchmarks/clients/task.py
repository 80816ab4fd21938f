"""The task of a contestant and its result: JSON between the benchmark and the process of the contestant.

Only the standard library: a contestant may run in another Python.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Seconds that no contestant needs: one that hangs must not hold the benchmark.
TOO_LONG_S = 300
#: Different prompts that a contestant sends in turn.
PROMPTS = 512


@dataclass(frozen=True, kw_only=True)
class Task:
    """`queries` completions of `tokens` tokens each, of prompts of `prompt_tokens`, at most `in_flight` at a time.

    `qps` is the rate of a Server run, None where queries follow each other as fast as they are answered. `more_ports`
    and `workers` are for ours alone: further servers, and worker processes. `warm` has `in_flight` queries answered
    before anything is measured, so that the connections are open. A stream has `interval` tokens a chunk. `endpoint`
    and `api` are for ours through LoadGen: a server that is not at `port`, and the way in which it is asked.
    """

    port: int
    more_ports: Sequence[int] = ()
    queries: int
    tokens: int
    streamed: bool
    in_flight: int
    prompt_tokens: int = 128
    qps: float | None = None
    workers: int = 1
    vocabulary: int = 128_000
    warm: bool = False
    interval: int = 1
    endpoint: str = ""
    api: str = "completions"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a contestant: wall and CPU time in s, memory gained in KiB, and LoadGen's figures (times in ms).

    `watching_s` is the CPU time that it cost to watch the run, which is not all part of `cpu_s`.

    A figure that was not measured is 0.
    """

    queries: int
    tokens: int
    wall_s: float
    cpu_s: float = 0.0
    gained_kib: float = 0.0
    ttft_p50: float = 0.0
    ttft_p99: float = 0.0
    tpot_p50: float = 0.0
    tpot_p99: float = 0.0
    watching_s: float = 0.0

    @property
    def qps(self) -> float:
        return self.queries / self.wall_s


def bodies(task: Task) -> list[bytes]:
    """Return the JSON bodies that are sent in turn."""
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if task.streamed else {}
    if task.interval > 1:
        more["stream_interval"] = task.interval
    return [
        json.dumps(
            {
                "model": "mock",
                "prompt": prompt(index, task.prompt_tokens, task.vocabulary),
                "max_tokens": task.tokens,
                "min_tokens": task.tokens,
                "temperature": 0,
                "top_p": 1,
                "top_k": 1,
                "seed": 42,
                "return_token_ids": True,
                **more,
            },
            separators=(",", ":"),
        ).encode()
        for index in range(min(PROMPTS, task.queries))
    ]


def prompt(index: int, length: int, vocabulary: int) -> list[int]:
    """Return the token ids of a prompt, all below `vocabulary`."""
    return [(index * 37 + place * 7919) % vocabulary for place in range(length)]


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Have what is started inside run on `cores` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def perform(name: str, way: str, task: Task, cores: Sequence[int], *, python: str = sys.executable) -> Result:
    """Run a client in a process of its own on `cores`, which does `task` alone or through LoadGen.

    Raises RuntimeError when it fails, or did not count all tokens.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    with pinned(cores):
        done = subprocess.run(
            [python, "-m", "clients.contestant", name, way, json.dumps(asdict(task))],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOO_LONG_S,
        )
    if done.returncode:
        raise RuntimeError(f"{name} ({way}) failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    result = Result(**json.loads(done.stdout.splitlines()[-1]))
    if result.tokens != result.queries * task.tokens:
        raise RuntimeError(f"{name} ({way}) counted {result.tokens} tokens, not {result.queries} x {task.tokens}")
    return result


class Meter:
    """Wall time, CPU time and memory of this process and all below it, from now on."""

    def __init__(self) -> None:
        processes = tree(os.getpid())
        for pid in processes:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self._resident = sum(_memory(pid, "VmRSS") for pid in processes)
        self._cpu = cpu_seconds(processes)
        self._begin = time.monotonic_ns()

    def result(self, queries: int, tokens: int) -> Result:
        """Return what was used since the meter was made."""
        wall, processes = time.monotonic_ns() - self._begin, tree(os.getpid())
        return Result(
            queries=queries,
            tokens=tokens,
            wall_s=wall / 1e9,
            cpu_s=cpu_seconds(processes) - self._cpu,
            gained_kib=sum(_memory(pid, "VmHWM") for pid in processes) - self._resident,
        )


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all below it."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [pid, *(below for child in children for below in tree(child))]


def cpu_seconds(processes: Sequence[int]) -> float:
    """Return the CPU time of these processes, that of ended threads included, each to the ns."""
    # The CPU clock of a process (clock_getcpuclockid(3); include/linux/posix-timers.h, CPUCLOCK_SCHED).
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in processes) / 1e9


def _memory(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0)

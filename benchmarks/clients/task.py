"""The task of a contestant, its result and the form of its client: JSON between the benchmark and the contestant.

Only the standard library: a contestant may run in another Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent
#: Seconds that no contestant needs: one that hangs must not hold the benchmark.
TOO_LONG_S = 300
#: Different prompts that a contestant sends in turn.
PROMPTS = 512
HEADERS = {"Content-Type": "application/json"}

#: What a client calls with a query's key and its first token, and with its key and all tokens.
First = Callable[[int, int], None]
Done = Callable[[int, "array[int]"], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """`queries` completions of `tokens` tokens each, of prompts of `prompt_tokens`, at most `in_flight` at a time.

    `qps` is the rate of a Server run, None where queries follow each other as fast as they are answered. `warm` has
    `in_flight` queries answered before anything is measured, so that the connections are open. A stream has `interval`
    tokens a chunk. `more_ports`, `endpoint` and `api` are for ours through LoadGen: further servers, a server that is
    not at `port`, and the way in which it is asked.
    """

    port: int
    more_ports: Sequence[int] = ()
    queries: int
    tokens: int
    streamed: bool
    in_flight: int
    prompt_tokens: int = 128
    qps: float | None = None
    vocabulary: int = 128_000
    warm: bool = False
    interval: int = 1
    endpoint: str = ""
    api: str = "completions"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a contestant: wall and CPU time in s, memory gained in KiB, and LoadGen's figures (times in ms).

    `watching_s` is the CPU time that it cost to watch the run, which is not all part of `cpu_s`. A figure that was not
    measured is 0.
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


class Client(Protocol):
    """A client under comparison: made with a task, and two callables for a first token and for a whole answer."""

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        """Take queries, each a key and the number of its body; called on another thread."""

    def close(self) -> None:
        """End all connections."""


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


def on_cores(cores: Sequence[int], *argv: str) -> list[str]:
    """Return the command that runs another on these cores alone."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *argv]


def perform(name: str, way: str, task: Task, cores: Sequence[int], *, python: str = sys.executable) -> Result:
    """Run a client in a process of its own on `cores`, which does `task` alone or through LoadGen.

    Raises RuntimeError when it fails, or did not count all tokens.
    """
    done = subprocess.run(
        on_cores(cores, python, "-m", "clients.contestant", name, way, json.dumps(asdict(task))),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])},
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

"""The programs in C: the mock server and the floor client, compiled from the sources beside this file, and wrk."""

import hashlib
import os
import re
import subprocess
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from clients.task import HERE, TOO_LONG_S, Result, Task, bodies, pinned

_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11")
_WORDS = 4096
#: The sources of the mock server and of the floor client.
MOCK, FLOOR = HERE / "mock_vllm.c", HERE / "floor.c"


@dataclass(frozen=True)
class Stamps:
    """The server's own times, an entry for each streamed answer, in ms: TTFT from the request's arrival, and TPOT."""

    ttft: list[float]
    tpot: list[float]


class Mock:
    """A running mock server; `stamps` is known when it has ended."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stamps = Stamps([], [])


def token(prompt: list[int], k: int) -> int:
    """Return the k-th token that the mock server answers `prompt` with."""
    return ((prompt[0] + k) % _WORDS * 7919 + 307) % 128_256


@dataclass(frozen=True)
class Pace:
    """The pace at which a mock server sends its tokens, in ms; with `spread` its streams send at different moments."""

    ttft_ms: float = 0.0
    interval_ms: float = 0.0
    spread: bool = False


AT_ONCE = Pace()


@contextmanager
def mock(*, core: int, tokens: int, pace: Pace = AT_ONCE) -> Iterator[Mock]:
    """Run the mock server on `core`."""
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps"
        argv = [
            str(compiled(MOCK)),
            "-n",
            str(tokens),
            "-t",
            str(round(pace.ttft_ms * 1000)),
            "-i",
            str(round(pace.interval_ms * 1000)),
            "-s",
            str(stamps),
            *(["-p"] if pace.spread else []),
        ]
        with pinned([core]):
            server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            running = Mock(int(cast(IO[bytes], server.stdout).readline()))
            yield running
        finally:
            server.communicate(timeout=TOO_LONG_S)
        running.stamps = _stamps(stamps)


def _stamps(path: Path) -> Stamps:
    numbers = array("q", path.read_bytes())
    answers = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    return Stamps(
        [(first - arrived) / 1e6 for arrived, first, _, _ in answers],
        [(last - first) / 1e6 / (count - 1) for _, first, last, count in answers if count > 1],
    )


def compiled(source: Path, *flags: str) -> Path:
    """Return the program of a file of C, compiled once for each version of it."""
    digest = hashlib.sha256(source.read_bytes() + " ".join((*_FLAGS, *flags)).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cm4vllm" / "benchmarks"
    program = cache / f"{source.stem}-{digest}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        aside = program.with_suffix(f".{os.getpid()}")
        words = [*_FLAGS, "-o", str(aside), str(source), *flags]
        subprocess.run([os.environ.get("CC", "cc"), *words], check=True)
        aside.rename(program)
    return program


def floor(task: Task, core: int) -> Result:
    """Have the floor client do `task`."""
    body = bodies(task)[0]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: mock\r\nContent-Length: {len(body)}\r\n\r\n"
    with tempfile.NamedTemporaryFile() as file, pinned([core]):
        file.write(head.encode() + body)
        file.flush()
        argv = [str(compiled(FLOOR)), str(task.port), str(task.in_flight), str(task.queries), file.name]
        said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=TOO_LONG_S).stdout
    wall, cpu, tokens = map(int, said.split())
    return Result(queries=task.queries, tokens=tokens, wall_s=wall / 1e9, cpu_s=cpu / 1e9)


def wrk(task: Task, core: int, *, seconds: int = 2) -> Result:
    """Have wrk send the queries of `task` for some seconds; their number does not matter."""
    script = (
        f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = [==[{bodies(task)[0].decode()}]==]\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file, pinned([core]):
        file.write(script)
        file.flush()
        said = subprocess.run(
            [
                "wrk",
                "-t1",
                f"-c{task.in_flight}",
                f"-d{seconds}s",
                "-s",
                file.name,
                f"http://127.0.0.1:{task.port}/v1/completions",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=TOO_LONG_S,
        ).stdout
    match = re.search(r"(\d+) requests in ([\d.]+)s", said)
    if match is None or "Non-2xx" in said:
        raise RuntimeError(f"wrk failed:\n{said}")
    queries, wall = int(match[1]), float(match[2])
    return Result(queries=queries, tokens=queries * task.tokens, wall_s=wall)

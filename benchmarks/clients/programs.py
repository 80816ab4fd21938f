"""The programs in C: the mock server and the floor client, compiled from the sources beside this file, and wrk."""

import hashlib
import os
import re
import subprocess
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from clients.task import HERE, TOO_LONG_S, Result, Task, bodies, on_cores

_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11")
#: The sources of the mock server and of the floor client.
MOCK, FLOOR = HERE / "mock_vllm.c", HERE / "floor.c"


@dataclass
class Mock:
    """A running mock server, and its own times in ms, an entry for each streamed answer, when it has ended.

    TTFT is from the request's arrival.
    """

    port: int
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)


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
        microseconds = (f"-t{round(pace.ttft_ms * 1000)}", f"-i{round(pace.interval_ms * 1000)}")
        argv = [
            str(compile_program(MOCK)),
            f"-n{tokens}",
            *microseconds,
            f"-s{stamps}",
            *(["-p"] if pace.spread else []),
        ]
        server = subprocess.Popen(on_cores([core], *argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            running = Mock(int(cast(IO[bytes], server.stdout).readline()))
            yield running
        finally:
            server.communicate(timeout=TOO_LONG_S)
        numbers = array("q", stamps.read_bytes())
        for arrived, first, last, count in (numbers[at : at + 4] for at in range(0, len(numbers), 4)):
            running.ttft.append((first - arrived) / 1e6)
            running.tpot += [(last - first) / 1e6 / (count - 1)] if count > 1 else []


def compile_program(source: Path, *flags: str) -> Path:
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
    words = (str(task.port), str(task.in_flight), str(task.queries))
    wall, cpu, tokens = map(int, _run(core, (str(compile_program(FLOOR)), *words), head.encode() + body).split())
    return Result(queries=task.queries, tokens=tokens, wall_s=wall / 1e9, cpu_s=cpu / 1e9)


def wrk(task: Task, core: int) -> Result:
    """Have wrk send the queries of `task` for two seconds; their number does not matter."""
    script = (
        f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = [==[{bodies(task)[0].decode()}]==]\n"
    )
    words = ("wrk", "-t1", f"-c{task.in_flight}", "-d2s", f"{task.url}/v1/completions", "-s")
    said = _run(core, words, script.encode())
    match = re.search(r"(\d+) requests in ([\d.]+)s", said)
    if match is None or "Non-2xx" in said:
        raise RuntimeError(f"wrk failed:\n{said}")
    return Result(queries=int(match[1]), tokens=int(match[1]) * task.tokens, wall_s=float(match[2]))


def _run(core: int, words: tuple[str, ...], content: bytes) -> str:
    """Run a program on a core, whose last word is a file of this content, and return what it prints."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        argv = on_cores([core], *words, file.name)
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=TOO_LONG_S).stdout

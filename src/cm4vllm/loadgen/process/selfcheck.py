"""The self-check before a run: how much the client can carry, measured with the client itself and a server in memory.

It is the same client, with the same number of workers, and prompts of the run; only LoadGen does not take part, which
costs about 1.3 µs a query.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, cast

import psutil
from msgspec.structs import replace

from cm4vllm.common.errors import CmError, RunFailed
from cm4vllm.common.processors import usable_processors
from cm4vllm.loadgen.client.process_metrics import spread
from cm4vllm.loadgen.client.workers import Answer, WholeAnswer, Workers, worker_settings
from cm4vllm.loadgen.limits import FILES_BESIDE
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.access import NO_ACCESS
from cm4vllm.records.client import HEADROOM, SelfCheck
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import Prompts

#: Seconds that a stream lasts, so that a short check sees as many begin as end.
STREAM_S = 0.3
#: Seconds during which queries come at the run's rate, after the first streams have begun to end.
PACED_S = 1.0
#: Queries/s of a check at least: fewer say nothing about the tail.
LEAST_QPS = 50.0
#: Seconds that queries follow each other without a pause.
CLOSED_S = 0.5
#: Prompts of the run that are sent in turn.
PROMPTS = 64
#: A share of a processor below this cannot be distinguished from none (the kernel counts in hundredths of a second).
LEAST_SHARE = 0.01
#: Tokens of an answer at most: where the rules have no limit, an answer could fill the server's context.
MOST_TOKENS = 1 << 15
#: Workers at most where the self-check decides.
MOST_WORKERS = 8
#: Seconds after which a check that has not ended has failed.
TOO_LONG_S = 60.0


def self_check(settings: RunSettings, library: SampleLibrary, least: int = 1) -> SelfCheck:
    """Return the capacity of the client, with the number of workers that the run will have.

    That is `settings.num_workers`, or where it is 0, the `least` that the machine's limits ask for, and more as long as
    the capacity is too small for the rate to be expected, the busiest process is a worker, and there are processors for
    more. Raises RunFailed.
    """
    workers = settings.num_workers or least
    library.load(range(min(PROMPTS, len(library))))
    while True:
        check = _check(settings, library, workers)
        enough = check.capacity_qps >= HEADROOM * settings.expected_qps
        most = min(MOST_WORKERS, usable_processors() - 1)
        if settings.num_workers or enough or workers >= most or not check.busiest.startswith("worker"):
            return check
        workers = min(most, 2 * workers)


def in_words(check: SelfCheck, settings: RunSettings) -> str:
    """Return the result of the check in one line."""
    workers = f"{check.workers} worker{'s' if check.workers > 1 else ''}"
    capacity = f"{check.capacity_qps:,.0f} queries/s of {check.tokens} tokens"
    expected = settings.expected_qps
    times = f", {check.capacity_qps / expected:,.1f} times the expected load" if expected else ""
    added = f"; it adds {check.added_ttft.p99_ms:.1f} ms to TTFT (p99)" if check.added_ttft else ""
    return f"client self-check: {workers} can carry {capacity}{times}{added}"


def _check(settings: RunSettings, library: SampleLibrary, workers: int) -> SelfCheck:
    """Return what the client can carry: its rate and its lag against a server in memory."""
    tokens, interval, tally = expected_tokens(settings), settings.stream_interval, _Tally()
    chunks = -(-(tokens - 1) // interval) + 1 if interval else 1
    # The server in memory is one process, however many the client has.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = settings.max_in_flight if soft == resource.RLIM_INFINITY else max(1, soft - FILES_BESIDE)
    with _loopback(tokens, interval, STREAM_S / chunks) as (endpoint, server):
        there = replace(
            settings,
            min_tokens=min(tokens, settings.min_tokens),
            max_in_flight=min(settings.max_in_flight, most),
            server=replace(settings.server, endpoint=endpoint, replicas=[], access=NO_ACCESS),
        )
        client = Workers(worker_settings(there, workers), library.descriptor, tally, tally.broken)
        try:
            workers_pids = {f"worker {number}": pid for number, pid in enumerate(client.pids, 1)}
            meter = _Meter({"LoadGen": None, **workers_pids, "server": server})
            drive = _closed_loop if settings.terms.at_once else _paced_loop
            qps = drive(client, _prompts(settings, library), tally, meter, settings.target_qps)
        finally:
            client.close()
    if tally.error is not None:
        raise tally.error
    if client.failures:
        raise RunFailed(
            "the client's self-check failed",
            cause=next(iter(client.failures)),
            remedy="it uses a test server on 127.0.0.1: read the run's console.log",
        )
    server_share = meter.shares.pop("server")
    name, share = max(meter.shares.items(), key=lambda used: used[1])
    return SelfCheck(
        workers=workers,
        tokens=tokens,
        queries=tally.done,
        qps=round(qps, 3),
        capacity_qps=round(qps if settings.terms.at_once else qps / max(share, LEAST_SHARE), 1),
        busiest=name,
        busiest_share=round(share, 3),
        server_share=round(server_share, 3),
        added_ttft=spread(tally.times_to_first_token()),
    )


def expected_tokens(settings: RunSettings) -> int:
    """Return the tokens to be expected of an answer: as many as the benchmark's model gives, or as many as may be."""
    most = settings.max_tokens if settings.terms.generation.max_tokens else min(settings.max_tokens, MOST_TOKENS)
    return min(most, round(settings.terms.mean_tokens) or most)


def _prompts(settings: RunSettings, library: SampleLibrary) -> list[tuple[int, int, int]]:
    """Return the records of the loaded prompts: offset, length, tokens (0 for text, whose tokens are not counted)."""
    counted = settings.server.dialect is None or settings.server.dialect.prompts is Prompts.IDS
    return [(offset, length, counted * tokens) for offset, length, tokens in library.records.values()]


def _closed_loop(
    client: Workers, prompts: Sequence[tuple[int, int, int]], tally: _Tally, meter: _Meter, _: float
) -> float:
    """Issue queries all at once, as many as take about CLOSED_S; return the queries/s that were answered."""
    count, took = 500, 0.0
    while took < CLOSED_S / 2:
        count = round(count * min(20.0, CLOSED_S / took)) if took else count
        tally.restart()
        meter.start()
        begin = time.monotonic()
        client.issue([(key, *prompts[key % len(prompts)]) for key in range(count)])
        tally.wait(count)
        took = time.monotonic() - begin
        meter.stop()
    return count / took


def _paced_loop(
    client: Workers, prompts: Sequence[tuple[int, int, int]], tally: _Tally, meter: _Meter, target_qps: float
) -> float:
    """Issue queries at the run's rate, at random times as LoadGen does; return that rate."""
    qps = max(target_qps, LEAST_QPS)
    draw = random.Random(0)  # noqa: S311 - times of arrival
    begin = due = time.monotonic()
    key = 0
    while due < begin + STREAM_S + PACED_S:
        if not meter.started and due > begin + STREAM_S:
            meter.start()
        pause = due - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        tally.issued.append(time.monotonic())
        client.issue([(key, *prompts[key % len(prompts)])])
        key += 1
        due += draw.expovariate(qps)
    meter.stop()
    tally.wait(key)
    return qps


class _Tally:
    """The receiver of a check: notes when first tokens come, and counts."""

    def __init__(self) -> None:
        """Prepare to count answers of the server in memory."""
        self.issued = array("d")
        self.done = 0
        self.error: CmError | None = None
        self._firsts: list[tuple[int, float]] = []
        self._awaited = 0
        self._reached = threading.Event()

    def first_tokens(self, answers: Sequence[Answer]) -> None:
        """Note the time of first tokens."""
        now = time.monotonic()
        self._firsts += [(key, now) for key, _, _ in answers]

    def completed(self, answers: Sequence[WholeAnswer]) -> None:
        """Count whole answers."""
        self._count(len(answers))

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """Count a failed query as ended."""
        self._count(1)

    def broken(self, error: CmError) -> None:
        """A worker ended by itself."""
        self.error = error
        self._reached.set()

    def wait(self, count: int) -> None:
        """Wait until `count` queries in all have ended. Raises RunFailed when that takes too long."""
        self._awaited = count
        if self.done < count and not self._reached.wait(TOO_LONG_S):
            raise RunFailed(
                "the client's self-check did not end",
                cause=f"{self.done} of {count} queries were answered in {TOO_LONG_S:g} s",
            )
        self._reached.clear()
        if self.error is not None:
            raise self.error

    def restart(self) -> None:
        """Start counting from zero."""
        self.done = self._awaited = 0

    def times_to_first_token(self) -> list[float]:
        """Return the times from issue to first token in ms, for queries whose issue was timed."""
        return [] if not self.issued else [(came - self.issued[key]) * 1e3 for key, came in self._firsts]

    def _count(self, ended: int) -> None:
        self.done += ended
        if self._awaited and self.done >= self._awaited:
            self._reached.set()


class _Meter:
    """The `shares` of a processor that the client's processes and the server used while it ran.

    `started` is empty until then.
    """

    def __init__(self, pids: Mapping[str, int | None]) -> None:
        self.shares: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def start(self) -> None:
        """Begin to measure the processor time of the processes."""
        self.started = self._times_used()

    def stop(self) -> None:
        """Compute each process's share of a processor since `start`."""
        used = {name: now - self.started[name] for name, now in self._times_used().items()}
        wall = used.pop("wall")
        self.shares = {name: seconds / wall for name, seconds in used.items()}

    def _times_used(self) -> dict[str, float]:
        times = {name: sum(process.cpu_times()[:2]) for name, process in self._processes.items()}
        return {"wall": time.monotonic(), **times}


@contextmanager
def _loopback(tokens: int, interval: int, step_s: float) -> Iterator[tuple[str, int]]:
    """Run the server in memory; yield its endpoint and its process's number."""
    words = [sys.executable, "-P", "-m", "cm4vllm.loadgen.process.loopback", str(tokens), str(interval), str(step_s)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            if not (port := cast(IO[bytes], process.stdout).readline().strip()):
                raise RunFailed(
                    "the client's self-check could not start its server",
                    cause="it ended immediately",
                    remedy="its output is in the run's console.log",
                )
            yield f"http://127.0.0.1:{port.decode()}", process.pid
        finally:
            process.kill()

"""The parts that look at one server: how soon it serves, and what it draws."""

import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from clients.real_vllm import RealVllm
from clients.task import HEADERS
from cm4vllm.hardware.machine_samples import energy_watched
from cm4vllm.records.energy import RunEnergy, Scope
from cm4vllm.serving.probing.server_requests import Site
from figures import Figure, figure
from first_hour.hour import Hour, LeftOut

#: The difference allowed between a counter of energy and the mean of nvidia-smi's power, as a share of the counter.
APART = 0.1
_LOOK_MS = 100
_ANSWER_S = 300


def readiness(hour: Hour) -> Iterator[Figure]:
    """Yield the seconds from a server's start to /health and to its first answer, for a first and a second start."""
    for title in ("first start", "second start"):
        healthy, answered = _start_times(hour.real)
        yield figure(f"Server, {title}, healthy after", [healthy], "s")
        yield figure(f"Server, {title}, first answer after", [answered], "s")


def _start_times(real: RealVllm) -> tuple[float, float]:
    """Return the seconds from the start of a server until it is healthy, and until it has answered."""
    began = time.monotonic()
    with real.served(real.settings()) as server:
        healthy = time.monotonic() - began
        site, body = Site(server.endpoint), {"model": "mock", "prompt": [1, 2, 3], "max_tokens": 1}
        with site.client() as client:
            answer = client.answer(
                "POST", site.url("/v1/completions"), headers=HEADERS, total_s=_ANSWER_S, body=json.dumps(body).encode()
            )
        if answer.status != 200:
            raise RuntimeError(f"the first request was answered with status {answer.status}")
        return healthy, time.monotonic() - began


def energy(hour: Hour) -> Iterator[Figure]:
    """Compare the counters of the boards with the mean of nvidia-smi's power, in one Offline run through LoadGen."""
    with energy_watched() as watch:
        if not any(counter.scope is Scope.GPU for counter, _ in watch.counters):
            raise LeftOut("; ".join(watch.missing) or "no GPU has a counter of energy")
        with hour.real.served(hour.real.settings()) as server:
            task = replace(hour.real.task, api=hour.real.api)
            hour.real.through_loadgen(server, task)
            with _power_sampled() as watts:
                begin = datetime.now(UTC)
                made = hour.real.through_loadgen(server, task)
                end = datetime.now(UTC)
        watch.read()
        counted = watch.energy(begin, end)
    yield figure("Energy, Offline run, through LoadGen", [made.rate], "tokens/s")
    yield from energy_figures(counted, watts)


@contextmanager
def _power_sampled() -> Iterator[list[float]]:
    """Yield the list of what nvidia-smi states for each board, in W, which is complete after the block."""
    words = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", f"-lms={_LOOK_MS}"]
    watts: list[float] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield watts
        finally:
            process.terminate()
            printed, _ = process.communicate(timeout=60)
            watts += [float(line) for line in printed.splitlines() if line.replace(".", "", 1).strip().isdigit()]


def energy_figures(counted: RunEnergy, watts: Sequence[float]) -> Iterator[Figure]:
    """Yield the energy of the boards by their counters and by samples of all boards' power, and how far apart both are.

    Raises LeftOut where no counter states the energy of the run.
    """
    boards = [counter.joules for counter in counted.counters if counter.scope is Scope.GPU]
    if not boards or not watts:
        raise LeftOut("; ".join(counted.not_measured) or "nvidia-smi states no power")
    by_counter, by_power = sum(boards), statistics.fmean(watts) * len(boards) * counted.seconds
    yield figure("Energy, by the boards' counters", [by_counter], "J")
    yield figure("Energy, by the mean of nvidia-smi's power", [by_power], "J")
    apart = abs(by_power - by_counter) / by_counter
    yield figure("Energy, how far both are apart", [apart], "share", at_most=APART)

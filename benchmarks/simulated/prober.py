"""Probes of simulated servers, on a simulated clock: the search with known answers. Nothing measured here is a result.

Queries are issued as LoadGen's Server scenario issues them, by its own arithmetic. All runs on a system have the same
schedule, stretched by the rate, and ask for the same answers in the same order; what differs between runs is the
server's noise. Times are in s, rates in queries/s. The same seeds give the same run.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cm4vllm.campaign.search.probe_verdict import Judge, ProbePlan, probe_record
from cm4vllm.campaign.search.projection import FullLength, Window
from cm4vllm.loadgen.process.messages import Latencies, Timed
from cm4vllm.records.logs.arrivals import arrivals
from cm4vllm.records.searches.rate_search import ProbeRecord
from cm4vllm.rules import LatencyLimits
from simulated.systems import Drift, Drifting, Served, System

#: Seconds between two reports of latencies, as in a real run.
TICK_S = 1.0
#: Queries are issued for so much longer than a probe counts them, until it is ended.
_LONGER = 1.6


@dataclass
class SimulatedProber:
    """Probes a simulated server, whose speed `drift` changes. `clock_s` is the time that all probes have taken."""

    system: System
    limits: LatencyLimits
    full: FullLength
    drift: Drift | None = None
    clock_s: float = 0.0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def probe(self, rate: float, plan: ProbePlan) -> tuple[ProbeRecord, Window]:
        number = next(self._numbers)
        judge = Judge(self.limits, rate, plan)
        full = self.full if plan.sure else FullLength(plan.seconds * _LONGER, self.full.seed)
        drift = dataclasses.replace(self.drift, at_s=max(0.0, self.drift.at_s - self.clock_s)) if self.drift else None
        served = _served(Drifting(self.system, drift) if drift else self.system, rate, full, number)
        verdict, ended = None, False
        for tick in _ticks(served, self.limits):
            if (verdict := judge.take(tick)) is not None:
                ended = tick.elapsed_s < plan.seconds
                break
        self.clock_s += tick.elapsed_s
        record = probe_record(number, rate, plan, judge, verdict, took_s=tick.elapsed_s, ended_early=ended)
        return record, judge.window


def full_length_run_is_valid(
    system: System, limits: LatencyLimits, rate: float, full: FullLength, *, noise: int
) -> bool:
    """Return True if LoadGen would call a full-length run valid at `rate`, whose noise has the number `noise`.

    Of a run with too few queries for LoadGen's test 1 % may be late.
    """
    served, most = _served(system, rate, full, noise), full.most_late(rate)
    values = {"TTFT": served.ttft_ms, "TPOT": served.tpot_ms, "latency": 1000 * (served.done - served.issued)}
    return all(np.count_nonzero(values[name] > limit) <= most for name, limit in limits.by_name.items())


def offline_rate(system: System, queries: int = 2000, *, seed: int = 0) -> float:
    """Return the queries/s of a system that gets all of them at once."""
    served = system.serve(np.zeros(queries), np.random.default_rng(seed + 1), np.random.default_rng((seed, 0)))
    return queries / float(served.done.max())


def _served(system: System, rate: float, full: FullLength, noise: int) -> Served:
    return system.serve(
        arrivals(rate, full.seed, full.queries(rate)),
        np.random.default_rng(full.seed + 1),
        np.random.default_rng((full.seed, noise)),
    )


def _ticks(served: Served, limits: LatencyLimits) -> Iterator[Latencies]:
    """Yield what a client would report every TICK_S, to the last answer."""
    order = np.argsort(served.done, kind="stable")
    timed = np.stack([served.issued, served.ttft_ms, served.tpot_ms, 1000 * (served.done - served.issued)], axis=1)
    answers = [Timed(*values) for values in timed[order].tolist()]
    ends = served.done[order]
    name, limit = limits.waiting or ("TTFT", math.inf)
    awaited, late = served.first if name == "TTFT" else served.done, limit / 1000
    oldest = 0
    for number in range(1, math.ceil(float(ends[-1]) / TICK_S) + 2):
        now = number * TICK_S
        begin, end = np.searchsorted(ends, (now - TICK_S, now), side="right")
        while oldest < len(ends) and served.done[oldest] <= now:
            oldest += 1
        issued = int(np.searchsorted(served.issued, now, side="right"))
        waiting = slice(oldest, issued)
        overdue = np.count_nonzero((awaited[waiting] > now) & (now - served.issued[waiting] > late))
        open_since = float(served.issued[oldest]) if oldest < issued else None
        yield Latencies(
            elapsed_s=now, issued=issued, overdue=int(overdue), oldest_open_s=open_since, answers=answers[begin:end]
        )
        if end == len(ends):
            return

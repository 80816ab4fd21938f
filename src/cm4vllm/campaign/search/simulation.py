"""Simulated servers on a simulated clock: the search with known answers. Nothing measured here is a result.

Queries arrive as LoadGen's Server scenario issues them: with exponentially distributed times between them, until the
planned end. As with LoadGen, whose seeds are those of the round, all runs on a system have the same schedule, stretched
by the rate, and ask for the same answers in the same order; what differs between runs is the server's noise. Times are
in s, rates in queries/s. The same seeds give the same run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from cm4vllm.campaign.search.judge import Judge, ProbePlan, probe_record
from cm4vllm.campaign.search.records import ProbeRecord, Verdict
from cm4vllm.common.errors import ServerDied
from cm4vllm.loadgen.early_stopping import passes
from cm4vllm.loadgen.messages import Latencies, Timed
from cm4vllm.rules import LatencyLimits

__all__ = ["Batching", "Dying", "Queue", "Served", "SimulatedProber", "System", "full_length_run_is_valid",
           "offline_rate"]

#: Seconds between two reports of latencies, as in a real run.
TICK_S = 1.0


@dataclass(frozen=True)
class Served:
    """One query: when it was issued, when its first and its last token came, and the number of tokens."""

    issued: float
    first: float
    done: float
    tokens: int

    @property
    def ttft_ms(self) -> float:
        return 1000 * (self.first - self.issued)

    @property
    def tpot_ms(self) -> float:
        return 1000 * (self.done - self.first) / (self.tokens - 1)


class System(Protocol):
    """A simulated server."""

    def serve(self, arrivals: list[float], lengths: random.Random, noise: random.Random) -> list[Served]:
        """Return what becomes of each arrival, in the order of arrival. Raises ServerDied.

        `lengths` gives the lengths of the answers, the same in each run, `noise` what differs between runs.
        """


@dataclass(frozen=True)
class Queue:
    """M/D/c: `servers` that each answer one query at a time in `service_s`, first come, first served.

    `noise` is the standard deviation of the logarithm of a service time, 0 for one that is always the same.
    """

    servers: int
    service_s: float
    tokens: int = 50
    noise: float = 0.0

    def serve(self, arrivals: list[float], lengths: random.Random, noise: random.Random) -> list[Served]:
        free = [0.0] * self.servers
        found = []
        for arrival in arrivals:
            begin = max(arrival, heapq.heappop(free))
            took = self.service_s * (noise.lognormvariate(-self.noise**2 / 2, self.noise) if self.noise else 1.0)
            heapq.heappush(free, begin + took)
            found.append(Served(arrival, begin + took / self.tokens, begin + took, self.tokens))
        return found


@dataclass(frozen=True)
class Batching:
    """Continuous batching: a step makes a token of each of at most `sequences` answers.

    A step takes `step_s`, `each_s` more for each running sequence and `prefill_s` for each that begins in it, of which
    there are at most `prefills`. Answers have from `shortest` to `longest` tokens. `noise` is the standard deviation of
    the logarithm of a step's time; one step in `stall_every` takes `stall_s` longer.
    """

    step_s: float = 0.02
    each_s: float = 0.0005
    prefill_s: float = 0.003
    sequences: int = 128
    prefills: int = 16
    shortest: int = 20
    longest: int = 60
    noise: float = 0.0
    stall_every: int = 0
    stall_s: float = 0.0

    def serve(self, arrivals: list[float], lengths: random.Random, noise: random.Random) -> list[Served]:
        tokens = [lengths.randint(self.shortest, self.longest) for _ in arrivals]
        first, done = [0.0] * len(arrivals), [0.0] * len(arrivals)
        running: list[tuple[int, int]] = []
        now, coming, finished, step = 0.0, 0, 0, 0
        while finished < len(arrivals):
            if not running and arrivals[coming] > now:
                now = arrivals[coming]
            begun = coming
            room = min(self.prefills, self.sequences - len(running))
            while coming < len(arrivals) and arrivals[coming] <= now and coming - begun < room:
                heapq.heappush(running, (step + tokens[coming] - 1, coming))
                coming += 1
            now += self._step(len(running), coming - begun, step, noise)
            first[begun:coming] = [now] * (coming - begun)
            while running and running[0][0] <= step:
                done[heapq.heappop(running)[1]] = now
                finished += 1
            step += 1
        return [Served(*one) for one in zip(arrivals, first, done, tokens, strict=True)]

    def _step(self, running: int, begun: int, step: int, noise: random.Random) -> float:
        took = self.step_s + self.each_s * running + self.prefill_s * begun
        if self.noise:
            took *= noise.lognormvariate(-self.noise**2 / 2, self.noise)
        if self.stall_every and step % self.stall_every == self.stall_every - 1:
            took += self.stall_s
        return took


@dataclass(frozen=True)
class Dying:
    """A server that ends when queries come faster than `above` queries/s."""

    system: System
    above: float

    def serve(self, arrivals: list[float], lengths: random.Random, noise: random.Random) -> list[Served]:
        if len(arrivals) > 1 and (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) > self.above:
            raise ServerDied("the simulated server ended", cause=f"more than {self.above:g} queries/s")
        return self.system.serve(arrivals, lengths, noise)


@dataclass
class SimulatedProber:
    """Probes a simulated server. `clock_s` is the time that all probes have taken; `seed` is that of the schedule."""

    system: System
    limits: LatencyLimits
    seed: int = 0
    clock_s: float = 0.0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def probe(self, rate: float, plan: ProbePlan) -> ProbeRecord:
        number = next(self._numbers)
        judge = Judge(self.limits, rate, plan)
        verdict: Verdict | None = None
        ticks = list(_ticks(_served(self.system, rate, plan.seconds, self.seed, number), self.limits))
        for tick in ticks:
            if (verdict := judge.take(tick)) is not None:
                break
        self.clock_s += tick.elapsed_s
        return probe_record(number, rate, plan, judge, verdict, took_s=tick.elapsed_s,
                            ended_early=verdict is not None and tick is not ticks[-1])


def full_length_run_is_valid(system: System, limits: LatencyLimits, rate: float, seconds: float, *, seed: int,
                             noise: int) -> bool:
    """Say what LoadGen would say of a run of `seconds` at `rate`: all queries count, from the first one on."""
    served = _served(system, rate, seconds, seed, noise)
    ttft, tpot = limits.ttft_ms or math.inf, limits.tpot_ms or math.inf
    return (passes(len(served), sum(one.ttft_ms > ttft for one in served))
            and passes(len(served), sum(one.tpot_ms > tpot for one in served)))


def offline_rate(system: System, queries: int = 2000, *, seed: int = 0) -> float:
    """Return the queries/s of a system that gets all of them at once."""
    served = system.serve([0.0] * queries, random.Random(seed), random.Random(-seed - 1))  # noqa: S311
    return queries / max(one.done for one in served)


def _served(system: System, rate: float, seconds: float, seed: int, noise: int) -> list[Served]:
    draw = random.Random(seed)  # noqa: S311 - a simulation
    times, now = [], 0.0
    while now < seconds:
        times.append(now)
        now += draw.expovariate(rate)
    return system.serve(times, random.Random(seed + 1), random.Random(1000 * seed + noise))  # noqa: S311


def _ticks(served: list[Served], limits: LatencyLimits) -> Iterator[Latencies]:
    """Give what a client would report every TICK_S, to the last answer."""
    by_end = sorted(served, key=lambda one: one.done)
    issued = ended = 0
    now = 0.0
    still: list[Served] = []
    while ended < len(by_end):
        now += TICK_S
        begin = ended
        while ended < len(by_end) and by_end[ended].done <= now:
            ended += 1
        while issued < len(served) and served[issued].issued <= now:
            still.append(served[issued])
            issued += 1
        still = [one for one in still if one.done > now]
        overdue = sum(one.first > now and 1000 * (now - one.issued) > (limits.ttft_ms or math.inf) for one in still)
        yield Latencies(
            elapsed_s=now, issued=issued, overdue=overdue, oldest_open_s=still[0].issued if still else None,
            answers=[Timed(one.issued, one.ttft_ms, one.tpot_ms, 1000 * (one.done - one.issued))
                     for one in by_end[begin:ended]])

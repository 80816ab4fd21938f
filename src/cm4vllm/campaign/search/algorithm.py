"""The search itself: which rates are tried, in which order and for how long. It asks a prober, and knows no server.

The first rate comes from the rate that the server reached Offline and from queueing theory. From there the rate moves
by steps whose logarithm doubles until one rate passes and a higher one does not; the bracket is then halved on the
logarithm of the rate, with probes that grow longer as it narrows. A probe that decides nothing is made again, twice as
long. In the end the highest passing rate must pass a probe of the longest kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cm4vllm.campaign.search.judge import ProbePlan
from cm4vllm.campaign.search.records import Boundary, ProbeRecord, Verdict
from cm4vllm.common.errors import InvalidResult
from cm4vllm.rules import LatencyLimits

__all__ = ["Found", "Prober", "SearchPlan", "queueing_estimate", "search"]

#: The first step away from the first rate, as a factor; its logarithm doubles with each further step.
_FIRST_STEP = 1.2
#: The largest step, as a logarithm, from a rate that fails a long probe to the next one.
_LARGEST_STEP = 0.08
#: Below this part of the first rate nothing is searched for.
_LEAST_PART = 1 / 100
#: Queries that a probe needs at least to decide: with two of them over a limit LoadGen's test asks for 838.
_LEAST_QUERIES = 900
#: A probe is so many times as long as an answer takes: the server fills in the first one, which is its warm-up.
_ANSWERS_LONG, _ANSWERS_WARM = 6, 1.5
#: At a rate this close above the highest passing one, a cliff shows as this share of late queries.
_NEAR, _CLIFF_SHARE = 1.06, 0.10


class Prober(Protocol):
    """Makes one probe. Raises CmError where the server cannot be measured at all."""

    def probe(self, rate: float, plan: ProbePlan) -> ProbeRecord: ...


@dataclass(frozen=True)
class SearchPlan:
    """How much is spent: seconds of the shortest and the longest probes, of a full-length run, and of all together.

    `precision` is the ratio of failing to passing rate, less one, at which the bracket is narrow enough.
    """

    full_s: float = 600.0
    shortest_s: float = 20.0
    longest_s: float = 300.0
    budget_s: float = 1200.0
    precision: float = 0.015

    def seconds(self, ratio: float) -> float:
        """Return how long a probe within a bracket of this ratio takes: the longest kind at the wanted precision."""
        if ratio <= 1:
            return self.longest_s
        part = math.log(1 + self.precision) / math.log(ratio)
        return max(self.shortest_s, min(self.longest_s / 2, self.longest_s * part))


@dataclass(frozen=True)
class Found:
    """What a search came to; see SearchRecord."""

    rate: float
    confirmed: bool
    lowest_failing: float | None
    low: float
    high: float | None
    binding: str
    cause: str
    boundary: Boundary
    stopped: str
    probes: tuple[ProbeRecord, ...]


def queueing_estimate(capacity: float, limits: LatencyLimits) -> float:
    """Return the rate, below `capacity` queries/s, at which 1 in 100 queries waits longer than the TTFT limit.

    The server is taken for an M/D/1 queue of that capacity, whose waiting time exceeds w with a probability of about
    load x exp(-2 (1 - load) capacity w).
    """
    if limits.ttft_ms is None:
        return capacity
    wait = limits.ttft_ms / 1000
    low, high = 0.0, 1.0
    for _ in range(50):
        load = (low + high) / 2
        if load * math.exp(-2 * (1 - load) * capacity * wait) > 0.01:
            high = load
        else:
            low = load
    return capacity * low


def search(prober: Prober, start: float, plan: SearchPlan,
           seen: Callable[[ProbeRecord], None] = lambda probe: None) -> Found:
    """Search from the rate `start` on; `seen` is called with each probe when it has ended.

    Raises InvalidResult where no rate passes, and what the prober raises.
    """
    return _Search(prober, plan, seen).run(_rounded(start))


class _Search:
    """A search under way: `passing` is the highest rate that passed, `over` the lowest that did not, so far."""

    def __init__(self, prober: Prober, plan: SearchPlan, seen: Callable[[ProbeRecord], None]) -> None:
        self._prober = prober
        self._plan = plan
        self._seen = seen
        self._probes: list[ProbeRecord] = []
        self._passing: float | None = None
        self._over: float | None = None

    def run(self, start: float) -> Found:
        self._bracket(start)
        self._narrow()
        confirmed = self._confirm()
        return self._found(confirmed)

    # --- the three phases --------------------------------------------------------------------------------------------

    def _bracket(self, start: float) -> None:
        rate, step = start, math.log(_FIRST_STEP)
        while self._passing is None or self._over is None:
            if self._passing is None and (rate < _LEAST_PART * start or self._spent >= self._plan.budget_s):
                raise self._none_passes()
            if self._spent >= self._plan.budget_s:
                return
            self._try(rate, math.inf)
            rate = _rounded(rate * math.exp(step if self._over is None else -step))
            step *= 2

    def _narrow(self) -> None:
        """Halve the bracket with short probes, which are too kind: what they say passes is tried once more."""
        while self._passing and self._over and self._ratio > (1 + self._plan.precision) ** 2:
            rate = _rounded(math.sqrt(self._passing * self._over))
            if not self._passing < rate < self._over or self._spent >= self._plan.budget_s:
                return
            self._try(rate, self._ratio)

    def _confirm(self) -> bool:
        """Look for the highest rate that passes a probe of the longest kind, from the highest passing one on.

        A rate that fails is left by steps whose logarithm doubles, and the bracket that they leave is halved again.
        """
        step, sure = math.log(1 + self._plan.precision), False
        rate = self._passing
        while rate is not None and self._spent < self._plan.budget_s:
            if self._probe(rate, self._plan.longest_s, sure=True).verdict is Verdict.PASSES:
                self._passing, sure = rate, True
            else:
                self._over = rate
            if not sure:
                rate = self._passing = _rounded(rate * math.exp(-step))
                step = min(2 * step, _LARGEST_STEP)
            elif self._over is None or self._ratio <= (1 + self._plan.precision) ** 2:
                return True
            else:
                rate = _rounded(math.sqrt((self._passing or rate) * self._over))
        return sure

    # --- one rate ----------------------------------------------------------------------------------------------------

    def _try(self, rate: float, ratio: float) -> None:
        """Probe a rate, for longer where that decides nothing; what stays undecided does not pass."""
        probe = self._probe(rate, self._plan.seconds(ratio) if math.isfinite(ratio) else self._plan.shortest_s)
        while not probe.decided and probe.planned_s < self._plan.longest_s / 2 and self._spent < self._plan.budget_s:
            probe = self._probe(rate, 2 * probe.planned_s)
        if probe.verdict is Verdict.PASSES:
            self._passing = max(rate, self._passing or 0.0)
        else:
            self._over = min(rate, self._over or math.inf)

    def _probe(self, rate: float, seconds: float, *, sure: bool = False) -> ProbeRecord:
        answer_s = max((one.answer_ms for one in self._probes), default=0.0) / 1000
        seconds = max(seconds, min(_LEAST_QUERIES / rate, self._plan.full_s),
                      min(_ANSWERS_LONG * answer_s, self._plan.longest_s))
        warm_up = min(max(seconds / 6, _ANSWERS_WARM * answer_s), seconds / 3)
        probe = self._prober.probe(rate, ProbePlan(seconds=seconds + warm_up, warm_up_s=warm_up,
                                                   full_s=self._plan.full_s, sure=sure))
        self._probes.append(probe)
        self._seen(probe)
        return probe

    # --- the result --------------------------------------------------------------------------------------------------

    @property
    def _spent(self) -> float:
        return sum(one.took_s for one in self._probes)

    @property
    def _ratio(self) -> float:
        return (self._over or math.inf) / (self._passing or 1.0)

    def _found(self, confirmed: bool) -> Found:
        rate = self._passing or 0.0
        above = [one for one in self._probes if one.rate > rate and one.verdict is not Verdict.PASSES]
        failed = [one for one in above if one.verdict is Verdict.FAILS]
        nearest = min(failed or above, key=lambda one: (one.rate, -one.took_s), default=None)
        binding = nearest.binding if nearest else None
        stopped = "the bracket is narrow enough" if confirmed else "its time budget was used up"
        return Found(rate=rate, confirmed=confirmed, lowest_failing=min((one.rate for one in failed), default=None),
                     low=rate, high=self._over, binding=binding.name if binding else "",
                     cause=nearest.server if nearest else "", boundary=_boundary(rate, above), stopped=stopped,
                     probes=tuple(self._probes))

    def _none_passes(self) -> InvalidResult:
        last = self._probes[-1]
        said = ", ".join(f"{one.name} p99 {one.p99_ms:,.1f} ms of {one.limit_ms:g}" if one.p99_ms is not None else
                         f"no {one.name} seen" for one in last.limits)
        return InvalidResult("no rate that keeps the latency limits was found",
                             cause=f"at {last.rate:g} queries/s, after {len(self._probes)} probes: {said}",
                             remedy="a smaller model or more servers may keep the limits\n"
                             "or give --server_target_qps of run-mlperf,inference, to run at a fixed rate instead")


def _boundary(rate: float, above: list[ProbeRecord]) -> Boundary:
    near = [one for one in above if one.rate <= rate * _NEAR]
    if not near:
        return Boundary.UNKNOWN
    worst = min(limit.within for one in near for limit in one.limits)
    return Boundary.CLIFF if worst < 1 - _CLIFF_SHARE or any(one.growing for one in near) else Boundary.SMOOTH


def _rounded(rate: float) -> float:
    """Return a rate to four digits: what is written in user.conf and in reports."""
    return float(f"{rate:.4g}")

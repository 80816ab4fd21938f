"""Projection of a probe to a full-length run: the rate at which that run would just keep a limit.

LoadGen's seeds fix the schedule of a run: the queries of a probe are the first ones of the full-length run, and the
rest of that run is known, too. A short probe may meet a calm part of the schedule or a crowded one, so its own
percentiles are not those of the full-length run. Here a simple model of a server, fitted to the probe, is run over
both: over the part that the probe saw, where it has to give the latency that was seen there, and then over the whole
schedule.

For TTFT the model is a queue with one server of constant speed, for the latency of whole answers the same and a time of
each answer's own. For TPOT it is a batch whose steps take longer the more answers are under way. They are models of the
latency that decides, not of the server: what they say of a rate far from the probe's is a guess, and the search probes
where they point to.

For the interval of the true rate, the rate to which all probes point together is found again without each of them in
turn (the jackknife): how much that changes is its standard error. The server's noise and the errors of the models are
in it, as far as they differ from probe to probe; an error that all probes share is not.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cm4vllm.common.student import student_t
from cm4vllm.records.logs.arrivals import Times, arrivals
from cm4vllm.records.logs.early_stopping import PERCENTILE, most_over
from cm4vllm.records.searches.rate_search import Interval, ProbeRecord


@dataclass(frozen=True)
class FullLength:
    """A run of at least `seconds`, by LoadGen's seed of the schedule.

    `whole` is the size of the dataset where LoadGen issues whole datasets only, 1 elsewhere; `least` is the number of
    queries that it has at least.
    """

    seconds: float
    seed: int
    whole: int = 1
    least: int = 1

    def queries(self, rate: float) -> int:
        reached = int(np.searchsorted(_unit(self.seed, self.seconds * rate), self.seconds * rate)) + 1
        return -(-max(reached, self.least) // self.whole) * self.whole

    def duration(self, rate: float) -> float:
        """Return for how many seconds such a run issues queries."""
        return max(self.seconds, self.queries(rate) / rate)

    def arrivals(self, rate: float) -> Times:
        """Return when its queries are issued, in s."""
        queries = self.queries(rate)
        return _unit(self.seed, queries)[:queries] / rate

    def most_late(self, rate: float) -> int:
        """Return how many of its queries may be over a limit: 1 % where it is too short for LoadGen's test."""
        queries = self.queries(rate)
        most = most_over(queries)
        return most if most >= 0 else int((1 - PERCENTILE) * queries)


def _unit(seed: int, queries: float) -> Times:
    """Return a schedule of 1 query/s with more than so many queries."""
    return _of_size(seed, 2 ** math.ceil(math.log2(max(queries, 1) * 1.1 + 500)))


@lru_cache(maxsize=4)
def _of_size(seed: int, queries: int) -> Times:
    return arrivals(1.0, seed, queries)


#: Queries from which on a probe says anything.
_LEAST_QUERIES = 50
#: Below this share of a limit the model of it is not worth running: the rate that the limit allows is far away.
_NEAR_TTFT, _NEAR_TPOT, _NEAR_LATENCY = 0.02, 0.5, 0.1
#: Capacities of the queue that are tried for whole answers, as factors of the probe's rate, and their number.
_CAPACITIES = (0.7, 3.0, 120)
#: The factor around a probe's rate within which the models look for the rate of the limit.
_FURTHEST = 6.0
#: Points count less by their distance: of the rate from the estimate, and of the rate from what the point says.
_NEAR_RATE, _NEAR_EDGE = 0.05, 0.1
#: A longer probe counts for more, but not in proportion: late queries come in groups.
_TIME_POWER = 0.7
#: The spread of rates from which on the points themselves say how the models err with the rate.
_TRUSTED_SPREAD = 0.02
#: A full-length run counts for so many times its seconds: the schedule that decides is its own, to its end or to the
#: passage that failed it.
_FULL_LENGTH = 4.0
#: The least number of probes that say something.
_LEAST = 3


@dataclass(frozen=True)
class Window:
    """The queries of a probe that are known: all issued before the first one without its answer, in that order.

    Times are in s. `tpot` is NaN for an answer of one token. Those issued before `warm_up` shape the queue, but are not
    judged; in a full-length run, `whole`, all are.
    """

    rate: float
    seconds: float
    warm_up: float
    whole: bool
    issued: Times
    ttft: Times
    tpot: Times
    done: Times

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        return self.issued >= self.warm_up

    def values(self, name: str) -> Times:
        """Return what a limit of this name limits: TTFT, TPOT, or the latency of whole answers."""
        return {"TTFT": self.ttft, "TPOT": self.tpot, "latency": self.done - self.issued}[name]

    def rank(self, full: FullLength) -> int:
        """Return how many latencies are over the one that decides.

        In a full-length run, or its beginning, it is the number that may be late; in a probe the same share.
        """
        most = full.most_late(self.rate)
        if self.whole:
            return most
        return int((most + 0.5) / full.queries(self.rate) * np.count_nonzero(self.judged))


@dataclass(frozen=True)
class Point:
    """The projection from a probe at `rate`: the highest rate at which a full-length run meets the limit is `edge`.

    A fit over several probes weights it by `seconds`.
    """

    rate: float
    edge: float
    seconds: float


def project(window: Window, limits_ms: dict[str, float], full: FullLength) -> dict[str, float]:
    """Return for each limit the rate at which a full-length run would just keep it, where the probe tells."""
    if np.count_nonzero(window.judged) < _LEAST_QUERIES:
        return {}
    models = {"TTFT": _ttft_edge, "TPOT": _tpot_edge, "latency": _latency_edge}
    edges = {name: models[name](window, limit / 1000, full) for name, limit in limits_ms.items()}
    return {name: edge for name, edge in edges.items() if edge is not None}


def meeting_point(points: Sequence[Point]) -> float:
    """Return the rate at which probes would say that it is itself the rate of the limit.

    With a perfect model all points say the same. What they say of rates far away is wrong by an amount that changes
    with the rate, so ln(edge / rate) is taken as a line in ln(rate), and where it crosses 0 is returned. Few points
    close to each other give no slope: it is -1 then, that of a perfect model.
    """
    x = np.log([point.rate for point in points])
    off = np.log([point.edge / point.rate for point in points])
    time = np.array([point.seconds for point in points])
    here = float((x + off)[np.argmax(time / (1 + (off / _NEAR_RATE) ** 2))])
    for _ in range(4):
        weight = time**_TIME_POWER / (1 + ((x - here) / _NEAR_RATE) ** 2 + (off / _NEAR_EDGE) ** 2)
        weight /= weight.sum()
        mean_x, mean_off = float(weight @ x), float(weight @ off)
        slope = (float(weight @ ((x - mean_x) * (off - mean_off))) - _TRUSTED_SPREAD**2) / (
            float(weight @ (x - mean_x) ** 2) + _TRUSTED_SPREAD**2
        )
        here = mean_x - mean_off / min(-0.5, max(-5.0, slope))
    return math.exp(here)


def rate_interval(probes: Sequence[ProbeRecord]) -> Interval | None:
    """Return the interval by the probes of a search; None where too few of them say something."""
    telling = [probe for probe in probes if probe.projected]
    if len(telling) < _LEAST:
        return None
    whole = predicted_rate(telling)
    without = [math.log(predicted_rate([*telling[:place], *telling[place + 1 :]])) for place in range(len(telling))]
    count = len(telling)
    error = math.sqrt((count - 1) ** 2 / count * statistics.variance(without))
    reach = math.exp(student_t(0.975, count - 1) * error)
    return Interval(
        rate=float(f"{whole:.4g}"), low=float(f"{whole / reach:.4g}"), high=float(f"{whole * reach:.4g}"), probes=count
    )


def predicted_rate(probes: Sequence[ProbeRecord]) -> float:
    """Return the rate at which the first limit is reached, by all probes. One of them must have a projection."""
    points: dict[str, list[Point]] = {}
    for probe in probes:
        seconds = min(probe.took_s, probe.planned_s) * (_FULL_LENGTH if probe.sure else 1.0)
        for name, edge in probe.projected.items():
            points.setdefault(name, []).append(Point(probe.rate, edge, seconds))
    return min(map(meeting_point, points.values()))


# --- TTFT: a queue ---------------------------------------------------------------------------------------------------


def _ttft_edge(window: Window, limit: float, full: FullLength) -> float | None:
    judged, rank = window.judged, window.rank(full)
    base = float(np.percentile(window.ttft[judged], 5))  # of a query that does not wait
    seen = largest_but(window.ttft[judged], rank)
    if seen - base < _NEAR_TTFT * (limit - base) or base >= limit:
        return window.rate / _FURTHEST if base >= limit else None

    def above(capacity: float) -> bool:
        return largest_but(_waits(window.issued, capacity)[judged], rank) + base > seen

    capacity = _boundary(above, window.rate / 2, window.rate * _FURTHEST)

    def keeps_limit(rate: float) -> bool:
        return largest_but(_waits(full.arrivals(rate), capacity), full.most_late(rate)) + base <= limit

    return _boundary(keeps_limit, capacity * 0.3, capacity * 1.3)


def _waits(issued: Times, capacity: float) -> Times:
    """Return the waiting time of each query if the server answers one at a time, `capacity` of them in a second."""
    served = np.arange(len(issued)) / capacity
    waits: Times = np.maximum.accumulate(issued - served) + served - issued
    return waits


# --- whole answers: a queue, and the time that each answer takes by itself --------------------------------------------


def _latency_edge(window: Window, limit: float, full: FullLength) -> float | None:
    """Take from each answer what it waited in the queue whose waits explain most of what differs; the rest is its own.

    Answers differ in length: what is left of each is added again to the waits of the full-length run.
    """
    judged, values = window.judged, window.values("latency")
    if largest_but(values[judged], window.rank(full)) < _NEAR_LATENCY * limit:
        return None
    capacities = window.rate * np.geomspace(*_CAPACITIES)
    spreads = [float(np.std((values - _waits(window.issued, capacity))[judged])) for capacity in capacities]
    capacity = float(capacities[int(np.argmin(spreads))])
    own = (values - _waits(window.issued, capacity))[judged]

    def keeps_limit(rate: float) -> bool:
        waits = _waits(full.arrivals(rate), capacity)
        return largest_but(waits + np.resize(own, len(waits)), full.most_late(rate)) <= limit

    low, high = capacity * 0.3, capacity * 1.3
    return _boundary(keeps_limit, low, high) if keeps_limit(low) else window.rate / _FURTHEST


# --- TPOT: a batch ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """A step takes `step_s`, `each_s` more for each answer under way, and `begin_s` once for each that begins."""

    step_s: float
    each_s: float
    begin_s: float

    def slower(self, factor: float) -> _Batch:
        return _Batch(self.step_s * factor, self.each_s * factor, self.begin_s * factor)

    def tpot(self, issued: Times, tokens: Sequence[float]) -> Times:
        """Return the time per token of each answer. All answers under way advance alike, so `steps` serves them all."""
        now = steps = 0.0
        running: list[tuple[float, int]] = []
        done, begins = [0.0] * len(issued), issued.tolist()
        for number, begin in enumerate(begins):
            while running:
                took = self.step_s + self.each_s * len(running)
                end = now + (running[0][0] - steps) * took
                if end > begin:
                    steps += (begin - now) / took
                    break
                now = end
                steps, ended = heapq.heappop(running)
                done[ended] = now
            now = begin
            steps -= self.begin_s / (self.step_s + self.each_s * (len(running) + 1))
            heapq.heappush(running, (steps + tokens[number], number))
        while running:
            took = self.step_s + self.each_s * len(running)
            last, ended = heapq.heappop(running)
            now, steps = now + (last - steps) * took, last
            done[ended] = now
        times: Times = (np.array(done) - issued) / np.array(tokens)
        return times


def _tpot_edge(window: Window, limit: float, full: FullLength) -> float | None:
    known = np.isfinite(window.tpot)
    judged, rank = window.judged & known, window.rank(full)
    if np.count_nonzero(judged) < _LEAST_QUERIES:
        return None
    seen = largest_but(window.tpot[judged], rank)
    if seen < _NEAR_TPOT * limit:
        return None
    tokens = np.where(known, (window.done - window.issued - window.ttft) / np.where(known, window.tpot, 1.0), 1.0)
    tokens = np.maximum(tokens, 1.0)
    batch = _fit(window, tokens)
    lengths = tokens.tolist()

    def excess(log_factor: float) -> float:
        times = batch.slower(math.exp(log_factor)).tpot(window.issued, lengths)
        return math.log(largest_but(times[judged], rank) / seen)

    fitted = batch.slower(math.exp(_root(excess, 0.0, 2.0)))

    def over(log_rate: float) -> float:
        issued = full.arrivals(math.exp(log_rate))
        again = (lengths * (len(issued) // len(lengths) + 1))[: len(issued)]  # LoadGen, too, issues the samples again
        return math.log(largest_but(fitted.tpot(issued, again), full.most_late(math.exp(log_rate))) / limit)

    return math.exp(_root(over, math.log(window.rate) - math.log(seen / limit) / 3, 3.0))


def _fit(window: Window, tokens: Times) -> _Batch:
    """Fit the time of a step to the answers that ended while all that was under way is known."""
    known = np.isfinite(window.tpot) & (window.done <= window.issued[-1])
    first, done = (window.issued + window.ttft)[known], window.done[known]
    mean = float(np.mean(window.tpot[np.isfinite(window.tpot)]))
    if len(first) < _LEAST_QUERIES:
        return _Batch(mean, 0.0, 0.0)
    running = (_integral(window, done) - _integral(window, first)) / np.maximum(done - first, 1e-9)
    begun = (np.searchsorted(window.issued, done) - np.searchsorted(window.issued, first)) / tokens[known]
    columns = np.stack([np.ones(len(first)), running, begun], axis=1)
    used = [0, 1, 2]
    while True:  # a step does not take less time for more work
        coefficients, *_ = np.linalg.lstsq(columns[:, used], window.tpot[known], rcond=None)
        negative = [column for column, value in zip(used, coefficients, strict=True) if column and value < 0]
        if not negative:
            break
        used.remove(negative[0])
    values = dict(zip(used, coefficients.tolist(), strict=True))
    return _Batch(max(values[0], 1e-4 * mean), values.get(1, 0.0), values.get(2, 0.0))


def _integral(window: Window, times: Times) -> Times:
    """Return the integral of the number of answers under way from the beginning to each of the times."""
    at = np.concatenate([window.issued, window.done])
    order = np.argsort(at, kind="stable")
    at = at[order]
    count = np.cumsum(np.where(order < len(window.issued), 1.0, -1.0))
    until = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(at))])
    place = np.clip(np.searchsorted(at, times, side="right") - 1, 0, len(at) - 1)
    integral: Times = until[place] + count[place] * (times - at[place])
    return integral


# --- numbers ---------------------------------------------------------------------------------------------------------


def largest_but(values: Times, count: int) -> float:
    """Return the largest of the values but the `count` largest."""
    place = len(values) - 1 - min(count, len(values) - 1)
    return float(np.partition(values, place)[place])


def _boundary(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return up to which number `holds` does, between the two."""
    while high / low > 1.0003:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _root(value: Callable[[float], float], start: float, slope: float) -> float:
    """Return the place at which `value`, which grows with about `slope`, is 0."""
    at, below, above = start, None, None
    for _ in range(6):
        here = value(at)
        if abs(here) < 0.002:
            break
        below, above = ((at, here), above) if here < 0 else (below, (at, here))
        if below is None or above is None:
            at -= max(-0.3, min(0.3, here / slope))
        else:
            width = above[0] - below[0]
            at = below[0] - width * below[1] / (above[1] - below[1])
            at = min(max(at, below[0] + 0.1 * width), above[0] - 0.1 * width)
    return at

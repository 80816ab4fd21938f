"""The latencies of a running performance run, judged as by LoadGen: of all answers so far, and of the newest ones.

They are read from the client's record of its samples (`sample_times`), in a thread of their own: while the test runs,
nothing more is noted than without them.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cm4vllm.loadgen.client.sample_times import SampleTimes
from cm4vllm.loadgen.process.messages import Latencies, LatencyStatus, Timed
from cm4vllm.records.logs.early_stopping import PERCENTILE, missing_queries, most_over
from cm4vllm.records.sample_times import Rows
from cm4vllm.rules import LatencyLimits

_MS = 1e6
_OPEN = np.dtype([("key", "=u8"), ("at", "=i8"), ("first", "=i8")])
#: The lower edge of the first class of a tally in ms, the ratio of two edges, and the number of classes: to 3 hours.
_LEAST_MS, _RATIO, _CLASSES = 1e-3, 1.01, 2316
#: The factor by which the known queries grow until the bound of a percentile is computed again: a bound for fewer
#: queries holds for more, too.
_GROWTH = 1.1

Floats = npt.NDArray[np.float64]


@dataclass
class Tally:
    """Counts times in ms by classes of 1 %. What it says of percentiles is the middle of a class."""

    name: str
    limit_ms: float | None = None
    queries: int = 0
    over: int = 0
    _counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_CLASSES, np.int64))
    _allowed: int = -1
    _due: float = 0.0

    def add(self, values: Floats) -> None:
        """Add latencies in ms to the histogram."""
        classes = np.log(np.maximum(values, _LEAST_MS) / _LEAST_MS) / math.log(_RATIO)
        self._counts += np.bincount(np.minimum(classes, _CLASSES - 1).astype(np.int64), minlength=_CLASSES)
        self.queries += len(values)
        if self.limit_ms is not None:
            self.over += int(np.count_nonzero(values > self.limit_ms))

    def status(self) -> LatencyStatus:
        """Return the status of the times so far; there is one at least."""
        below = np.cumsum(self._counts)
        p50, p99 = (self._at_rank(below, int(self.queries * part)) for part in (0.5, PERCENTILE))
        if self.limit_ms is None:
            return LatencyStatus(name=self.name, queries=self.queries, p50_ms=p50, p99_ms=p99)
        if self.queries >= self._due:
            self._due, self._allowed = self.queries * _GROWTH, most_over(self.queries)
        bound = self._at_rank(below, self.queries - 1 - self._allowed, upper=True) if self._allowed >= 0 else None
        return LatencyStatus(
            name=self.name,
            queries=self.queries,
            p50_ms=p50,
            p99_ms=p99,
            limit_ms=self.limit_ms,
            over=self.over,
            missing=self._missing(),
            p99_at_most_ms=bound,
        )

    def _missing(self) -> int:
        if self.over <= (1 - PERCENTILE) * self.queries:
            return missing_queries(self.queries, self.over)
        # The test itself would take long for so many; it asks for more than the percentile does.
        return math.ceil(self.over / (1 - PERCENTILE)) - self.queries

    def _at_rank(self, below: npt.NDArray[np.int64], rank: int, *, upper: bool = False) -> float:
        """Return the time of this rank, counted from 0 in ascending order, or the upper edge of its class."""
        place = int(np.searchsorted(below, rank, side="right")) + (1.0 if upper else 0.5)
        return round(float(_LEAST_MS * _RATIO**place), 3)


class LiveLatencies:
    """Reads `times` while the test runs; `take` is called in one thread.

    TTFT is counted from the moment at which LoadGen issued the sample, TPOT over the tokens after the first one. The
    keys of the samples must differ, as they do in a performance run.
    """

    def __init__(self, times: SampleTimes, limits: LatencyLimits | None) -> None:
        """Take the times of the samples, and the limits of the scenario, None where it has none."""
        ttft, tpot, whole = (limits.ttft_ms, limits.tpot_ms, limits.latency_ms) if limits else (None, None, None)
        self._times = times
        waiting = limits.waiting if limits else None
        self._limit_ns = math.inf if waiting is None else waiting[1] * _MS
        self._tallies = Tally("TTFT", ttft), Tally("TPOT", tpot), Tally("answer", whole)
        # Answers that come whole have no first token.
        self._shown = self._tallies[2:] if waiting and waiting[0] == "latency" else self._tallies
        self._open = np.empty(0, _OPEN)
        # A sample's issue may be noted after its first token, since it is noted behind the sending: what comes too
        # early waits for it.
        self._early_first: Rows | None = None
        self._early_ended: Rows | None = None
        self._begin_ns = 0
        self._issued_count = 0

    def status(self) -> tuple[LatencyStatus, ...]:
        """Return the status of all answers so far."""
        return tuple(tally.status() for tally in self._shown if tally.queries)

    def take(self, *, answers: bool = True) -> Latencies:
        """Return what is open now, and with `answers` the times of the answers that came since the last call."""
        issued, first, ended = self._times.events_since_last_call()
        if len(issued) and not self._begin_ns:
            self._begin_ns = int(issued["at"][0])
        self._issued_count += len(issued)
        added = np.zeros(len(issued), _OPEN)
        added["key"], added["at"] = issued["key"], issued["at"]
        waiting = np.concatenate([self._open, added])
        waiting = waiting[np.argsort(waiting["key"], kind="stable")]
        first = first if self._early_first is None else np.concatenate([self._early_first, first])
        ended = ended if self._early_ended is None else np.concatenate([self._early_ended, ended])
        places, known = _places_of(waiting, first)
        waiting["first"][places] = first["at"][known]
        self._early_first = first[~known]
        places, known = _places_of(waiting, ended)
        self._early_ended = ended[~known]
        answered = waiting[places]
        still = np.ones(len(waiting), bool)
        still[places] = False
        self._open = waiting[still]
        return self._news(answered, ended[known], answers=answers)

    def _news(self, answered: Rows, ended: Rows, *, answers: bool) -> Latencies:
        """Return the latencies of what was answered since the last call, added to all before."""
        now_ns = time.monotonic_ns()
        begin, last = answered["at"], ended["at"]
        first = np.where(answered["first"] == 0, last, answered["first"])
        tokens = ended["tokens"]
        tpot = np.where(tokens > 1, (last - first) / _MS / np.maximum(tokens - 1, 1), math.nan)
        ttft, latency = (first - begin) / _MS, (last - begin) / _MS
        for tally, values in zip(self._tallies, (ttft, tpot[tokens > 1], latency), strict=True):
            tally.add(values)
        late = (self._open["first"] == 0) & (now_ns - self._open["at"] > self._limit_ns)
        columns = ((begin - self._begin_ns) / 1e9, ttft, tpot, latency)
        rows = zip(*(column.tolist() for column in columns), strict=True) if answers else ()
        return Latencies(
            elapsed_s=(now_ns - self._begin_ns) / 1e9 if self._begin_ns else 0.0,
            issued=self._issued_count,
            overdue=int(np.count_nonzero(late)),
            oldest_open_s=(int(self._open["at"].min()) - self._begin_ns) / 1e9 if len(self._open) else None,
            answers=[Timed(at, first, None if math.isnan(each) else each, whole) for at, first, each, whole in rows],
        )


def _places_of(waiting: Rows, events: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the places of the events' samples in `waiting`, which is ordered by key, and the events' own places."""
    if not len(waiting):
        return np.empty(0, np.int64), np.zeros(len(events), bool)
    places = np.minimum(np.searchsorted(waiting["key"], events["key"]), len(waiting) - 1)
    known = waiting["key"][places] == events["key"]
    return places[known], known

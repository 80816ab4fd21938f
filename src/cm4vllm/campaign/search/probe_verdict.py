"""The judgement of a probe: when is it certain that a rate keeps the limits, or that it does not?

A judge is fed with latencies as they come, by the records of the client in a real run and by the simulator in a
simulated one, and uses LoadGen's early-stopping test. It knows of three things that LoadGen's test alone does not:
queries of the warm-up do not count, since a short run begins with an empty server; answers that are still open are not
forgotten, since the slow ones come last; and a time to first token that grows steadily will pass its limit later on.
"""

import heapq
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cm4vllm.campaign.search.projection import Window
from cm4vllm.loadgen.process.messages import Latencies, Timed
from cm4vllm.records.logs.early_stopping import CONFIDENCE, is_surely_failing, passes, percentile, wilson_interval
from cm4vllm.records.searches.rate_search import LimitRecord, ProbeRecord, Verdict
from cm4vllm.rules import LatencyLimits

#: To end a probe early takes more certainty than LoadGen's test has: late queries come in groups, and the test takes
#: them for independent.
_EARLY_CONFIDENCE = 1 - 1e-6
#: The part of a probe that is made in any case, unless so many queries are late that nothing more is learnt from it.
_LEAST_PART, _HOPELESS = 0.5, 0.5
#: A probe waits for answers to what it has issued for at most this part of its time.
_LONGEST_WAIT = 0.25
#: Growth is looked for in so many parts of the time, of so many queries each at least, and believed from this ratio of
#: slope to standard error on: 1 in 500 for independent values and eight parts.
_PARTS, _LEAST_IN_A_PART, _CERTAIN_SLOPE = 8, 5, 4.5


@dataclass(frozen=True)
class ProbePlan:
    """Seconds in which a probe issues queries: the first `warm_up_s` do not count; `full_s` is a full-length run's.

    A probe that is `sure` is a full-length run: all its queries count, it passes at its end, and fails before only when
    more than `most_late` queries are late, with which it cannot pass any more.
    """

    seconds: float
    warm_up_s: float
    full_s: float
    sure: bool = False
    most_late: int = 0


class Judge:
    """Feed it with `take`; it returns a verdict as soon as the probe may end. `verdict` is that of all that came."""

    def __init__(self, limits: LatencyLimits, rate: float, plan: ProbePlan) -> None:
        self._rate = rate
        self._plan = plan
        self._limits: Mapping[str, float] = limits.by_name
        #: The limit that queries meet while they wait.
        self._waiting = limits.waiting
        self._over = dict.fromkeys(self._limits, 0)
        self._values: dict[str, list[float]] = {name: [] for name in self._limits}
        #: The queries that count: issued after the warm-up, and all before them answered.
        self.queries = 0
        #: Answers to queries that others issued before them have not had yet, by the time of issue.
        self._ahead: list[tuple[float, int, Timed]] = []
        self._seen = 0
        #: The last report.
        self.last = Latencies(elapsed_s=0.0, answers=[], issued=0, overdue=0, oldest_open_s=None)
        self._known: list[Timed] = []
        self._latency_sum = 0.0

    def take(self, news: Latencies) -> Verdict | None:
        """Count what is new; return the verdict where it is certain, or where the probe has issued its queries."""
        for answer in news.answers:
            self._seen += 1
            self._latency_sum += answer.latency_ms
            heapq.heappush(self._ahead, (answer.issued_s, self._seen, answer))
        self.last = news
        until = math.inf if news.oldest_open_s is None else news.oldest_open_s
        while self._ahead and self._ahead[0][0] < until:
            self._count(heapq.heappop(self._ahead)[2])
        if self._plan.sure:
            return Verdict.FAILS if any(late > self._plan.most_late for _, _, late in self._late()) else None
        return self._early_verdict(news, until)

    def verdict(self) -> Verdict:
        """Return the verdict at the probe's end."""
        if self._is_passing():
            return Verdict.PASSES
        fails = self._plan.sure or any(is_surely_failing(queries, late) for _, queries, late in self._late())
        return Verdict.FAILS if fails else Verdict.UNDECIDED

    @property
    def exceeded(self) -> str:
        """The limits that more queries are over than a valid run may have, in words; empty where there is none.

        Queries that wait for their answer count, too: of those that count in `limits`, all may be within.
        """
        words = [
            f"{name}, which {late:,} of {queries:,} queries exceed, {late - self._over[name]:,} of them unanswered"
            if late > self._over[name]
            else f"{name}, which {late:,} of {self.queries:,} queries exceed"
            for name, queries, late in self._late()
            if late and not passes(queries, late)
        ]
        if self.growing and self._waiting is not None:
            words.append(f"{self._waiting[0]}, which rises steadily and would exceed it in a full-length run")
        return "; ".join(words)

    @property
    def answer_ms(self) -> float:
        """The mean time of a whole answer; 0 where there was none."""
        return self._latency_sum / self._seen if self._seen else 0.0

    @property
    def ttft_ms(self) -> float | None:
        """The mean time to first token of the queries that count; None where it has no limit, or none counts."""
        values = self._values.get("TTFT")
        return statistics.fmean(values) if values else None

    @property
    def window(self) -> Window:
        """The probe's data for projections to a full-length run."""
        issued, ttft, tpot, latency = np.array(
            [
                (
                    query.issued_s,
                    query.ttft_ms / 1000,
                    math.nan if query.tpot_ms is None else query.tpot_ms / 1000,
                    query.latency_ms / 1000,
                )
                for query in self._known
            ]
            or np.empty((0, 4))
        ).T
        return Window(
            rate=self._rate,
            seconds=min(self.last.elapsed_s, self._plan.seconds),
            warm_up=self._plan.warm_up_s,
            whole=self._plan.sure,
            issued=issued,
            ttft=ttft,
            tpot=tpot,
            done=issued + latency,
        )

    @property
    def growing(self) -> bool:
        """Return True if the time that queries wait rises steadily, above its limit at the end of a full-length run.

        It is the time to first token, or that of the whole answer where that has the limit.
        """
        if self._waiting is None:
            return False
        name, limit = self._waiting
        counted = [query for query in self._known if query.issued_s >= self._plan.warm_up_s]
        size = len(counted) // _PARTS
        if size < _LEAST_IN_A_PART:
            return False
        waits = np.array([(query.issued_s, _value(query, name) or 0.0) for query in counted[: _PARTS * size]])
        times, means = waits.reshape(_PARTS, size, 2).mean(axis=1).T
        (slope, intercept), covariance = np.polyfit(times, means, 1, cov=True)
        spread = math.sqrt(covariance[0, 0])
        return bool(slope * self._plan.full_s + intercept > limit and slope > _CERTAIN_SLOPE * spread)

    def limits(self) -> list[LimitRecord]:
        """Return the status of each limit by the queries that count."""
        records = []
        for name, limit in self._limits.items():
            counted, over, values = self.queries, self._over[name], self._values[name]
            low, high = wilson_interval(counted - over, counted)
            records.append(
                LimitRecord(
                    name=name,
                    limit_ms=limit,
                    over=over,
                    within=1 - over / counted if counted else 0.0,
                    low=low,
                    high=high,
                    p99_ms=round(percentile(values), 3) if values else None,
                )
            )
        return records

    def _early_verdict(self, news: Latencies, until: float) -> Verdict | None:
        """Return the verdict of a probe that may end now: it is certain, or all that was issued in time is answered."""
        half = self._plan.warm_up_s + _LEAST_PART * (self._plan.seconds - self._plan.warm_up_s)
        counts = list(self._late())
        hopeless = any(late > _HOPELESS * queries for _, queries, late in counts)
        if (hopeless or news.elapsed_s >= half) and any(
            is_surely_failing(queries, late, confidence=_EARLY_CONFIDENCE) for _, queries, late in counts
        ):
            return Verdict.FAILS
        if min(until, news.elapsed_s) >= half and self._is_passing(_EARLY_CONFIDENCE):
            return Verdict.PASSES
        if min(until, news.elapsed_s) > self._plan.seconds or (
            news.elapsed_s > (1 + _LONGEST_WAIT) * self._plan.seconds
        ):
            return self.verdict()
        return None

    def _count(self, answer: Timed) -> None:
        if answer.issued_s > self._plan.seconds and not self._plan.sure:
            return  # issued to keep the server busy until the last one that counts is answered
        self._known.append(answer)
        if answer.issued_s < self._plan.warm_up_s:
            return
        self.queries += 1
        for name, limit in self._limits.items():
            if (value := _value(answer, name)) is not None:
                self._values[name].append(value)
                self._over[name] += value > limit

    def _is_passing(self, confidence: float = CONFIDENCE) -> bool:
        return all(passes(self.queries, over, confidence=confidence) for over in self._over.values()) and (
            self._plan.sure or not self.growing
        )

    def _late(self) -> Iterator[tuple[str, int, int]]:
        """Yield for each limit its name, the queries after the warm-up, and how many of them are over it for certain.

        Those that are open count as within it unless what they wait for is overdue.
        """
        begin, last = self._plan.warm_up_s, self.last
        if last.elapsed_s <= begin:
            return
        waiting = [answer for _, _, answer in self._ahead if answer.issued_s >= begin]
        queries = max(self.queries + len(waiting), round(last.issued * (1 - begin / last.elapsed_s)))
        for name, over in self._over.items():
            values = (_value(query, name) or 0.0 for query in waiting)
            late = over + sum(value > self._limits[name] for value in values)
            overdue = last.overdue if self._waiting and name == self._waiting[0] else 0
            yield name, queries, min(queries, late + overdue)


def _value(answer: Timed, name: str) -> float | None:
    """Return what a limit of this name limits, in ms; None for the TPOT of an answer of one token."""
    return {"TTFT": answer.ttft_ms, "TPOT": answer.tpot_ms, "latency": answer.latency_ms}[name]


def probe_record(
    number: int,
    rate: float,
    plan: ProbePlan,
    judge: Judge,
    verdict: Verdict | None,
    *,
    took_s: float,
    ended_early: bool,
) -> ProbeRecord:
    """Return the record of a probe that has ended; `verdict` is the early one, where there was one."""
    return ProbeRecord(
        number=number,
        rate=rate,
        planned_s=round(plan.seconds, 3),
        took_s=round(took_s, 3),
        warm_up_s=round(plan.warm_up_s, 3),
        queries=judge.queries,
        limits=judge.limits(),
        verdict=verdict or judge.verdict(),
        ended_early=ended_early,
        sure=plan.sure,
        growing=judge.growing,
        failed_by=judge.exceeded if (verdict or judge.verdict()) is Verdict.FAILS else "",
        answer_ms=round(judge.answer_ms, 3),
    )

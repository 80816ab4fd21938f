"""The minutes of a rehearsal: an upper bound for the job, divided over its runs by the rate measured so far.

What would be shorter anyway stays as it is, and a number of queries or a duration that the user gives comes first.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from types import MappingProxyType

from cm4vllm.campaign.planning.step_environment import RunStep, Shortened, run_of
from cm4vllm.campaign.planning.steps import SERVER_SHARE, Duration, MeasuredTarget, Product, Step
from cm4vllm.campaign.search.projection import FullLength
from cm4vllm.campaign.settings import Job
from cm4vllm.common.units import SamplesPerSecond, four_digits
from cm4vllm.loadgen.user_conf import UserConf, user_conf, verdict_queries
from cm4vllm.rules import Mode, Terms, audit

#: Seconds of a run beside its queries: LoadGen's process starts, the client checks itself, the logs are read.
BESIDE_S = 5.0
#: At a low load an answer takes as long as so many take at once, at most.
_AT_A_TIME = 8
#: Queries of a run at least: from one, LoadGen computes no rate.
LEAST = 2


@dataclass(frozen=True)
class RunSize:
    """A run of `queries` samples at `pace`, in samples/s, which issues queries for `least_s` s at least.

    Where LoadGen paces them, `seed` is that of its schedule, and the last answer takes `answer_s`. `beside_s` are the
    seconds that the run takes beside its queries. `fixed` says that its number of queries cannot be reduced. It has
    fewer than the `verdict` queries that LoadGen's verdict needs where it is reduced below them. `times` counts how
    often the run is made: twice in a power session.
    """

    queries: int
    pace: float
    least_s: float = 0.0
    seed: int | None = None
    answer_s: float = 0.0
    beside_s: float = BESIDE_S
    fixed: bool = False
    verdict: int = 0
    times: int = 1

    @property
    def seconds(self) -> float:
        """The expected duration in s, with what a run takes beside its queries."""
        return self.times * (self.issue_s + self.answer_s + self.beside_s)

    @property
    def issue_s(self) -> float:
        """The seconds from the first query to the last, once."""
        if self.seed is None:
            issued_s = self.queries / self.pace
        else:
            issued_s = float(FullLength(0.0, self.seed, least=self.queries).arrivals(self.pace)[-1])
        return max(issued_s, self.least_s)


def run_terms(job: Job, step: Step) -> Terms:
    """Return the terms of the LoadGen run that a step makes."""
    run = run_of(step)
    return job.terms(run.scenario, run.mode)


def run_size(job: Job, step: Step, rate: float, inputs: RunStep, beside_s: float = BESIDE_S) -> RunSize:
    """Return the size of a run on a server that answers `rate` samples/s, with the `inputs` of its step as known.

    A scenario whose queries follow one another has a rate of its own.
    """
    terms = run_terms(job, step)
    target = _target(inputs.target_qps, rate)
    pace = min(target, rate) if target is not None and terms.paced else rate
    times = 2 if job.settings.power != "no" and step.product is Product.RUN and terms.mode is Mode.PERFORMANCE else 1
    if test := inputs.compliance_test:
        count = audit(test, job.benchmark.name).audit.get("min_query_count")
        if count is not None:
            return RunSize(int(count), pace, beside_s=beside_s, fixed=True)
        times = 1
    conf = _conf(job, terms, target or rate, inputs)
    return RunSize(
        conf.queries,
        pace,
        # In accuracy mode LoadGen issues each sample once, however soon that is done.
        0.0 if terms.mode is Mode.ACCURACY else conf.min_duration_ms / 1000,
        seed=terms.seeds.schedule if terms.paced else None,
        answer_s=_AT_A_TIME / rate if terms.paced else 0.0,
        beside_s=beside_s,
        verdict=verdict_queries(terms) if not test else 0,
        times=times,
    )


def _target(value: float | MeasuredTarget | None, rate: float) -> float | None:
    """Return the target rate of a run, as given or as expected; None where it has none."""
    if isinstance(value, MeasuredTarget):
        return rate * (SERVER_SHARE if value.searched else value.share)
    return value


def _conf(job: Job, terms: Terms, target: float, inputs: RunStep) -> UserConf:
    settings = job.settings
    return user_conf(
        terms,
        job.execution_mode,
        target_qps=target,
        test_query_count=inputs.test_query_count or settings.test_query_count,
        max_test_duration_s=settings.max_test_duration if inputs.max_test_duration is None else None,
    )


def fitting(size: RunSize, seconds: float, certainty: float) -> int:
    """Return how many queries a run may have so that it takes `seconds` at most: LEAST or more, its own at most.

    `certainty` is the part of its pace that a run surely reaches which LoadGen does not pace.
    """
    pace = size.pace if size.seed is not None else size.pace * certainty
    counts = range(LEAST, size.queries + 1)
    too_many = bisect_left(counts, True, key=lambda count: replace(size, queries=count, pace=pace).seconds > seconds)
    return counts[max(0, too_many - 1)] if counts else size.queries


def divide(wanted: Sequence[float], seconds: float) -> list[float]:
    """Divide `seconds` over what is `wanted`: no part is larger than that, and all smaller parts are equal."""
    parts, left, order = [0.0] * len(wanted), max(0.0, seconds), sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, index in enumerate(order):
        parts[index] = min(wanted[index], left / (len(order) - place))
        left -= parts[index]
    return parts


#: Seconds kept for each step that is no run: scores, the tree, the checkers.
_OTHER_S = 5.0
#: The part of the minutes that the start of a server may take from the runs.
_START_PART = 0.5
#: The part of the minutes that an estimate of the rate may take, and the requests of its first round.
_ESTIMATE_PART, _FIRST_ROUND, _NEXT_ROUND = 0.1, 8, 4
#: The part of the machine that other programs must take to be named as a reason.
_BUSY = 0.1
#: A run that was stopped keeps its number of queries if it takes so many times its present part at most.
_STILL_FITS = 1.25

#: Sends so many requests of the run that is to be made, so many at a time, for so many seconds at most; returns the
#: samples/s at which they were answered, None where they were not.
Estimate = Callable[[int, int, float], float | None]


@dataclass(frozen=True)
class Rate:
    """The samples/s that a server answers, and what measured it; it surely answers the part `certainty` of them."""

    value: float
    source: str
    certainty: float = 0.9

    @property
    def words(self) -> str:
        return f"the {SamplesPerSecond(self.value)} of {self.source}"


class Minutes:
    """The minutes of one rehearsal, from the time on at which its server is up; `begin` tells that time.

    The time that the server took to start counts, to a half of the minutes at most. `clock` gives seconds. `rates` are
    those known before, by whether queries follow one another.
    """

    def __init__(
        self,
        job: Job,
        steps: Sequence[Step],
        clock: Callable[[], float] = time.monotonic,
        rates: Mapping[bool, Rate] = MappingProxyType({}),
    ) -> None:
        self.minutes = job.rehearsal_minutes
        self._job, self._clock = job, clock
        self._steps = list(dropwhile(lambda step: step.product is not Product.RUN, steps))
        self._terms = {step.name: run_terms(job, step) for step in self._steps if step.product is Product.RUN}
        self._ended: set[str] = set()
        self._rates = dict(rates)
        self._began: float | None = None
        self._planned: dict[str, float] = {}
        self._started_s, self._beside_s = 0.0, BESIDE_S
        self._longer: list[str] = []

    # --- what is known ---

    def begin(self, started_s: float = 0.0) -> None:
        """Note that the server is up, and how many seconds it took to start; the first call counts."""
        if self._began is None:
            self._started_s = started_s
            self._began = self._clock() - min(started_s, _START_PART * 60 * self.minutes)

    def measured(self, step: Step, rate: float, beside_s: float = BESIDE_S) -> None:
        """Note that a run measured so many samples/s, and took `beside_s` beside its queries.

        The rates of paced runs are LoadGen's, not the server's.
        """
        self._beside_s = max(BESIDE_S, beside_s)
        terms = self._terms[step.name]
        if not terms.paced:
            self._rates[terms.one_by_one] = Rate(float(rate), step.name)

    def ended(self, step: Step, took_s: float | None = None, others: float | None = None) -> None:
        """Note that a step is done, the seconds that it took now, and what others took of the machine, in [0..1]."""
        self._ended.add(step.name)
        planned = self._planned.get(step.name)
        if took_s is None or planned is None or took_s <= planned + BESIDE_S:
            return
        busy = f", other programs used {others:.0%} of the processors" if others and others >= _BUSY else ""
        words = f"{step.name} took {four_digits(took_s)} s, {four_digits(planned)} s were expected{busy}"
        self._longer.append(words)

    @property
    def left_s(self) -> float | None:
        """The seconds left for the job; None before the server is up."""
        return None if self._began is None else 60 * self.minutes - (self._clock() - self._began)

    @property
    def exceeded(self) -> str:
        """The words on a job that took longer than its minutes, with the reasons; empty where it did not."""
        left = self.left_s
        if left is None or left >= 0:
            return ""
        start = [f"the server took {four_digits(self._started_s)} s to start"] if self._started_s > -left else []
        why = "; ".join([*start, *self._longer]) or "its runs cannot be shorter"
        return f"the rehearsal took {four_digits(60 * self.minutes - left)} s, more than {self._words}: {why}"

    @property
    def _words(self) -> str:
        return f"--rehearsal_minutes={self.minutes:g}"

    # --- the size of a run ---

    def sized(self, step: Step, inputs: RunStep, estimate: Estimate, before: Shortened | None) -> Shortened | None:
        """Return by what a run keeps to its part of the minutes; None where it need not be shorter.

        `inputs` are those of its step with all values filled in, `before` is what an earlier command shortened it by.
        """
        part, size, rate = self._part(step, inputs)
        if not self._is_given(step) and size is None:
            self._estimate(step, inputs, estimate)
            part, size, rate = self._part(step, inputs)
        self._planned[step.name] = math.inf if size is None else max(part, size.seconds)
        if size is None or rate is None or size.fixed or self._is_given(step) or size.seconds <= part:
            return None
        count = fitting(size, part, rate.certainty)
        stopped = self._size(step, inputs.shorter(before)) if before else None
        if stopped is not None and stopped.seconds <= _STILL_FITS * part:
            self._planned[step.name] = max(part, stopped.seconds)
            return before
        why = self._why(size, count, rate)
        shortened = Shortened(test_query_count=count, shortened=why, rehearsal_minutes=self.minutes)
        cut = run_size(self._job, step, rate.value, inputs.shorter(shortened), self._beside_s)
        self._planned[step.name] = max(part, cut.seconds)
        return shortened

    def as_before(self, made: Shortened) -> Shortened | None:
        """Return by what an earlier command shortened a run, `made`; None where there are more minutes now."""
        return made if made.rehearsal_minutes is not None and made.rehearsal_minutes >= self.minutes else None

    def expected(self, step: Step) -> Duration | None:
        """Return how long a run is expected to take, by the rates so far; None where nothing is known."""
        if step.product is not Product.RUN or step.name in self._ended:
            return None
        if step.name in self._planned and math.isfinite(self._planned[step.name]):
            return Duration(seconds=self._planned[step.name], source=self._words)
        part, size, rate = self._part(step, run_of(step))
        if size is None or rate is None:
            return None
        seconds = size.seconds if size.fixed or self._is_given(step) else min(part, size.seconds)
        return Duration(seconds=seconds, source=f"by {rate.words}")

    def _is_given(self, step: Step) -> bool:
        """Return True if the user gives how long a run is; `max_test_duration` is that of performance runs."""
        settings = self._job.settings
        performance = self._terms[step.name].mode is Mode.PERFORMANCE
        return settings.test_query_count is not None or (settings.max_test_duration is not None and performance)

    def _estimate(self, step: Step, inputs: RunStep, estimate: Estimate) -> None:
        """Estimate the rate with more and more requests at a time, while it is too low for the run and time is left."""
        terms, longest_s, spent_s = self._terms[step.name], _ESTIMATE_PART * 60 * self.minutes, 0.0
        count, at_a_time = (_FIRST_ROUND, _FIRST_ROUND) if terms.at_once or terms.paced else (LEAST, 1)
        while True:
            began = self._clock()
            value = estimate(count, at_a_time, longest_s)
            took_s = self._clock() - began
            spent_s += took_s
            if value is None:
                return
            known = self._rates.get(terms.one_by_one)
            if known is None or value > known.value:
                words = "request" if at_a_time == 1 else "requests"
                self._rates[terms.one_by_one] = Rate(value, f"a first estimate, {at_a_time} {words} at a time", 0.6)
            part, size, _ = self._part(step, inputs)
            if size is None or size.fixed or size.seconds <= part:
                return
            if terms.one_by_one or spent_s + _NEXT_ROUND * took_s > longest_s or count >= size.queries:
                return
            count = at_a_time = min(_NEXT_ROUND * count, size.queries)

    def _part(self, step: Step, inputs: RunStep) -> tuple[float, RunSize | None, Rate | None]:
        """Return a run's part of the seconds left, its size as it would be, and the rate by which this is computed.

        Each run gets the least that it can take, one whose length is given or fixed all that it takes; the rest is
        divided. One of which nothing is known may want all.
        """
        left = 60 * self.minutes if self.left_s is None else self.left_s
        least: dict[str, float] = {}
        wanted: dict[str, float] = {}
        for other in self._steps:
            if other.name in self._ended and other is not step:
                continue
            if other.product is not Product.RUN:
                left -= other.duration.seconds if other.product is Product.SEARCH and other.duration else _OTHER_S
                continue
            size = self._size(other, inputs if other.name == step.name else run_of(other))
            wanted[other.name] = math.inf if size is None else size.seconds
            least[other.name] = BESIDE_S if size is None else size.seconds
            if size is not None and not size.fixed and not self._is_given(other):
                least[other.name] = min(size.seconds, replace(size, queries=LEAST, least_s=0.0).seconds)
        more = divide([wanted[name] - least[name] for name in wanted], left - sum(least.values()))
        part = least[step.name] + dict(zip(wanted, more, strict=True))[step.name]
        return part, self._size(step, inputs), self._rates.get(self._terms[step.name].one_by_one)

    def _size(self, step: Step, inputs: RunStep) -> RunSize | None:
        rate = self._rates.get(self._terms[step.name].one_by_one)
        return None if rate is None else run_size(self._job, step, rate.value, inputs, self._beside_s)

    def _why(self, size: RunSize, count: int, rate: Rate) -> str:
        words = (
            f"{count:,} queries in place of {size.queries:,}, so that the job keeps to {self._words}, by {rate.words}"
        )
        if count < size.verdict <= size.queries:
            words += f"; LoadGen's verdict needs {size.verdict:,}, and with fewer it may be INVALID for that alone"
        return words

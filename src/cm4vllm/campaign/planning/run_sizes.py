"""The size of a LoadGen run: its queries, and how long a server of a known rate takes for them. Pure arithmetic."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cm4vllm.campaign.planning.computed_targets import SERVER_SHARE
from cm4vllm.campaign.planning.step_inputs import RunStep, run_of
from cm4vllm.campaign.planning.steps import MeasuredTarget, Product, Step
from cm4vllm.campaign.search.full_length import FullLength
from cm4vllm.campaign.settings import Job
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
        if self.seed is None:
            issued_s = self.queries / self.pace
        else:
            issued_s = float(FullLength(0.0, self.seed, least=self.queries).arrivals(self.pace)[-1])
        return self.times * (max(issued_s, self.least_s) + self.answer_s + self.beside_s)


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
        conf.min_duration_ms / 1000,
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


def divided(wanted: Sequence[float], seconds: float) -> list[float]:
    """Divide `seconds` over what is `wanted`: no part is larger than that, and all smaller parts are equal."""
    parts, left, order = [0.0] * len(wanted), max(0.0, seconds), sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, index in enumerate(order):
        parts[index] = min(wanted[index], left / (len(order) - place))
        left -= parts[index]
    return parts

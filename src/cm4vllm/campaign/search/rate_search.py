"""The search itself: which rates are tried, in which order and for how long. It asks a prober, and knows no server.

Short probes approach the rate: the first one is made at a rate that comes from the server's rate Offline and from
queueing theory, each further one at the rate to which all before it point (`projection`). Full-length runs settle it:
the first one slightly below that rate. What fails is left by a step, what passes is raised while there is time for one
more run. A run that fails and points far below itself says that the server has become slower since the probes before
it. The rate found is the highest one whose full-length run passed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from cm4vllm.campaign.planning.steps import SEARCH_RUNS
from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.campaign.search.projection import FullLength, Window, predicted_rate, project, rate_interval
from cm4vllm.common.errors import InvalidResult
from cm4vllm.records.searches.rate_search import Boundary, ProbeRecord, SearchOutcome, Verdict
from cm4vllm.rules import LatencyLimits

#: The largest step from one probe's rate to the next, as a factor. Where the probes point nowhere it is the first step,
#: whose logarithm doubles.
_FURTHEST = 2.0
#: A probe that points further away than this, as a logarithm, is followed by one of the same length.
_FAR = 0.25
#: Below this part of the first rate nothing is searched for.
_LEAST_PART = 1 / 100
#: Queries that a probe needs at least to decide: with two of them over a limit LoadGen's test asks for 838. For them a
#: probe is made longer, up to this part of a full-length run.
_LEAST_QUERIES, _LONGEST_PART = 900, 1 / 6
#: A probe is so many times as long as an answer takes: the server fills in the first one, which is its warm-up.
_ANSWERS_LONG, _ANSWERS_WARM = 6, 1.5
#: A full-length run is tried so much below the rate to which the probes point: as long as none has passed, in addition
#: as the last one that the time allows, and above a rate that has passed.
_FIRST_BELOW, _LAST_BELOW, _NEXT_BELOW = 0.008, 0.014, 0.005
#: A run is the last one where a failing one would leave less than this part of the time of the run after it.
_LAST_PART = 1.0
#: The step below a rate that failed at full length, by which factor it grows with each failure, and the step above a
#: rate that passed. What is gained must be more than the last one.
STEP_DOWN, _WIDER, _STEP_UP, _LEAST_GAIN = 0.012, 2.0, 0.012, 0.007
#: A full-length run that fails, and that itself points so much lower than the probes before it did, contradicts them:
#: the server has become slower. What they said does not count any more.
_CONTRADICTS = 0.1
#: The weight of the step below the first failure against the rate that the probes point to, where that is lower.
_TRUST = 2 / 3
#: A full-length run lasts so much longer than its queries are issued.
_TAIL = 1.012
#: At a rate this close above the highest passing one, a cliff shows as this share of late queries.
_NEAR, _CLIFF_SHARE = 1.06, 0.10


class Prober(Protocol):
    """Makes one probe. Raises CmError where the server cannot be measured at all."""

    @property
    def full(self) -> FullLength:
        """The full-length run whose rate is searched for; known for certain when one probe was made."""

    def probe(self, rate: float, plan: ProbePlan) -> tuple[ProbeRecord, Window]: ...


@dataclass(frozen=True)
class SearchPlan:
    """Time to spend: seconds of each probe, of all probes together, and of all together with the full-length runs.

    The last is `runs` times a full-length run, and at least `budget_s`. No rate above `highest` queries/s is tried,
    for the reason `why_highest`.
    """

    limits: LatencyLimits
    probes_s: tuple[float, ...] = (30.0, 45.0, 60.0, 75.0)
    approach_s: float = 255.0
    runs: float = SEARCH_RUNS
    budget_s: float = 0.0
    highest: float = math.inf
    why_highest: str = ""


def queueing_estimate(capacity: float, limits: LatencyLimits) -> float:
    """Return the rate, below `capacity` queries/s, at which 1 in 100 queries waits longer than its limit.

    That is the limit of TTFT, or of the whole answer where there is none of TTFT.

    The server is taken for an M/D/1 queue of that capacity, whose waiting time exceeds w with a probability of about
    load x exp(-2 (1 - load) capacity w).
    """
    if limits.waiting is None:
        return capacity
    wait = limits.waiting[1] / 1000
    low, high = 0.0, 1.0
    for _ in range(50):
        load = (low + high) / 2
        if load * math.exp(-2 * (1 - load) * capacity * wait) > 0.01:
            high = load
        else:
            low = load
    return capacity * low


def search(
    prober: Prober, start: float, plan: SearchPlan, seen: Callable[[ProbeRecord], None] = lambda probe: None
) -> SearchOutcome:
    """Search from the rate `start` on; `seen` is called with each probe when it has ended.

    Raises InvalidResult where no rate passes, and what the prober raises.
    """
    return _Search(prober, plan, seen).run(_round(min(start, plan.highest)))


class _Search:
    """A search under way: the full-length runs of the highest rate that passed and of the lowest that did not."""

    def __init__(self, prober: Prober, plan: SearchPlan, seen: Callable[[ProbeRecord], None]) -> None:
        self._prober = prober
        self._plan = plan
        self._seen = seen
        self._probes: list[ProbeRecord] = []
        self._passing: ProbeRecord | None = None
        self._failing: ProbeRecord | None = None
        self._failures = 0
        self._since = 0

    def run(self, start: float) -> SearchOutcome:
        rate = self.approach(start)
        stopped = "its time budget was used up"
        while self._time_left_after(rate := self._next(rate)) >= 0:
            if self._passing and rate < self._passing.rate * (1 + _LEAST_GAIN):
                stopped = "what failed and what passed are near enough"
                break
            if rate < _LEAST_PART * start:
                raise self._none_passes()
            self._settle(rate)
        if self._passing and not self._failing and self._passing.rate * (1 + _LEAST_GAIN) > self._plan.highest:
            stopped = f"no higher rate can be tried: {self._plan.why_highest}"
        return self._outcome(rate, stopped)

    # --- the two phases ----------------------------------------------------------------------------------------------

    def approach(self, start: float) -> float:
        """Probe where the probes before point to; return the rate to which they point in the end."""
        rate, lengths, step = start, list(self._plan.probes_s), math.log(_FURTHEST)
        while lengths and (not self._probes or self._spent + self._length(rate, lengths[0]) < self._plan.approach_s):
            if rate < _LEAST_PART * start:
                raise self._none_passes()
            last = self._probe(rate, lengths[0])
            projected = self._projected_rate()
            if projected is not None:
                up = max(-math.log(_FURTHEST), min(math.log(_FURTHEST), math.log(projected / rate)))
            elif last.verdict is Verdict.FAILS:
                up = -math.log(_FURTHEST)
            else:
                up = step
                step *= 2
            rate = self._allowed_rate(rate * math.exp(up))
            if abs(up) < _FAR or rate == last.rate:
                lengths.pop(0)
        return rate

    def _next(self, rate: float) -> float:
        """Return the rate of the next full-length run."""
        wanted = self._projected_rate() or rate
        if wanted == self._plan.highest and not (self._passing or self._failing):
            return wanted  # no probe there said anything against it
        if self._passing is not None:
            rate = max(wanted * (1 - _NEXT_BELOW), self._passing.rate * (1 + _STEP_UP))
            return self._allowed_rate(
                min(rate, math.sqrt(self._passing.rate * self._failing.rate)) if self._failing else rate
            )
        rate = wanted * (1 - _FIRST_BELOW)
        if self._failing is not None:
            below = self._failing.rate * (1 - STEP_DOWN * _WIDER ** (self._failures - 1))
            # The first failure itself says that the limit is near, and says it better than a projection.
            rate = min(below, below**_TRUST * rate ** (1 - _TRUST) if self._failures == 1 else rate)
        if self._failures <= 1 and self._time_left_after(rate) < _LAST_PART * self._prober.full.duration(rate):
            rate *= 1 - _LAST_BELOW
        return self._allowed_rate(rate)

    def _allowed_rate(self, wanted: float) -> float:
        return _round(min(wanted, self._plan.highest))

    def _settle(self, rate: float) -> None:
        """Make a full-length run."""
        full = self._prober.full
        run = self._make_probe(
            rate,
            ProbePlan(
                seconds=full.duration(rate),
                warm_up_s=0.0,
                full_s=full.duration(rate),
                sure=True,
                most_late=full.most_late(rate),
            ),
        )
        if run.verdict is Verdict.PASSES:
            self._passing = run
        else:
            self._failing = run
            self._failures += 1
            if run.projected and min(run.projected.values()) < rate * (1 - _CONTRADICTS):
                # No first failure any more, whose step down would count against what this run predicts.
                self._since, self._failures = len(self._probes) - 1, 2

    # --- one rate ----------------------------------------------------------------------------------------------------

    def _probe(self, rate: float, seconds: float) -> ProbeRecord:
        seconds = self._length(rate, seconds)
        warm_up = min(max(seconds / 6, _ANSWERS_WARM * self._answer_s), seconds / 3)
        full_s = self._prober.full.duration(rate)
        return self._make_probe(rate, ProbePlan(seconds=seconds, warm_up_s=warm_up, full_s=full_s))

    def _length(self, rate: float, seconds: float) -> float:
        """Return how long a probe of at least so many seconds must be to say something."""
        longest = _LONGEST_PART * self._prober.full.duration(rate)
        return max(seconds, min(max(_LEAST_QUERIES / rate, _ANSWERS_LONG * self._answer_s), longest))

    def _make_probe(self, rate: float, plan: ProbePlan) -> ProbeRecord:
        made, window = self._prober.probe(rate, plan)
        projected = project(window, self._plan.limits.by_name, self._prober.full)
        probe = replace(made, projected={name: _round(edge) for name, edge in projected.items()})
        self._probes.append(probe)
        self._seen(probe)
        return probe

    def _projected_rate(self) -> float | None:
        """Return the rate at which a full-length run would just keep its limits, as far as the probes tell."""
        telling = [probe for probe in self._probes[self._since :] if probe.projected]
        if not telling:
            return None
        rate = self._below_what_failed(predicted_rate(telling))
        return min(rate, self._failing.rate) if self._failing else rate

    def _below_what_failed(self, rate: float) -> float:
        """Return the rate, or a lower one after a probe that failed too soon to say where the limit is.

        What other probes say of another limit does not count there.
        """
        blind = min(
            (probe.rate for probe in self._probes if probe.verdict is Verdict.FAILS and not probe.projected),
            default=math.inf,
        )
        if rate < blind:
            return rate
        below = [probe.rate for probe in self._probes if probe.rate < blind and probe.verdict is not Verdict.FAILS]
        return math.sqrt(blind * max(below, default=blind / _FURTHEST**2))

    @property
    def _answer_s(self) -> float:
        return max((probe.answer_ms for probe in self._probes), default=0.0) / 1000

    # --- the result --------------------------------------------------------------------------------------------------

    @property
    def _spent(self) -> float:
        return sum(probe.took_s for probe in self._probes)

    def _time_left_after(self, rate: float) -> float:
        """Return the time that is left when one more full-length run was made."""
        run = self._prober.full.duration(rate)
        return max(self._plan.budget_s, self._plan.runs * run) - self._spent - _TAIL * run

    def _outcome(self, next_rate: float, stopped: str) -> SearchOutcome:
        rate = self._passing.rate if self._passing else next_rate
        above = [probe for probe in self._probes if probe.rate > rate and probe.verdict is not Verdict.PASSES]
        failed = [probe for probe in above if probe.verdict is Verdict.FAILS]
        if not self._passing and not any(
            probe.verdict is not Verdict.FAILS and probe.queries for probe in self._probes
        ):
            raise self._none_passes()  # nor does a probe say anything in which no query counted
        nearest = min(failed or above, key=lambda probe: (probe.rate, -probe.took_s), default=None)
        binding = nearest.binding if nearest else None
        return SearchOutcome(
            rate=rate,
            confirmed=self._passing is not None,
            lowest_failing=min((probe.rate for probe in failed), default=None),
            low=rate,
            high=self._failing.rate if self._failing else None,
            binding=binding.name if binding else "",
            cause=nearest.server if nearest else "",
            boundary=_boundary(rate, above),
            stopped=stopped,
            probes=self._probes,
            interval=rate_interval(self._probes[self._since :]),
            since=self._probes[self._since].number,
        )

    def _none_passes(self) -> InvalidResult:
        last = self._probes[-1]
        if not any(probe.queries for probe in self._probes):
            return InvalidResult(
                "the probes of the search were too short to count a query",
                cause=f"{len(self._probes)} probes of up to {max(probe.planned_s for probe in self._probes):g} s, at "
                f"{last.rate:g} to {max(probe.rate for probe in self._probes):g} queries/s: no query that was issued "
                "after a warm-up had its answer, and all before it theirs, when the probe ended",
                remedy="let nothing else compute on this machine meanwhile, and search again; where the server itself "
                "is that slow,\nwith --execution_mode=valid the probes are longer, and --server_target_qps of "
                "run-mlperf,inference runs at a fixed rate",
            )
        said = ", ".join(
            f"{limit.name} p99 {limit.p99_ms:,.1f} ms of {limit.limit_ms:g}"
            if limit.p99_ms is not None
            else f"no {limit.name} seen"
            for limit in last.limits
        )
        return InvalidResult(
            "no rate that keeps the latency limits was found",
            cause=f"at {last.rate:g} queries/s, after {len(self._probes)} probes: {said}",
            remedy="a smaller model or more servers may keep the limits\n"
            "or give --server_target_qps of run-mlperf,inference, to run at a fixed rate instead",
        )


def _boundary(rate: float, above: list[ProbeRecord]) -> Boundary:
    near = [probe for probe in above if probe.rate <= rate * _NEAR]
    if not near:
        return Boundary.UNKNOWN
    worst = min(limit.within for probe in near for limit in probe.limits)
    return Boundary.CLIFF if worst < 1 - _CLIFF_SHARE or any(probe.growing for probe in near) else Boundary.SMOOTH


def _round(rate: float) -> float:
    """Return a rate to four digits: what is written in user.conf and in reports."""
    return float(f"{rate:.4g}")

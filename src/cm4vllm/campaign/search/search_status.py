"""A search for a target rate while it goes on, as data: its bracket, and the probe under way."""

from collections.abc import Sequence

from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.common.records import Record
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict


class TriedRate(Record, frozen=True, kw_only=True):
    """A probe that has ended: its rate in queries/s, and its verdict."""

    rate: float
    verdict: Verdict
    full_length: bool


class SearchStatus(Record, frozen=True, kw_only=True):
    """The bracket: the highest rate that passed, and the lowest one above it that failed; None where there is none.

    `number`, `rate` and `planned_s` are those of the probe under way. `spent_s` is the time of the probes before it.
    """

    scenario: str
    number: int
    rate: float
    planned_s: float
    full_length: bool
    passing: float | None = None
    failing: float | None = None
    spent_s: float = 0.0
    probes: tuple[TriedRate, ...] = ()


def search_status(
    scenario: str, ended: Sequence[ProbeRecord], number: int, rate: float, plan: ProbePlan
) -> SearchStatus:
    """Return the status of a search at the beginning of a probe; `ended` are the probes before it."""
    passing = max((probe.rate for probe in ended if probe.verdict is Verdict.PASSES), default=None)
    failing = min(
        (probe.rate for probe in ended if probe.verdict is Verdict.FAILS and (passing is None or probe.rate > passing)),
        default=None,
    )
    return SearchStatus(
        scenario=scenario,
        number=number,
        rate=rate,
        planned_s=round(plan.seconds, 1),
        full_length=plan.sure,
        passing=passing,
        failing=failing,
        spent_s=round(sum(probe.took_s for probe in ended), 1),
        probes=tuple(TriedRate(rate=probe.rate, verdict=probe.verdict, full_length=probe.sure) for probe in ended),
    )

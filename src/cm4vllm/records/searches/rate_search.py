"""search.json: the probes of a search for a target rate, and its result; and such a search while it goes on."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from msgspec.structs import replace

from cm4vllm.common.records import Record
from cm4vllm.records.logs.early_stopping import passes
from cm4vllm.records.metrics import Speed

#: The name of the record's file in the folder of a search.
SEARCH_FILE = "search.json"


class Verdict(StrEnum):
    PASSES = "passes"
    FAILS = "fails"
    UNDECIDED = "undecided"


class Boundary(StrEnum):
    """Behaviour just above the highest passing rate: latencies that rise slowly, or that leave all bounds."""

    SMOOTH = "smooth"
    CLIFF = "cliff"
    UNKNOWN = "unknown"


class LimitRecord(Record, frozen=True, kw_only=True):
    """A probe's latencies compared with one limit.

    `over` of the probe's counted queries were over it; `within` is the share that was not, in [0..1], with its 95 %
    Wilson interval from `low` to `high`. `p99_ms` is taken as LoadGen takes it.
    """

    name: str
    limit_ms: float
    over: int
    within: float
    low: float
    high: float
    p99_ms: float | None


class ProbeRecord(Record, frozen=True, kw_only=True):
    """One Server run at `rate` queries/s.

    `queries` are those that count: issued after the warm-up. `planned_s` is how long queries were to be issued,
    `took_s` how long the probe took to the last answer or to its early end. `sure` probes are full-length runs: they
    pass only at their end. `growing` says that the time to first token rose so steadily that a full-length run would
    pass its limit. `failed_by` names the limits by which it failed. `server` names what bound it, with the numbers of
    the metrics, where it has any. `speed` is that of the server in the probe. `projected` is for each limit the
    rate at which a full-length run would just keep it by this probe, in the record of its search.
    """

    number: int
    rate: float
    planned_s: float
    took_s: float
    warm_up_s: float
    queries: int
    limits: list[LimitRecord]
    verdict: Verdict
    ended_early: bool
    sure: bool = False
    growing: bool = False
    failed_by: str = ""
    answer_ms: float = 0.0
    folder: str = ""
    server: str = ""
    projected: dict[str, float] = {}
    speed: Speed | None = None

    @property
    def binding(self) -> LimitRecord | None:
        """The limit that binds, with the fewest queries within it; of equal ones, that with the highest p99 for it."""
        return min(self.limits, key=lambda limit: (limit.within, -(limit.p99_ms or 0.0) / limit.limit_ms), default=None)


class Interval(Record, frozen=True, kw_only=True):
    """The 95 % interval of the true rate, that at which a full-length run passes with probability 1/2, in queries/s.

    `rate` is that to which the `probes` that say something point together. docs/search.md has how often such an
    interval held the true rate of simulated servers.
    """

    rate: float
    low: float
    high: float
    probes: int


class SearchOutcome(Record, frozen=True, kw_only=True):
    """The outcome of a search. Rates are in queries/s.

    `rate` is the highest one whose full-length run passed, where `confirmed`; else one to which the probes point.
    `lowest_failing` is None where no rate above it failed, `high` where no full-length run failed. `stopped` says why
    the search ended. `interval` is None where too few probes say something. `since` is the number of the first probe
    that counts: a full-length run contradicted those before it.
    """

    rate: float
    confirmed: bool
    lowest_failing: float | None
    low: float
    high: float | None
    binding: str
    cause: str
    boundary: Boundary
    stopped: str
    probes: list[ProbeRecord]
    interval: Interval | None = None
    since: int = 1

    @property
    def run(self) -> int:
        """The number of the full-length run that passed, the last one if several did; 0 for none."""
        return max((probe.number for probe in self.probes if probe.sure and probe.verdict is Verdict.PASSES), default=0)


class SearchRecord(SearchOutcome, frozen=True, kw_only=True):
    """A search that ended, with what it was made for.

    `precision` is the first step, as a part of the rate, that a run which misses a limit is lowered by. `cost_s` is the
    time that all probes and full-length runs took. `result` is the folder in which the run that passed became the
    scenario's result. `drift` says by how much the server's speed changed from probe to probe, where it did.
    `settings_sha256` is the digest of the settings of the search's runs (loadgen/identity), without their rate.
    """

    scenario: str
    benchmark: str
    precision: float
    start: float
    start_source: str
    cost_s: float
    rehearsal: bool
    result: str = ""
    drift: str = ""
    settings_sha256: str = ""

    def lowered_rate(self, times: int) -> float:
        """Return the rate to run at after `times` full-length runs that missed a limit, each a larger step below.

        The first step is the one that the search itself takes below a run that failed.
        """
        return float(f"{self.rate / (1 + self.precision) ** (2**times - 1):.4g}")

    @property
    def words(self) -> str:
        """The result in one line."""
        above = f"; at {self.lowest_failing:g} a limit was missed" if self.lowest_failing else ""
        rate_words = (
            f"{self.rate:g} queries/s pass {self._run_words}"
            if self.confirmed
            else f"no {self._run_words.partition(' ')[2]} passed, the probes point to {self.rate:g} queries/s"
        )
        interval = (
            f"; the probes give {self.interval.low:g} to {self.interval.high:g} as interval of the true rate"
            if self.interval
            else ""
        )
        slower = f"; the server became slower before probe {self.since} ended" if self.since > 1 else ""
        return (
            f"{rate_words}{above}{interval}{slower}; {self.binding or 'no known limit'} binds, the boundary is "
            f"{self.boundary}; {len(self.probes)} probes, {self.cost_s / 60:.1f} minutes"
        )

    @property
    def _run_words(self) -> str:
        """Name of the deciding runs: those of a rehearsal may be too short for LoadGen's early-stopping test."""
        if not self.rehearsal:
            return "a full-length run"
        made = [probe for probe in self.probes if probe.sure and probe.rate == self.rate]
        if not made:
            return "a rehearsal's run"
        queries = made[-1].queries
        tested = all(passes(queries, limit.over) for limit in made[-1].limits)
        return f"a rehearsal's run of {queries:,} queries" + ("" if tested else ", too few for LoadGen's test")


class TriedRate(Record, frozen=True, kw_only=True):
    """A probe that has ended: its rate in queries/s, and its verdict."""

    rate: float
    verdict: Verdict
    full_length: bool


class SearchStatus(Record, frozen=True, kw_only=True):
    """A search while it goes on, with its bracket: the highest rate that passed, and the lowest above it that failed.

    Each is None where there is none. `number`, `rate` and `planned_s` are those of the probe under way. `spent_s` is
    the time of the probes before it.
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

    def after(self, ended: Sequence[ProbeRecord]) -> Self:
        """Return the status with what the probes before it showed."""
        passing = max((probe.rate for probe in ended if probe.verdict is Verdict.PASSES), default=None)
        failed = [probe.rate for probe in ended if probe.verdict is Verdict.FAILS]
        return replace(
            self,
            passing=passing,
            failing=min((rate for rate in failed if passing is None or rate > passing), default=None),
            spent_s=round(sum(probe.took_s for probe in ended), 1),
            probes=tuple(TriedRate(rate=probe.rate, verdict=probe.verdict, full_length=probe.sure) for probe in ended),
        )

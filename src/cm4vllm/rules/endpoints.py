"""The rules of MLPerf Endpoints as data: a curve of points at fixed concurrency, its regions, and the terms of a point.

`EndpointsRules` answers for a point, a curve and a submission. The files of data/endpoints/ come with cm4vllm;
`renewal` reads newer ones.
"""

import math
from datetime import date
from functools import cache
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.rules.bounds import Amount, Commit, Count, Day, Few, Metric, Part, Temperature, Tokens
from cm4vllm.rules.cohorts import ApprovedDrafter, CohortCalendar, SeedSet, SubmissionTarget, cohort_number
from cm4vllm.rules.records import AccuracyTarget
from cm4vllm.rules.tables import read_table, round_entries
from cm4vllm.rules.terms import accuracy_targets
from cm4vllm.rules.vocabulary import Scenario


class Client(Record, frozen=True, kw_only=True):
    """The reference client: its repository, the commits that were tried, the newest last, and the oldest Python that it
    runs on.
    """

    repository: str
    commits: Annotated[tuple[Commit, ...], Meta(min_length=1)]
    least_python: str
    source: str


class PublishedPackage(Record, frozen=True, kw_only=True):
    """A package of the package index, in the version that was tried."""

    package: str
    version: str
    source: str


class CurveRules(Record, frozen=True, kw_only=True):
    """Bounds of a curve in requests in flight and in points.

    `least_points` are those of a curve whose highest point is elected as the Offline result; a dedicated Offline run is
    one more. A point may lie above C_max, up to `margin` times it.
    """

    highest_c_min: Count
    lowest_c_max: Count
    margin: Amount
    least_points: Few
    most_points: Few
    source: str


class DurationRule(Record, frozen=True, kw_only=True):
    """Seconds of steady state of a point at most at this concurrency; None holds for all above."""

    seconds: Amount
    source: str
    up_to: int | None = None


class WarmUpRules(Record, frozen=True, kw_only=True):
    """The blocks that are left out at the start: those whose `metric` is more than `band` away from its later level.

    They are `least` blocks at least, and at most the fraction `most` of all.
    """

    metric: Metric
    band: Part
    least: Few
    most: Part


class WindowDuration(Record, frozen=True, kw_only=True):
    """The shortest time of a window, the largest of three.

    These are `seconds`, so many `latencies` (their 90th percentile), and the blocks after which the mean TPOT is known
    to the fraction `precision`.
    """

    seconds: Amount
    latencies: Amount
    precision: Part


class WindowRules(Record, frozen=True, kw_only=True):
    """The window of the steady state, in blocks of one pass over the dataset.

    It spans at least `passes` blocks. Over them each of the `gating` metrics has a standard deviation of at most
    `variation` of its mean, and no significant trend (level `alpha`) or one that changes it by less than `drift`.
    `quantile` is that of the normal distribution for autocorrelations and means. A second level of TPOT differs by more
    than `level_shift`; `watched` are the metrics whose rise after the start of the window is disclosed.
    """

    passes: Few
    gating: Annotated[tuple[Metric, ...], Meta(min_length=1)]
    watched: tuple[Metric, ...]
    alpha: Part
    quantile: Amount
    drift: Part
    variation: Part
    warm_up: WarmUpRules
    duration: WindowDuration
    level_shift: Part
    source: str


class RoundChecker(Record, frozen=True, kw_only=True):
    """The commit of mlcommons/inference at which an official checker, by its name, takes the trees of a round."""

    round: str
    checker: str
    commit: Commit
    source: str


class AccuracyRules(Record, frozen=True, kw_only=True):
    """Points of a curve that carry an accuracy run, one of them the Offline point; targets are those of a round."""

    points: int
    targets_of: str
    source: str


class ClientDataset(Record, frozen=True, kw_only=True):
    """A dataset of the reference client, by its names: one of its own, or a file at `path`.

    `cached` is the file that it reads one of its own from where that exists. Both are below the folder in which it
    works. `parser` maps its columns to those of the file; `scorer`, `ground_truth`, `extractor` and `repeats` are of
    accuracy runs.
    """

    name: str
    path: str = ""
    cached: str = ""
    parser: dict[str, str] = {}
    scorer: str = ""
    ground_truth: str = ""
    extractor: str = ""
    repeats: Few = 1


class EndpointsBenchmark(Record, frozen=True, kw_only=True):
    """A benchmark model: samples of a pass, generation (lengths in tokens), and the Inference benchmark it shares with.

    `api`, `parameters` (of a request), `performance` and `scored` (the datasets of its runs) are in the words of the
    reference client; `file_needed` says why the client cannot fetch the dataset, empty where it can. One with `refused`
    is not run by cm4vllm, for that reason; the other fields are those of a benchmark that is. `targets` are those of
    its accuracy runs.
    """

    name: str
    refused: str = ""
    benchmark: str = ""
    dataset: str = ""
    samples: Tokens = 0
    accuracy_samples: Tokens = 0
    max_tokens: Tokens = 0
    min_tokens: Tokens = 0
    temperature: Temperature = 0
    top_p: Part = 1
    api: str = "openai"
    parameters: dict[str, int | bool] = {}
    performance: ClientDataset = ClientDataset(name="")
    scored: tuple[ClientDataset, ...] = ()
    targets: tuple[AccuracyTarget, ...] = ()
    file_needed: str = ""
    sources: dict[str, str] = {}


class Region(Record, frozen=True, kw_only=True):
    """A range of concurrency, both ends included; empty where the end lies below the start."""

    name: str
    start: int
    end: int

    def __contains__(self, concurrency: int) -> bool:
        return self.start <= concurrency <= self.end

    def __str__(self) -> str:
        return f"{self.name} {self.start} to {self.end}"


class Regions(Record, frozen=True, kw_only=True):
    """The regions of a curve: `ultra_low` may overlap with `low`; a point in the `margin` fills none."""

    c_min: int
    c_max: int
    ultra_low: Region
    low: Region
    medium: Region
    high: Region
    margin: Region

    @property
    def required(self) -> tuple[Region, ...]:
        """The regions that need a point each, with an accuracy run."""
        return self.ultra_low, self.low, self.medium, self.high

    def of(self, concurrency: int) -> tuple[Region, ...]:
        """Return the required regions that a point at this concurrency lies in."""
        return tuple(region for region in self.required if concurrency in region)


class PointTerms(Record, frozen=True, kw_only=True):
    """The rules of one point: its regions, seconds of steady state, samples of one pass, and passes of its window."""

    concurrency: int
    regions: tuple[str, ...]
    least_seconds: float
    samples_of_a_pass: int
    window_passes: int
    offline: bool
    streamed: bool


class EndpointsRules(Record, frozen=True, kw_only=True):
    """All rules of a version. `dated` is the day of the newest source (YYYY-MM-DD).

    New submissions may adopt a seed set for `adopted_cohorts` cohorts from its own on, and a drafter from
    `drafter_lead` cohorts after that of its approval on. `benchmarks` has those that cm4vllm refuses, too.
    `inference_checkers` are those of the rounds of MLPerf Inference; `amended_by` are the files that parts were taken
    from, whose days are not known.
    """

    version: str
    dated: Day
    client: Client
    checker: PublishedPackage
    curve: CurveRules
    durations: Annotated[tuple[DurationRule, ...], Meta(min_length=1)]
    window: WindowRules
    accuracy: AccuracyRules
    calendar: CohortCalendar
    adopted_cohorts: Few
    seed_sets: Annotated[tuple[SeedSet, ...], Meta(min_length=1)]
    drafter_lead: Few
    drafters: tuple[ApprovedDrafter, ...]
    benchmarks: tuple[EndpointsBenchmark, ...] = ()
    inference_checkers: tuple[RoundChecker, ...] = ()
    amended_by: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The version, its day and the files that parts come from, as plans and pages state it."""
        amended = f" with {', '.join(self.amended_by)}" if self.amended_by else ""
        return f"MLPerf Endpoints {self.version}, rules of {self.dated}{amended}"

    def least_seconds(self, concurrency: int) -> float:
        """Return the seconds of steady state that a point at this concurrency takes at least."""
        return next(rule.seconds for rule in self.durations if rule.up_to is None or concurrency <= rule.up_to)

    def benchmark(self, name: str) -> EndpointsBenchmark:
        """Return the benchmark model of this name. Raises UsageError for one that is unknown or not run by cm4vllm."""
        if (entry := self.known_benchmark(name)) is None:
            names = [entry.name for entry in self.benchmarks]
            raise UsageError(
                f"MLPerf Endpoints has no benchmark model {name!r}",
                cause=f"{self.version} has {', '.join(names)}",
                remedy=nearest(name, names),
            )
        if entry.refused:
            raise UsageError(f"cm4vllm does not run {name}", cause=entry.refused)
        return entry

    def checker_commit(self, round_name: str, checker: str) -> str:
        """Return the commit of an official checker of a round of MLPerf Inference; empty where none is named."""
        named = (entry for entry in self.inference_checkers if (entry.round, entry.checker) == (round_name, checker))
        return next((entry.commit for entry in named), "")

    def known_benchmark(self, name: str) -> EndpointsBenchmark | None:
        """Return the benchmark model of this name, also one that cm4vllm does not run; None for another name."""
        return next((entry for entry in self.benchmarks if entry.name == name), None)

    def target(self, cohort: str, day: date) -> SubmissionTarget:
        """Return the cohort of a submission whose checks pass on this day, and its seeds.

        `cohort` is the one asked for; empty for the first one that is open. Where no seed set is for it, the target is
        the last one of the newest set. Raises UsageError for what is no cohort.
        """
        chosen = cohort or self.calendar.open_cohort(day)
        adopted = [entry for entry in self.seed_sets if entry.adoptable(chosen)]
        newest = max(adopted or self.seed_sets, key=lambda entry: cohort_number(entry.cohort))
        over = ""
        if (last := self.calendar.last_day_of(chosen)) < day:
            over = f"the cohort {chosen} is over: checks had to pass by {last} ({self.calendar.source})"
        elif not adopted:
            over = f"no published seed set is for the cohort {chosen} ({'; '.join(map(str, self.seed_sets))})"
        return SubmissionTarget(cohort=chosen if adopted else newest.last_cohort, seeds=newest, over=over)

    def regions(self, *, c_min: int, c_max: int, c_min_stated: bool = False) -> Regions:
        """Return the regions between the lowest and the highest concurrency of a curve (§5.5).

        With `c_min_stated` the system description pins C_min (`c_min_override`), and the lowest region ends there.
        Raises UsageError for bounds that the rules do not allow.
        """
        rules = self.curve
        if not 1 <= c_min <= rules.highest_c_min:
            raise UsageError(
                f"the lowest point has concurrency {c_min}",
                cause=f"C_min lies between 1 and {rules.highest_c_min} ({rules.source})",
            )
        if c_max < rules.lowest_c_max:
            raise UsageError(
                f"the highest point has concurrency {c_max}",
                cause=f"C_max is at least {rules.lowest_c_max} ({rules.source})",
            )
        width = math.log2(c_max - c_min) / 3
        # The rules round halves to the even number, as Python does.
        low_end, medium_end = round(c_min + 2**width), round(c_min + 2 ** (2 * width))
        return Regions(
            c_min=c_min,
            c_max=c_max,
            ultra_low=Region(name="Ultra Low", start=1, end=c_min if c_min_stated else rules.highest_c_min),
            low=Region(name="Low", start=c_min + 1, end=low_end),
            medium=Region(name="Medium", start=low_end + 1, end=medium_end),
            high=Region(name="High", start=medium_end + 1, end=c_max),
            margin=Region(name="margin", start=c_max + 1, end=math.ceil(rules.margin * c_max)),
        )

    def point_terms(
        self, benchmark: EndpointsBenchmark, concurrency: int, curve: Regions, *, offline: bool = False
    ) -> PointTerms:
        """Return the terms of a point; `offline` is a dedicated Offline run, which fills no region."""
        return PointTerms(
            concurrency=concurrency,
            regions=() if offline else tuple(region.name for region in curve.of(concurrency)),
            least_seconds=self.least_seconds(concurrency),
            samples_of_a_pass=benchmark.samples,
            window_passes=self.window.passes,
            offline=offline,
            streamed=not offline,
        )


@cache
def endpoints_rules() -> EndpointsRules:
    """Return the rules that come with cm4vllm; the targets of a benchmark are those of a round of Inference."""
    rules = read_table("endpoints/rules.yaml", EndpointsRules)
    benchmarks = (
        replace(entry, targets=accuracy_targets(rules.accuracy.targets_of, entry.benchmark, Scenario.OFFLINE))
        if entry.benchmark
        else entry
        for entry in read_table("endpoints/benchmarks.yaml", tuple[EndpointsBenchmark, ...])
    )
    checkers = (
        RoundChecker(round=entry.name, checker=checker.name, commit=checker.commit, source="rounds.yaml")
        for entry in round_entries()
        for checker in entry.checkers
    )
    return replace(rules, benchmarks=tuple(benchmarks), inference_checkers=tuple(checkers))

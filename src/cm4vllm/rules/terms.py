"""The one lookup of MLPerf's rules: what holds for a round, a benchmark, a scenario and a mode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec.structs import replace

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.rules.tables import (
    Arrivals,
    Audit,
    Checker,
    Family,
    GenerationEntry,
    LengthsEntry,
    LoadGenWheel,
    RateUse,
    Seeds,
    audits,
    division_rule_entries,
    families,
    matching,
    round_entries,
    scenario_entries,
)
from cm4vllm.rules.words import Category, Division, Mode, Scenario

__all__ = [
    "AccuracyTarget",
    "Arrivals",
    "Audit",
    "BenchmarkTerms",
    "Checker",
    "Column",
    "Generation",
    "LatencyLimits",
    "LoadGenWheel",
    "RateUse",
    "RequiredScenarios",
    "RoundTerms",
    "Seeds",
    "StopSequence",
    "Terms",
    "accuracy_targets",
    "audit",
    "benchmark_names",
    "benchmark_terms",
    "round_names",
    "round_terms",
    "terms",
    "terms_of_test",
]

#: The rule by which a division states the lengths of answers.
_LENGTHS = "LENGTHS"


class AccuracyTarget(Record, frozen=True, kw_only=True):
    """What a closed result must reach: `lower` <= `metric` <= `upper`; None stands for no bound.

    `label` is the key in accuracy.txt, `metric` the checker's name of it. `reference` is what the reference
    implementation reached. Open results may miss a target; then they say so. A `total` is summed over the samples, and
    its target is set for all of the benchmark's.
    """

    metric: str
    label: str
    reference: float
    lower: float | None
    upper: float | None
    source: str
    total: bool = False

    def met(self, value: float, *, whole: bool = True) -> bool | None:
        """Say whether `value` reaches it; None for a total over a part of the dataset, which has no target."""
        if self.total and not whole:
            return None
        return (self.lower is None or value >= self.lower) and (self.upper is None or value <= self.upper)


class LatencyLimits(Record, frozen=True, kw_only=True):
    """99th percentiles in ms that a result must stay below; None where there is no limit.

    `latency_ms` is of a whole answer, for benchmarks without token latencies.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    latency_ms: float | None
    source: str


class Generation(Record, frozen=True, kw_only=True):
    """Sampling parameters and length limits in tokens, as the reference implementation sets them.

    `lengths_source` states the lengths where it is not the reference.
    `temperature` 0 is greedy decoding. None stands for a parameter that the reference leaves to its engine.
    """

    max_tokens: int
    min_tokens: int
    temperature: float
    source: str
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    beams: int = 1
    reasoning_effort: str = ""
    lengths_source: str = ""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken each time: also where the choice is cut to that one."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0


class StopSequence(Record, frozen=True, kw_only=True):
    """A sequence of tokens that ends an answer, which keeps it, and its text.

    It holds for the samples with these values in columns of the dataset.
    """

    tokens: tuple[int, ...]
    text: str
    where: dict[str, str]

    def ends(self, row: Mapping[str, object]) -> bool:
        """Say whether it ends the answer to this row of the dataset."""
        return all(row.get(name) == value for name, value in self.where.items())


class Column(Record, frozen=True, kw_only=True):
    """A column that a sample is scored by: it holds one of `values`, with `in_part` beside more and in any case.

    Without values it holds anything.
    """

    values: tuple[str, ...]
    in_part: bool = False

    def takes(self, value: object) -> bool:
        """Say whether the column may hold `value`."""
        if not self.values:
            return True
        return any(one in str(value).lower() for one in self.values) if self.in_part else value in self.values


class RequiredScenarios(Record, frozen=True, kw_only=True):
    """The scenarios that a closed result on a system of `system_type` needs: `all_of`, and one of `one_of` if any."""

    system_type: str
    all_of: tuple[Scenario, ...]
    one_of: tuple[Scenario, ...]
    source: str


class RoundTerms(Record, frozen=True, kw_only=True):
    """One round: LoadGen's seeds and wheel, the layout of its submission trees, the official checkers of it."""

    name: str
    seeds: Seeds
    loadgen: LoadGenWheel
    layout: str
    checkers: tuple[Checker, ...]


class BenchmarkTerms(Record, frozen=True, kw_only=True):
    """One benchmark in one round.

    `model` is the reference's. `scenarios` are those that a result may have, those of `required` for every type of
    system. `samples` is the size of the accuracy dataset. `min_tokens` and `max_tokens` hold every answer of every mode
    (0 where the rules state none). `loadgen` says whether LoadGen measures it; else the endpoints harness does.
    `columns` are those of the dataset beyond prompt, tokens and reference; a sample is scored by them.
    `performance_samples` is the size of the dataset that performance runs have of their own, 0 where it is the same.
    """

    round: str
    name: str
    model: str
    category: Category
    scenarios: tuple[Scenario, ...]
    required: tuple[RequiredScenarios, ...]
    samples: int
    max_tokens: int
    scorer: str
    compliance: tuple[str, ...]
    loadgen: bool
    columns: dict[str, Column] = {}
    performance_samples: int = 0

    def required_on(self, system_type: str) -> RequiredScenarios | None:
        """Return what a closed result on a system of this type needs; None where there is no such benchmark."""
        return next((one for one in self.required if one.system_type == system_type), None)


class Terms(Record, frozen=True, kw_only=True):
    """All that the rules say of one run: of a round, a benchmark, a scenario and a mode.

    `loadgen_name` and `loadgen_scenario` are LoadGen's own: Interactive is its Server under another name.
    `first_token` says that LoadGen is notified of the first token of an answer, which is then streamed;
    `first_token_reported_again` that the whole answer is reported with its first token, as most references do.
    `samples` is the size of this mode's dataset: an accuracy run covers it, a performance run draws from it.
    `min_samples` is the least number of samples of a run that LoadGen issues at once, 1 elsewhere.
    `user_conf` holds settings that the round's mlperf.conf lacks. `min_duration_ms` is the least configured duration.
    `stops` end the answers to some samples.
    """

    round: str
    benchmark: str
    scenario: Scenario
    mode: Mode
    loadgen_name: str
    loadgen_scenario: str
    arrivals: Arrivals
    rate: RateUse
    first_token: bool
    first_token_reported_again: bool
    samples: int
    min_samples: int
    min_duration_ms: int
    user_conf: dict[str, int]
    generation: Generation
    limits: LatencyLimits | None
    targets: tuple[AccuracyTarget, ...]
    scorer: str
    seeds: Seeds
    loadgen: LoadGenWheel
    layout: str
    compliance: tuple[str, ...]
    stops: tuple[StopSequence, ...] = ()

    @property
    def paced(self) -> bool:
        """Whether LoadGen issues queries at a rate of its own, whatever the server does."""
        return self.arrivals is Arrivals.POISSON

    @property
    def at_once(self) -> bool:
        """Whether LoadGen issues all samples in one query, so that the client bounds what is in flight."""
        return self.arrivals is Arrivals.AT_ONCE

    @property
    def one_by_one(self) -> bool:
        """Whether each query follows the answer to the one before it."""
        return self.arrivals is Arrivals.ONE_BY_ONE

    @property
    def needs_rate(self) -> bool:
        """Whether a target rate must be known: for the pace of the queries, or for the size of a performance run."""
        return self.rate is RateUse.PACES or (self.rate is RateUse.SIZES and self.mode is Mode.PERFORMANCE)


def round_names() -> tuple[str, ...]:
    """Return the names of the rounds, oldest first."""
    return tuple(entry.name for entry in round_entries())


def round_terms(name: str) -> RoundTerms:
    """Return the round called `name` (v6.1, r6.1 or 6.1). Raises UsageError when it is unknown."""
    key = "v" + name.strip().lower().lstrip("vr")
    for entry in round_entries():
        if entry.name == key:
            return RoundTerms(
                name=entry.name, seeds=entry.seeds, loadgen=entry.loadgen, layout=entry.layout, checkers=entry.checkers
            )
    raise UsageError(f"unknown round {name!r}", remedy=nearest(key, round_names()))


def benchmark_names(round_name: str | None = None) -> tuple[str, ...]:
    """Return the names of a round's benchmarks for language models, of all rounds' where none is given."""
    rounds = (round_name,) if round_name else round_names()
    found = [
        entry.name
        for family in families()
        for entry in family.benchmarks
        if any(matching([entry], one, entry.name) for one in rounds)
    ]
    return tuple(sorted(found))


@cache
def benchmark_terms(round_name: str, name: str, division: Division = Division.OPEN) -> BenchmarkTerms:
    """Return a benchmark as a round has it, with the longest answer that a division asks for.

    Raises UsageError when it is unknown or not in that round.
    """
    round_name = round_terms(round_name).name
    family = family_of(round_name, name)
    entry = next(entry for entry in family.benchmarks if entry.name == name)
    required = tuple(
        RequiredScenarios(system_type=kind, all_of=rule.all_of, one_of=rule.one_of, source=rule.source)
        for rule in matching(family.required, round_name, name)
        for kind in rule.system_types
    )
    used = {scenario for rule in required for scenario in (*rule.all_of, *rule.one_of)}
    generation = matching(family.generation, round_name, name)
    lengths = [_lengths(family, one, division, round_name, name) for one in generation]
    return BenchmarkTerms(
        round=round_name,
        name=name,
        model=family.model,
        category=entry.category,
        scenarios=tuple(scenario for scenario in Scenario if scenario in used),
        required=required,
        samples=max(one.count for one in matching(family.samples, round_name, name, mode=Mode.ACCURACY)),
        max_tokens=max((one.max_tokens for one in lengths), default=0),
        scorer=family.scorer,
        compliance=_tests(family, round_name, name),
        loadgen=bool(family.loadgen and generation),
        columns={
            one.name: Column(values=one.values, in_part=one.in_part)
            for one in matching(family.columns, round_name, name)
        },
        performance_samples=sum(
            one.count for one in matching(family.samples, round_name, name) if one.modes == (Mode.PERFORMANCE,)
        ),
    )


@cache
def terms(round_name: str, benchmark: str, scenario: Scenario, mode: Mode, division: Division = Division.OPEN) -> Terms:
    """Return what the rules say of a run. Only the lengths of its answers depend on the division.

    Raises UsageError when the round, the benchmark in it, or the scenario of it is unknown, and when LoadGen does not
    measure the benchmark.
    """
    round_ = round_terms(round_name)
    round_name = round_.name
    found = benchmark_terms(round_name, benchmark)
    if scenario not in found.scenarios:
        raise UsageError(
            f"{benchmark} has no scenario {scenario} in round {round_name}",
            remedy=f"it has {', '.join(found.scenarios)}",
        )
    if not found.loadgen:
        raise UsageError(
            f"LoadGen does not measure {benchmark} in round {round_name}",
            cause="the round measures it with the endpoints harness or a pipeline of its own",
        )
    family, how = family_of(round_name, benchmark), scenario_entries()[scenario]
    cell = (round_name, benchmark, scenario, mode)
    (samples,) = matching(family.samples, *cell)
    limits = matching(family.limits, *cell)
    return Terms(
        round=round_.name,
        benchmark=benchmark,
        scenario=scenario,
        mode=mode,
        loadgen_name=matching(family.loadgen, *cell)[0].name,
        loadgen_scenario=how.loadgen,
        arrivals=how.arrivals,
        rate=how.rate,
        first_token=how.first_token,
        first_token_reported_again=family.first_token_reported_again,
        samples=samples.count,
        min_samples=samples.count if how.arrivals is Arrivals.AT_ONCE else 1,
        min_duration_ms=how.min_duration_ms,
        user_conf={one.setting: one.value for one in matching(family.user_conf, *cell)},
        generation=_generation(family, *cell, division),
        limits=LatencyLimits(
            ttft_ms=limits[0].ttft_ms,
            tpot_ms=limits[0].tpot_ms,
            latency_ms=limits[0].latency_ms,
            source=limits[0].source,
        )
        if limits
        else None,
        targets=accuracy_targets(round_name, benchmark, scenario),
        scorer=family.scorer,
        seeds=round_.seeds,
        loadgen=round_.loadgen,
        layout=round_.layout,
        compliance=found.compliance,
        stops=tuple(
            StopSequence(tokens=one.tokens, text=one.text, where=one.where)
            for one in matching(family.stop_sequences, *cell)
        ),
    )


def terms_of_test(found: Terms, test: Audit) -> Terms:
    """Return the terms of the run of a compliance test: those of a performance run, on the test's own dataset if any.

    mlperf.conf has the number of samples of the benchmark's dataset, which is more than that of the test.
    """
    if not test.own_dataset:
        return found
    return replace(
        found,
        samples=test.samples,
        min_samples=test.samples if found.at_once else found.min_samples,
        user_conf={**found.user_conf, "performance_sample_count_override": test.samples},
    )


def accuracy_targets(round_name: str, benchmark: str, scenario: Scenario) -> tuple[AccuracyTarget, ...]:
    """Return what a closed result's accuracy must reach. Raises UsageError for an unknown round or benchmark."""
    found = matching(family_of(round_name, benchmark).targets, round_name, benchmark, scenario)
    return tuple(
        AccuracyTarget(
            metric=one.metric,
            label=one.label,
            reference=one.reference,
            lower=None if one.lower is None else one.reference * one.lower,
            upper=None if one.upper is None else (one.upper_reference or one.reference) * one.upper,
            source=one.source,
            total=one.total,
        )
        for one in found
    )


def audit(name: str, benchmark: str = "") -> Audit:
    """Return the compliance test of a benchmark, or that of all benchmarks without one of their own.

    Raises UsageError when it is unknown or never applies to language models.
    """
    for one in audits():
        if one.name == name and (not one.benchmarks or benchmark in one.benchmarks):
            return one
    raise UsageError(f"unknown compliance test {name!r}", remedy=nearest(name, [one.name for one in audits()]))


def family_of(round_name: str, benchmark: str) -> Family:
    """Return the family of a benchmark of a round. Raises UsageError."""
    round_name = round_terms(round_name).name
    known = {entry.name: (family, entry) for family in families() for entry in family.benchmarks}
    if benchmark not in known:
        raise UsageError(f"unknown model {benchmark!r}", remedy=nearest(benchmark, benchmark_names(round_name)))
    family, entry = known[benchmark]
    if not matching([entry], round_name, benchmark):
        raise UsageError(
            f"model {benchmark} is not in round {round_name}",
            remedy=f"that round has {', '.join(benchmark_names(round_name))}",
        )
    return family


def _generation(
    family: Family, round_name: str, benchmark: str, scenario: Scenario, mode: Mode, division: Division
) -> Generation:
    """Return what the reference asks for; in divisions that state lengths of their own, with those."""
    (one,) = matching(family.generation, round_name, benchmark, scenario, mode)
    held = _lengths(family, one, division, round_name, benchmark, scenario, mode)
    return Generation(
        max_tokens=held.max_tokens,
        min_tokens=held.min_tokens,
        temperature=one.temperature,
        source=one.source,
        lengths_source="" if held is one else held.source,
        top_p=one.top_p,
        top_k=one.top_k,
        seed=one.seed,
        beams=one.beams,
        reasoning_effort=one.reasoning_effort,
    )


def _lengths(
    family: Family,
    reference: GenerationEntry,
    division: Division,
    round_name: str,
    benchmark: str,
    scenario: Scenario | None = None,
    mode: Mode | None = None,
) -> GenerationEntry | LengthsEntry:
    """Return what states the lengths of answers in a division: its own table where it has one, else the reference."""
    stated = any(rule.code == _LENGTHS and division in rule.divisions for rule in division_rule_entries())
    found = matching(family.closed_lengths, round_name, benchmark, scenario, mode) if stated else []
    return found[0] if found else reference


def _tests(family: Family, round_name: str, benchmark: str) -> tuple[str, ...]:
    return tuple(test for entry in matching(family.compliance, round_name, benchmark) for test in entry.tests)

"""The lookup of MLPerf's rules by round, benchmark, scenario and mode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, ParamSpec, TypeVar

from msgspec.structs import replace

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.rules.compliance import Audit
from cm4vllm.rules.entries import (
    Arrivals,
    BenchmarkEntry,
    Entry,
    Family,
    GenerationEntry,
    LengthsEntry,
    Logged,
    LoggedEntry,
    RoundTerms,
)
from cm4vllm.rules.records import (
    AccuracyTarget,
    BenchmarkTerms,
    ChatPrompt,
    Column,
    Generation,
    LatencyLimits,
    RequiredScenarios,
    StopSequence,
    Terms,
)
from cm4vllm.rules.tables import (
    division_rule_entries,
    facts_of,
    families,
    matching,
    read_table,
    round_entries,
    scenario_entries,
)
from cm4vllm.rules.vocabulary import Category, Division, Mode, Scenario

P = ParamSpec("P")
T = TypeVar("T")

#: The rule by which a division states the lengths of answers.
_LENGTHS = "LENGTHS"
#: The metric by which a target states the length of answers.
_TOKENS_PER_SAMPLE = "TOKENS_PER_SAMPLE"


class _TableCell(NamedTuple):
    """The round, benchmark, scenario and mode of a lookup in the tables; None stands for any scenario or mode."""

    round_name: str
    benchmark: str
    scenario: Scenario | None = None
    mode: Mode | None = None


def round_names() -> tuple[str, ...]:
    """Return the names of the rounds, oldest first."""
    return tuple(entry.name for entry in round_entries())


def default_round() -> str:
    """Return the name of the round that holds where none is named."""
    return next(entry.name for entry in round_entries() if entry.default)


def if_known(lookup: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what a lookup of the rules returns; None for a round, benchmark or scenario that they do not know."""
    try:
        return lookup(*args, **kwargs)
    except UsageError:
        return None


def round_terms(name: str) -> RoundTerms:
    """Return the round called `name` (v6.1, r6.1 or 6.1). Raises UsageError when it is unknown."""
    key, known = "v" + name.strip().lower().lstrip("vr"), {entry.name: entry for entry in round_entries()}
    if key not in known:
        raise UsageError(f"unknown round {name!r}", remedy=nearest(key, known))
    return known[key]


def benchmark_names(round_name: str | None = None) -> tuple[str, ...]:
    """Return the names of a round's benchmarks; without a round, those of all rounds."""
    return tuple(sorted(entry.name for _, entry in _entries(round_name)))


def language_models(round_name: str | None = None) -> tuple[str, ...]:
    """Return the names of a round's benchmarks for language models; without a round, those of all rounds."""
    return tuple(sorted(entry.name for family, entry in _entries(round_name) if family.language_model))


def benchmark_of(round_name: str, folder: str, mapping: Mapping[str, str]) -> str:
    """Return the benchmark that the results in a model's folder are of; the folder's name where it is of none.

    The order is the official checkers' (get_mlperf_model): a benchmark's name, its aliases, `mapping`, which is the
    submitter's own, and what the name has in it.
    """
    entries = [entry for _, entry in _entries(round_name)] if round_name in round_names() else []
    for entry in entries:
        if folder == entry.name or folder in entry.aliases:
            return entry.name
    if folder in mapping:
        return mapping[folder]
    parts = [(part, entry.name) for entry in entries for part in entry.name_parts if part in folder]
    return max(parts, key=lambda part: len(part[0]))[1] if parts else folder


def _entries(round_name: str | None) -> Iterator[tuple[Family, BenchmarkEntry]]:
    """Yield the benchmarks of a round, each with its family; without a round, those of all rounds."""
    rounds = (round_name,) if round_name else round_names()
    for family in families():
        for entry in family.benchmarks:
            if any(matching([entry], named, entry.name) for named in rounds):
                yield family, entry


@cache
def benchmark_terms(round_name: str, name: str, division: Division = Division.OPEN) -> BenchmarkTerms:
    """Return a benchmark as a round has it, with the longest answer that a division asks for.

    Raises UsageError when it is unknown or not in that round.
    """
    round_name = round_terms(round_name).name
    family = family_of(round_name, name)
    required = tuple(
        RequiredScenarios(system_type=kind, all_of=rule.all_of, one_of=rule.one_of, source=rule.source)
        for rule in matching(family.required, round_name, name)
        for kind in rule.system_types
    )
    used = {scenario for rule in required for scenario in (*rule.all_of, *rule.one_of)}
    generation = matching(family.generation, round_name, name)
    lengths = [_lengths(family, entry, division, _TableCell(round_name, name)) for entry in generation]
    return BenchmarkTerms(
        round=round_name,
        name=name,
        model=family.model,
        # A benchmark of both is one of the datacenter unless a user says otherwise.
        category=next(
            (kind for kind in Category if kind in {rule.system_type for rule in required}), Category.DATACENTER
        ),
        scenarios=tuple(scenario for scenario in Scenario if scenario in used),
        required=required,
        samples=max(entry.count for entry in matching(family.samples, round_name, name, mode=Mode.ACCURACY)),
        max_tokens=max((entry.max_tokens for entry in lengths), default=0),
        scorer=family.scorer,
        compliance=tuple(test for entry in matching(family.compliance, round_name, name) for test in entry.tests),
        loadgen=bool(family.loadgen and generation),
        columns={
            entry.name: Column(values=entry.values, in_part=entry.in_part)
            for entry in matching(family.columns, round_name, name)
        },
        performance_samples=sum(
            entry.count for entry in matching(family.samples, round_name, name) if entry.modes == (Mode.PERFORMANCE,)
        ),
        language_model=family.language_model,
        accuracy_files={entry.folder: entry.names for entry in matching(family.accuracy_files, round_name, name)},
        media=family.media,
        longest_media_s=family.longest_media_s,
        server_options={entry.name: entry.value for entry in matching(family.server_options, round_name, name)},
        refused={
            scenario: entry.why for entry in matching(family.refused, round_name, name) for scenario in entry.scenarios
        },
    )


def chat_prompts() -> tuple[ChatPrompt, ...]:
    """Return the prompts of all rounds by which samples are asked for in a conversation."""
    return tuple(prompt for family in families() for prompt in facts_of(family.prompts, ChatPrompt))


def require_text(benchmark: BenchmarkTerms) -> None:
    """Raise UsageError unless the rules state how LoadGen measures the text that a benchmark's model generates."""
    if not benchmark.language_model:
        raise UsageError(
            f"model {benchmark.name} is no language model",
            cause="the rules of its results are known, but only language models are measured",
            remedy=f"round {benchmark.round} has {', '.join(language_models(benchmark.round))}",
        )
    if not benchmark.loadgen:
        raise UsageError(
            f"LoadGen does not measure {benchmark.name} in round {benchmark.round}",
            cause="the round measures it with the endpoints harness or a pipeline of its own",
        )


@cache
def terms(round_name: str, benchmark: str, scenario: Scenario, mode: Mode, division: Division = Division.OPEN) -> Terms:
    """Return the rules of a run. Only the lengths of its answers depend on the division.

    Raises UsageError when the round, the benchmark in it, or the scenario of it is unknown.
    """
    round_ = round_terms(round_name)
    round_name = round_.name
    of_benchmark = benchmark_terms(round_name, benchmark)
    if scenario not in of_benchmark.scenarios:
        raise UsageError(
            f"{benchmark} has no scenario {scenario} in round {round_name}",
            remedy=f"it has {', '.join(of_benchmark.scenarios)}",
        )
    family, how = family_of(round_name, benchmark), scenario_entries()[scenario]
    cell = _TableCell(round_name, benchmark, scenario, mode)
    (samples,) = matching(family.samples, *cell)
    issued = (*matching(family.least_issued, *cell), samples)[0]
    logged = next(iter(matching(family.logged, *cell)), LoggedEntry(form=Logged.TOKENS, source=""))
    return Terms(
        round=round_.name,
        benchmark=benchmark,
        scenario=scenario,
        mode=mode,
        loadgen_name=next((entry.name for entry in matching(family.loadgen, *cell)), benchmark),
        loadgen_scenario=how.loadgen,
        arrivals=how.arrivals,
        rate=how.rate,
        # Where LoadGen counts no tokens, it judges whole answers.
        first_token=how.first_token and family.token_latencies,
        first_token_reported_again=family.first_token_reported_again,
        samples=samples.count,
        min_samples=issued.count if how.arrivals is Arrivals.AT_ONCE else 1,
        min_duration_ms=next(
            (entry.milliseconds for entry in matching(family.min_durations, *cell)), how.min_duration_ms
        ),
        min_queries=next((entry.count for entry in matching(family.min_queries, *cell)), how.min_queries),
        early_stopping=how.early_stopping,
        user_conf={entry.setting: entry.value for entry in matching(family.user_conf, *cell)},
        generation=_generation_terms(family, division, cell),
        limits=next(facts_of(matching(family.limits, *cell), LatencyLimits), None),
        targets=accuracy_targets(round_name, benchmark, scenario),
        scorer=family.scorer,
        seeds=round_.seeds,
        loadgen=round_.loadgen,
        layout=round_.layout,
        compliance=of_benchmark.compliance,
        stops=tuple(facts_of(matching(family.stop_sequences, *cell), StopSequence)),
        media=family.media,
        token_latencies=family.token_latencies,
        logged=logged.form,
        labels=logged.labels,
        mean_tokens=_mean_tokens(family, accuracy_targets(round_name, benchmark, scenario), cell),
        prompt=next(facts_of(matching(family.prompts, *cell), ChatPrompt), None),
    )


def _mean_tokens(family: Family, targets: Sequence[AccuracyTarget], cell: _TableCell) -> float:
    """Return the mean length of an answer: the middle of the range that a target states, or as its entry has it."""
    for target in targets:
        if target.metric == _TOKENS_PER_SAMPLE:
            both = target.lower is not None and target.upper is not None
            return ((target.lower or 0) + (target.upper or 0)) / 2 if both else target.reference
    return next((entry.mean_tokens for entry in matching(family.answers, *cell)), 0.0)


def loadgen_scenario(scenario: str) -> str:
    """Return LoadGen's own scenario for one of MLPerf (Server for Interactive); empty for a word that is none."""
    return next((entry.loadgen for name, entry in scenario_entries().items() if name == scenario), "")


@cache
def issues_equally(round_name: str, benchmark: str) -> bool:
    """Return True if a benchmark's performance runs must issue every sample of the dataset equally often.

    Raises UsageError when the round is unknown.
    """
    entries = read_table("equal_issue.yaml", tuple[Entry, ...])
    return bool(matching(entries, round_terms(round_name).name, benchmark))


def terms_of_test(run_terms: Terms, test: Audit) -> Terms:
    """Return the terms of the run of a compliance test: those of a performance run, on the test's own dataset if any.

    mlperf.conf has the number of samples of the benchmark's dataset, which is more than that of the test.
    """
    if not test.own_dataset:
        return run_terms
    return replace(
        run_terms,
        samples=test.samples,
        min_samples=test.samples if run_terms.at_once else run_terms.min_samples,
        user_conf={**run_terms.user_conf, "performance_sample_count_override": test.samples},
    )


def accuracy_targets(round_name: str, benchmark: str, scenario: Scenario) -> tuple[AccuracyTarget, ...]:
    """Return the accuracy targets of a closed result. Raises UsageError for an unknown round or benchmark."""
    entries = matching(family_of(round_name, benchmark).targets, round_name, benchmark, scenario)
    return tuple(
        AccuracyTarget(
            metric=entry.metric,
            label=entry.label,
            reference=entry.reference,
            lower=None if entry.lower is None else entry.reference * entry.lower,
            upper=None if entry.upper is None else (entry.upper_reference or entry.reference) * entry.upper,
            source=entry.source,
            total=entry.total,
            tolerance=entry.tolerance,
        )
        for entry in entries
    )


def family_of(round_name: str, benchmark: str) -> Family:
    """Return the family of a benchmark of a round. Raises UsageError."""
    round_name = round_terms(round_name).name
    known = {entry.name: (family, entry) for family in families() for entry in family.benchmarks}
    if benchmark not in known:
        raise UsageError(f"unknown model {benchmark!r}", remedy=nearest(benchmark, language_models(round_name)))
    family, entry = known[benchmark]
    if not matching([entry], round_name, benchmark):
        raise UsageError(
            f"model {benchmark} is not in round {round_name}",
            remedy=f"that round has {', '.join(language_models(round_name))}",
        )
    return family


def _generation_terms(family: Family, division: Division, cell: _TableCell) -> Generation:
    """Return the reference's settings of generation, with the division's lengths where it states them.

    No tokens where the rules do not state how text is generated.
    """
    if not (entries := matching(family.generation, *cell)):
        return Generation(max_tokens=0, min_tokens=0, temperature=0, source="")
    (entry,), (generation,) = entries, facts_of(entries, Generation)
    held = _lengths(family, entry, division, cell)
    if held is entry:
        return generation
    return replace(generation, max_tokens=held.max_tokens, min_tokens=held.min_tokens, lengths_source=held.source)


def _lengths(family: Family, reference: GenerationEntry, division: Division, cell: _TableCell) -> LengthsEntry:
    """Return the entry that states the lengths of answers in a division: its own, else the reference's."""
    has_rule = any(rule.code == _LENGTHS and division in rule.divisions for rule in division_rule_entries())
    closed = matching(family.closed_lengths, *cell) if has_rule else []
    return closed[0] if closed else reference

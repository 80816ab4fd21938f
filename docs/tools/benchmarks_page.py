"""docs/benchmarks.md, the rules of every benchmark as tables.

`python docs/tools/benchmarks_page.py > docs/benchmarks.md`
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from cm4vllm.rules.records import AccuracyTarget, BenchmarkTerms, Generation, LatencyLimits, Terms
from cm4vllm.rules.terms import accuracy_targets, benchmark_names, benchmark_terms, language_models, round_names, terms
from cm4vllm.rules.vocabulary import Mode, Scenario

_HEAD = """\
# Benchmarks

Generated from `src/cm4vllm/rules/data/benchmarks/`, where the source stands beside each number:
`python docs/tools/benchmarks_page.py > docs/benchmarks.md`. Which of them can be run says
[rules.md](rules.md#what-can-be-run).

Latency limits are 99th percentiles. A closed result reaches every accuracy target; an open one states what it reached.
Where the performance and the accuracy runs of a scenario ask for the same, they share a row.
"""
_OTHERS = """\
# Benchmarks of other models

None of them can be run. The [check of results](checks.md) has their rules."""
_WIDTH = 120


T = TypeVar("T")
U = TypeVar("U")


def benchmarks_page() -> str:
    """Return docs/benchmarks.md."""
    others = [name for name in benchmark_names() if name not in language_models()]
    sections = [*map(_section, language_models()), iter([_OTHERS]), *map(_section, others)]
    return _HEAD + "".join("\n" + "\n".join(lines) + "\n" for lines in sections)


def _section(name: str) -> Iterator[str]:
    rounds = [round_name for round_name in round_names() if name in benchmark_names(round_name)]
    facts = [benchmark_terms(round_name, name) for round_name in rounds]
    yield f"## {name}\n"
    for title, value in (
        ("model", lambda benchmark: benchmark.model),
        ("category", lambda benchmark: benchmark.category),
        ("accuracy samples", lambda benchmark: f"{benchmark.samples:,}"),
        ("a closed result needs", _required),
        ("accuracy targets", _targets),
        ("compliance tests", lambda benchmark: ", ".join(benchmark.compliance) or "none"),
        ("not run", lambda benchmark: "; ".join(f"{name}: {why}" for name, why in benchmark.refused.items())),
    ):
        for text, part in ((text, part) for text, part in _group(facts, value) if text):
            yield textwrap.fill(f"- {title}{_rounds_note(part, rounds)}: {text}", _WIDTH, subsequent_indent="  ")
    if rows := list(_runs(facts, rounds)):
        yield "\n| scenario | runs | limits | samples | new tokens | sampling |\n|---|---|---|---|---|---|"
        yield from rows


def _runs(facts: list[BenchmarkTerms], rounds: list[str]) -> Iterator[str]:
    for scenario in Scenario:
        runs = [_both_modes(benchmark, scenario) for benchmark in facts if _is_run(benchmark, scenario)]
        for lines, part in _group(runs, _rows):
            yield from (f"| {scenario}{_rounds_note([pair[0] for pair in part], rounds)} | {line} |" for line in lines)


def _is_run(benchmark: BenchmarkTerms, scenario: Scenario) -> bool:
    return benchmark.loadgen and scenario in benchmark.scenarios and scenario not in benchmark.refused


def _rows(pair: tuple[Terms, Terms]) -> tuple[str, ...]:
    """Return what the performance and the accuracy run ask for, once where that is the same."""
    limits, (performance, accuracy) = _limits(pair[0].limits), map(_run, pair)
    if performance == accuracy:
        return (f"both | {limits} | {performance}",)
    return f"performance | {limits} | {performance}", f"accuracy | - | {accuracy}"


def _both_modes(benchmark: BenchmarkTerms, scenario: Scenario) -> tuple[Terms, Terms]:
    performance, accuracy = (
        terms(benchmark.round, benchmark.name, scenario, mode) for mode in (Mode.PERFORMANCE, Mode.ACCURACY)
    )
    return performance, accuracy


def _group(items: Iterable[T], text: Callable[[T], U]) -> Iterator[tuple[U, list[T]]]:
    """Return each text with the neighbours that share it."""
    return ((shared, list(group)) for shared, group in groupby(items, text))


def _rounds_note(part: Sequence[BenchmarkTerms | Terms], rounds: Sequence[str]) -> str:
    """Return the rounds of a row, where they are not all of the benchmark's."""
    first, last = part[0].round, part[-1].round
    if len(part) == len(rounds):
        return ""
    return f", {first}" if first == last else f", {first} to {last}"


def _required(benchmark: BenchmarkTerms) -> str:
    return "; ".join(
        ", ".join(need.all_of) + (f", and {' or '.join(need.one_of)}" if need.one_of else "") + f" ({need.system_type})"
        for need in benchmark.required
    )


def _targets(benchmark: BenchmarkTerms) -> str:
    """Return what the accuracy must reach, by scenario where they differ."""
    texts: dict[str, list[str]] = {}
    for scenario in benchmark.scenarios:
        bounds = ", ".join(_bounds(target) for target in accuracy_targets(benchmark.round, benchmark.name, scenario))
        texts.setdefault(bounds or "none", []).append(scenario)
    return "; ".join(f"{text} ({', '.join(names)})" if len(texts) > 1 else text for text, names in texts.items())


def _bounds(target: AccuracyTarget) -> str:
    lower, upper = (
        None if bound is None else f"{bound:,.4f}".rstrip("0").rstrip(".") for bound in (target.lower, target.upper)
    )
    return (
        f"{target.metric} {lower} to {upper}"
        if lower and upper
        else (f"{target.metric} {lower} or more" if lower else f"{target.metric} {upper} or less")
    )


def _limits(limits: LatencyLimits | None) -> str:
    if limits is None:
        return "none"
    return ", ".join(f"{name} {value:,.0f} ms" for name, value in limits.by_name.items())


def _run(run_terms: Terms) -> str:
    return f"{run_terms.samples:,} | {_generation(run_terms.generation)}"


def _generation(generation: Generation) -> str:
    sampling = "greedy" if generation.greedy else f"temperature {generation.temperature:g}"
    beams = f", {generation.beams} beams" if generation.beams > 1 else ""
    effort = f", reasoning effort {generation.reasoning_effort}" if generation.reasoning_effort else ""
    least, most = generation.min_tokens, generation.max_tokens
    lengths = f"{least:,} to {most:,}" if most else f"{least:,} or more"
    return f"{lengths} | {sampling}{beams}{effort}"


if __name__ == "__main__":
    print(benchmarks_page(), end="")

"""Benchmarks, compliance tests and graders that this version can run: no other module states them."""

from collections.abc import Mapping

from cm4vllm.accuracy.graders.catalogue import grader
from cm4vllm.accuracy.scoring import SCORERS, graders_of, lacks_of
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.rules import (
    BenchmarkTerms,
    Category,
    Division,
    ExecutionMode,
    Media,
    Mode,
    RoundTerms,
    Scenario,
    benchmark_names,
    benchmark_terms,
    division_rules,
    terms,
)

#: Media that the client sends beside prompts.
_SENT = frozenset(Media)
#: The rule by which a division asks for the compliance tests of a benchmark.
_TESTS = "TESTS"


def runnable_benchmarks(round_name: str) -> tuple[str, ...]:
    """Return the benchmarks of a round that can be run."""
    return tuple(name for name in benchmark_names(round_name) if not _missing(benchmark_terms(round_name, name)))


def require_runnable(round_: RoundTerms, benchmark: BenchmarkTerms, scenarios: tuple[Scenario, ...]) -> None:
    """Raise UsageError for what the rules have in a round that can be run, and this version cannot run."""
    if missing := _missing(benchmark):
        raise UsageError(
            f"model {benchmark.name} cannot be run yet",
            cause="; ".join(missing),
            remedy=f"that round's {', '.join(runnable_benchmarks(round_.name))} can",
        )
    if unknown := [scenario for scenario in scenarios if scenario not in benchmark.scenarios]:
        raise UsageError(
            f"{benchmark.name} has no scenario {unknown[0]} in round {round_.name}",
            remedy=f"run one of {', '.join(benchmark.scenarios)}",
        )
    for scenario in scenarios:
        if why := benchmark.refused.get(scenario):
            others = [str(other) for other in benchmark.scenarios if other not in benchmark.refused]
            raise UsageError(
                f"{scenario} of {benchmark.name} cannot be run in round {round_.name}",
                cause=why,
                remedy=f"run {' or '.join(others)}; what only MLPerf Endpoints measures, docs/endpoints.md describes",
            )


def unscored_metrics(benchmark: BenchmarkTerms, problems: str = "", *, here: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the metrics of a benchmark that cannot be scored, by their labels, each with all reasons.

    `problems` is the folder of tests that the user gives. Without `here` they are scored on another machine.
    """
    return lacks_of(SCORERS[benchmark.scorer], problems, here=here) if benchmark.scorer in SCORERS else {}


def unscored_words(lacks: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return a text for each reason, with the metrics that it holds for."""
    labels: dict[str, list[str]] = {}
    for label, reasons in lacks.items():
        for why in reasons:
            labels.setdefault(why, []).append(label)
    return [f"{' and '.join(same)}: {why}" for why, same in labels.items()]


def graders(benchmark: BenchmarkTerms, problems: str = "", *, here: bool = True) -> tuple[str, ...]:
    """Return the graders that score a benchmark's answers on this machine, without `here` on another one.

    `problems` is the folder of tests that the user gives.
    """
    return graders_of(SCORERS[benchmark.scorer], problems, here=here) if benchmark.scorer in SCORERS else ()


def reads_problems(benchmark: BenchmarkTerms) -> bool:
    """Return True if answers of a benchmark are judged by tests that the user gives."""
    return any(grader(name).problems for names in SCORERS[benchmark.scorer].graders.values() for name in names)


def needs_sentences(benchmark: BenchmarkTerms) -> bool:
    """Return True if answers are split into sentences for a benchmark's scores."""
    return bool(SCORERS[benchmark.scorer].rouge)


def require_scored(
    benchmark: BenchmarkTerms,
    modes: tuple[Mode, ...],
    execution: ExecutionMode,
    problems: str = "",
    *,
    here: bool = True,
) -> None:
    """Raise UsageError for a valid accuracy run of which a metric cannot be scored; a rehearsal goes on without it."""
    lacks = unscored_metrics(benchmark, problems, here=here)
    if lacks and Mode.ACCURACY in modes and execution is ExecutionMode.VALID:
        raise UsageError(
            f"the accuracy of {benchmark.name} cannot be scored as a whole, which a valid run needs",
            cause="; ".join(unscored_words(lacks)),
            remedy="measure the performance alone, with --tags=run-mlperf,inference,_performance-only; or rehearse "
            "with --execution_mode=test, which shows that metric as not scored",
        )


def compliance_tests(
    asked: str, benchmark: BenchmarkTerms, division: Division, category: Category = Category.DATACENTER
) -> tuple[str, ...]:
    """Return the compliance tests of a job: those that the user names and those that its division requires.

    Raises UsageError for a test that the benchmark does not have.
    """
    rule = division_rules(division, category).get(_TESTS)
    names = [name for name in asked.upper().split(",") if name] + list(benchmark.compliance if rule else ())
    for name in names:
        if name not in benchmark.compliance:
            raise UsageError(
                f"--compliance={name}: {benchmark.name} has no such test in round {benchmark.round}",
                remedy=nearest(name, benchmark.compliance)
                if benchmark.compliance
                else "leave --compliance out: it has none",
            )
    return tuple(dict.fromkeys(names))


def _missing(benchmark: BenchmarkTerms) -> list[str]:
    """Return the parts that a benchmark needs and this version lacks."""
    if not benchmark.language_model:
        return ["it is no language model: the rules of its results are known, but it is not measured"]
    lacks = []
    if not benchmark.loadgen:
        lacks.append("it is not measured with LoadGen, or by a pipeline of its own")
    elif (beams := terms(benchmark.round, benchmark.name, benchmark.scenarios[0], Mode.ACCURACY).generation.beams) > 1:
        lacks.append(f"it is decoded by beam search with {beams} beams, which the client does not ask a server for")
    if benchmark.media is not None and benchmark.media not in _SENT:
        lacks.append(f"its samples carry {benchmark.media}, which the client does not send yet")
    if benchmark.scorer not in SCORERS:
        lacks.append(f"its accuracy is computed by the scorer {benchmark.scorer!r}, which is not built yet")
    return lacks

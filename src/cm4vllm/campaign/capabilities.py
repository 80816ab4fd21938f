"""What this version can run of what MLPerf's rules have: the one place that says so."""

from __future__ import annotations

from cm4vllm.accuracy.scoring import MISSING, SCORERS
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.compliance.verification import VERIFIED_TESTS
from cm4vllm.rules import (
    BenchmarkTerms,
    Division,
    Mode,
    RoundTerms,
    Scenario,
    benchmark_names,
    benchmark_terms,
    round_names,
    terms,
)
from cm4vllm.submission.layouts import LAYOUTS

__all__ = ["compliance_tests", "require_round", "require_runnable", "runnable_benchmarks"]


def runnable_benchmarks(round_name: str) -> tuple[str, ...]:
    """Return the benchmarks of a round that can be run."""
    return tuple(name for name in benchmark_names(round_name) if not _missing(benchmark_terms(round_name, name)))


def require_round(round_: RoundTerms) -> None:
    """Raise UsageError for a round that this version cannot run, whatever the benchmark."""
    if round_.layout not in LAYOUTS:
        newest = round_names()[-1]
        raise UsageError(
            f"round {round_.name} is not supported",
            cause="its submission tree has a layout that is not built yet",
            remedy=f"run round {newest} instead: --tags=run-mlperf,inference,_r{newest.removeprefix('v')} and a model "
            "of that round",
        )


def require_runnable(
    round_: RoundTerms, benchmark: BenchmarkTerms, scenarios: tuple[Scenario, ...], division: Division
) -> None:
    """Raise UsageError for what the rules have in a round that can be run, and this version cannot run."""
    if missing := _missing(benchmark):
        raise UsageError(f"model {benchmark.name} cannot be run yet", cause="; ".join(missing),
                         remedy=f"that round's {', '.join(runnable_benchmarks(round_.name))} can")
    if unknown := [scenario for scenario in scenarios if scenario not in benchmark.scenarios]:
        raise UsageError(f"{benchmark.name} has no scenario {unknown[0]} in round {round_.name}",
                         remedy=f"run one of {', '.join(benchmark.scenarios)}")
    if division is not Division.OPEN:
        raise UsageError(
            f"the {division} division is not supported",
            cause="of what it asks for, only the compliance tests are built",
            remedy="leave --division out, or give --division=open",
        )


def compliance_tests(asked: str, benchmark: BenchmarkTerms, division: Division) -> tuple[str, ...]:
    """Return the compliance tests of a job: those that are asked for by name, else those that its division asks for.

    Raises UsageError for a test that the benchmark does not have, and for one that cannot be run yet.
    """
    names = [name for name in asked.upper().split(",") if name] or (
        list(benchmark.compliance) if division is not Division.OPEN else [])
    for name in names:
        if name not in benchmark.compliance:
            tests = ", ".join(benchmark.compliance)
            raise UsageError(
                f"--compliance={name}: {benchmark.name} has no such test in round {benchmark.round}",
                remedy=nearest(name, benchmark.compliance) if tests else "leave --compliance out: it has none")
        if name not in VERIFIED_TESTS:
            raise UsageError(f"the compliance test {name} cannot be run yet",
                             cause="it needs a dataset of its own and the scorer of the benchmark's answers",
                             remedy=f"--compliance takes {', '.join(VERIFIED_TESTS)}")
    return tuple(dict.fromkeys(names))


def _missing(benchmark: BenchmarkTerms) -> list[str]:
    """Return what a benchmark needs and this version lacks."""
    lacks = []
    if not benchmark.loadgen:
        lacks.append("it is not measured with LoadGen, or by a pipeline of its own")
    else:
        lacks += _not_asked_for(benchmark)
    if benchmark.scorer not in SCORERS:
        why = MISSING.get(benchmark.scorer, "")
        lacks.append(f"its accuracy is computed by the scorer {benchmark.scorer!r}, which is not built yet"
                     + (f": {why}" if why else ""))
    return lacks


def _not_asked_for(benchmark: BenchmarkTerms) -> list[str]:
    """Return what the benchmark has a server do and the client does not ask for."""
    modes = {mode: terms(benchmark.round, benchmark.name, benchmark.scenarios[0], mode) for mode in Mode}
    generation, lacks = modes[Mode.ACCURACY].generation, []
    if generation.beams > 1:
        lacks.append(f"it is decoded by beam search with {generation.beams} beams, which the client does not ask a "
                     "server for")
    if not generation.greedy:
        lacks.append(f"its tokens are drawn at temperature {generation.temperature:g}, and the client asks for the "
                     "most likely token alone")
    if (samples := modes[Mode.PERFORMANCE].samples) != benchmark.samples:
        lacks.append(f"its performance runs have a dataset of their own, of {samples:,} samples, and a job has one")
    if benchmark.stops_at_tokens:
        lacks.append("some of its answers end at a sequence of tokens, which the client does not ask a server for")
    return lacks

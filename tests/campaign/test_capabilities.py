"""The capabilities: the rules and the built features decide each cell, and docs/what-runs.md shows the same table."""

from contextlib import suppress
from pathlib import Path

import pytest

from cm4vllm.accuracy.graders.sandbox import sandbox_lacks
from cm4vllm.campaign.job_checks.capabilities import (
    compliance_tests,
    graders,
    require_runnable,
    require_scored,
    runnable_benchmarks,
    unscored_metrics,
)
from cm4vllm.common.errors import UsageError
from cm4vllm.compliance.verification import verified_tests
from cm4vllm.rules import (
    Division,
    ExecutionMode,
    Mode,
    Scenario,
    benchmark_names,
    benchmark_terms,
    round_names,
    round_terms,
)

WHAT_RUNS = Path(__file__).parents[2] / "docs" / "what-runs.md"


def runs(round_name, name):
    """Return the scenarios of a benchmark that can be run in the open division."""
    benchmark, scenarios = benchmark_terms(round_name, name), []
    for scenario in benchmark.scenarios:
        with suppress(UsageError):
            require_runnable(round_terms(round_name), benchmark, (scenario,))
            scenarios.append(str(scenario))
    return scenarios


def table():
    """Return the rounds in which each scenario of each benchmark can be run."""
    rounds = list(round_names())
    ran = {(each, name): runs(each, name) for each in rounds for name in benchmark_names(each)}
    used = [str(scenario) for scenario in Scenario if any(scenario in names for names in ran.values())]
    lines = ["| benchmark | " + " | ".join(used) + " |", "|---" * (len(used) + 1) + "|"]
    for name in benchmark_names():
        cells = [span([each for each in rounds if scenario in ran.get((each, name), ())]) for scenario in used]
        if set(cells) != {"-"}:
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def span(rounds):
    """Return `v5.1 to v6.1` for three rounds or more without a gap, else the rounds."""
    first = round_names().index(rounds[0]) if rounds else 0
    if len(rounds) > 2 and list(round_names()[first : first + len(rounds)]) == rounds:
        return f"{rounds[0]} to {rounds[-1]}"
    return ", ".join(rounds) or "-"


def test_the_documented_table_is_what_can_be_run():
    assert table() in WHAT_RUNS.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("round_name", "name", "words"),
    [
        ("v4.1", "gptj-99", "beam search"),
        ("v6.1", "qwen3.6-27b", "not measured with LoadGen"),
        ("v6.1", "resnet", "no language model"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(round_name, name, words):
    assert name not in runnable_benchmarks(round_name)
    benchmark = benchmark_terms(round_name, name)
    with pytest.raises(UsageError, match="cannot be run yet") as refused:
        require_runnable(round_terms(round_name), benchmark, benchmark.scenarios[:1])
    assert words in refused.value.cause


@pytest.mark.parametrize(
    ("round_name", "words"), [("v6.1", "48,289 samples in every performance run"), ("v6.0", "states no limit")]
)
def test_a_scenario_of_which_no_result_could_pass_is_refused_with_the_reason(round_name, words):
    benchmark = benchmark_terms(round_name, "qwen3-vl-235b-a22b")
    require_runnable(round_terms(round_name), benchmark, (Scenario.OFFLINE, Scenario.SERVER))
    with pytest.raises(UsageError, match="Interactive of qwen3-vl-235b-a22b cannot be run") as refused:
        require_runnable(round_terms(round_name), benchmark, (Scenario.OFFLINE, Scenario.INTERACTIVE))
    assert words in refused.value.cause
    assert "run Offline or Server" in refused.value.remedy and "docs/endpoints.md" in refused.value.remedy


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-oss-120b"])
def test_a_valid_accuracy_run_without_a_scorer_of_all_its_samples_is_refused(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox_lacks.cache_clear()
    monkeypatch.setattr("cm4vllm.accuracy.graders.catalogue.sandbox_lacks", sandbox_lacks.__wrapped__)
    benchmark = benchmark_terms("v6.0", name)
    require_scored(benchmark, tuple(Mode), ExecutionMode.TEST)
    require_scored(benchmark, (Mode.PERFORMANCE,), ExecutionMode.VALID)
    with pytest.raises(UsageError, match="cannot be scored as a whole") as refused:
        require_scored(benchmark, tuple(Mode), ExecutionMode.VALID)
    assert all(why in refused.value.cause for reasons in unscored_metrics(benchmark).values() for why in reasons)
    assert "_performance-only" in refused.value.remedy
    assert graders(benchmark) == ()


@pytest.mark.parametrize(
    ("asked", "division", "tests"),
    [
        ("", Division.OPEN, ()),
        ("test06", Division.OPEN, ("TEST06",)),
        ("test06,TEST06", Division.CLOSED, ("TEST06",)),
        ("", Division.CLOSED, ("TEST06",)),
    ],
)
def test_the_compliance_tests_of_a_job(asked, division, tests):
    assert compliance_tests(asked, benchmark_terms("v6.1", "llama3.1-8b"), division) == tests


@pytest.mark.parametrize(("name", "asked"), [("llama3.1-8b", "TEST01"), ("llama3.1-8b-edge", "TEST06")])
def test_a_compliance_test_that_cannot_be_run_is_refused(name, asked):
    with pytest.raises(UsageError, match="has no such test") as refused:
        compliance_tests(asked, benchmark_terms("v6.1", name), Division.OPEN)
    assert refused.value.remedy


def test_every_test_that_the_rules_name_of_a_benchmark_that_runs_can_be_verified():
    named = {
        test
        for round_name in round_names()
        for name in runnable_benchmarks(round_name)
        for test in benchmark_terms(round_name, name).compliance
    }
    assert named == set(verified_tests())
    assert compliance_tests("", benchmark_terms("v6.1", "gpt-oss-120b"), Division.CLOSED) == ("TEST07", "TEST09")

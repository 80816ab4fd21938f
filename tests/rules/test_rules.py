"""Rounds, benchmarks and scenarios: what is known, what is refused, and the hint it comes with."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.rules.benchmarks import BENCHMARKS, benchmark_named
from cm4vllm.rules.rounds import ROUNDS, round_named
from cm4vllm.rules.scenarios import ExecutionMode, Scenario


@pytest.mark.parametrize("name", ["v6.1", "r6.1", "6.1"])
def test_a_round_has_several_spellings(name):
    assert round_named(name).loadgen == "6.0.17"


def test_a_round_that_is_not_there_yet_is_refused_with_the_reason():
    with pytest.raises(UsageError) as error:
        round_named("r4.1")
    assert "not there yet" in str(error.value)
    assert "4.1.30" in error.value.cause
    assert "_r6.1" in error.value.remedy


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(UsageError) as error:
        benchmark_named("llama3-8b", "v6.1")
    assert "llama3.1-8b" in error.value.remedy


def test_a_model_of_another_round_is_refused():
    with pytest.raises(UsageError, match="not in round v6.1"):
        benchmark_named("llama2-70b-99", "v6.1")


def test_scenarios_are_read_in_any_case():
    assert Scenario.parse("offline") is Scenario.OFFLINE
    assert ExecutionMode.parse("VALID") is ExecutionMode.VALID
    with pytest.raises(UsageError, match="unknown execution mode"):
        ExecutionMode.parse("fast")


def test_targets_of_llama31_8b_are_99_percent_of_the_reference():
    # language/llama3.1-8b/README.md of mlcommons/inference: 38.7792, 15.9075, 24.4957, 35.793; 8167644 characters.
    targets = {t.label: t for t in BENCHMARKS["llama3.1-8b"].targets}
    reference = {"rouge1": 38.7792, "rouge2": 15.9075, "rougeL": 24.4957, "rougeLsum": 35.793}
    for label, value in reference.items():
        assert targets[label].lower == pytest.approx(0.99 * value, abs=1e-6)
    assert targets["gen_len"].lower == pytest.approx(0.9 * 8167644)
    assert targets["gen_len"].upper == pytest.approx(1.1 * 8167644)
    assert targets["gen_len"].met(9e6) is False and targets["gen_len"].met(9e6, whole=False) is None
    assert targets["rouge1"].met(40, whole=False) is True


def test_seeds_of_each_round_are_different():
    assert len({seed for round_ in ROUNDS.values() for seed in round_.seeds}) == 3 * len(ROUNDS)

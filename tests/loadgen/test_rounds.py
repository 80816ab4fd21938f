"""A run with the LoadGen of each round: its own wheel, whose log carries the round's seeds and limits."""

import re

import pytest
from fake_vllm import FakeVllm, prompt
from msgspec.structs import replace

from cm4vllm.compliance.audit import audit_config, require_applied
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.loadgen.wheel import LoadGenSettings, provide
from cm4vllm.records.logs.answers import read_answers
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_performance
from cm4vllm.rules import ExecutionMode, Mode, Scenario, audit, round_names, terms

CELLS = [
    (round_name, "llama2-70b-99.9", scenario)
    for round_name in round_names()
    for scenario in (Scenario.OFFLINE, Scenario.SERVER)
]
CELLS += [
    ("v6.1", "llama3.1-8b", Scenario.INTERACTIVE),
    ("v5.0", "llama3.1-405b", Scenario.SERVER),
    ("v6.0", "llama3.1-405b", Scenario.INTERACTIVE),
    ("v5.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM),
    ("v4.1", "mixtral-8x7b", Scenario.SERVER),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Install each round's LoadGen in a folder of its own; give the folders by round."""
    folder = tmp_path_factory.mktemp("wheels")
    return {name: provide(LoadGenSettings(round=name), folder / name).pythonpath for name in round_names()}


@pytest.mark.parametrize(("round_name", "benchmark", "scenario"), CELLS)
def test_the_log_is_of_the_round_the_benchmark_and_the_scenario(
    tmp_path, make_settings, wheels, round_name, benchmark, scenario
):
    run_terms = terms(round_name, benchmark, scenario, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=50, test_query_count=64, dataset_samples=64)
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server" if run_terms.first_token else "Offline", "performance")
        settings = replace(settings, terms=run_terms, user_conf=conf.text, target_qps=50)
        record = run(settings, tmp_path / "run", pythonpath=wheels[round_name])
    programs = [prompt(index) for index in range(2, 64, 3)] if run_terms.stops else []
    assert all(body.get("stop") == (["\n```\n"] if body["prompt"] in programs else None) for body in server.bodies)
    result = read_performance(tmp_path / "run")
    assert result.seeds == (run_terms.seeds.qsl, run_terms.seeds.sample_index, run_terms.seeds.schedule)
    assert result.scenario == run_terms.loadgen_scenario
    assert result.target_qps == pytest.approx(50, rel=0.2)
    assert record.versions["mlcommons-loadgen"] in (run_terms.loadgen.wheel, run_terms.loadgen.first)
    if run_terms.at_once:  # 64 samples of 64
        generated = re.findall(r'"generated_query_count", "value": (\d+)', (tmp_path / "run" / DETAIL_LOG).read_text())
        assert generated == ["64" if run_terms.loadgen.repeats_whole_datasets else "1"]


@pytest.mark.parametrize("round_name", round_names())
@pytest.mark.parametrize("scenario", [Scenario.OFFLINE, Scenario.SERVER])
def test_loadgen_applies_the_settings_of_a_compliance_test(tmp_path, make_settings, wheels, round_name, scenario):
    run_terms = terms(round_name, "llama2-70b-99.9", scenario, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=200, test_query_count=64, dataset_samples=64)
    with FakeVllm() as server:
        settings = make_settings(
            server.endpoint, scenario, "performance", compliance_test="TEST06", audit_config=audit_config("TEST06")
        )
        run(replace(settings, terms=run_terms, user_conf=conf.text), tmp_path / "run", pythonpath=wheels[round_name])
    require_applied(read_detail_log(tmp_path / "run" / DETAIL_LOG), audit("TEST06"))
    answers = read_answers(tmp_path / "run" / ACCURACY_LOG)
    assert len(answers) >= 100  # LoadGen of v4.1 issues whole passes over the samples, and draws
    assert all(bool(answer.first) == run_terms.first_token and answer.tokens for answer in answers)

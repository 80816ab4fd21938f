"""The reports to LoadGen, by the convention of each benchmark's reference implementation, read from LoadGen's logs."""

from array import array

import pytest
from fake_vllm import Behaviour, FakeVllm, Fault, expected_tokens, prompt
from msgspec.structs import replace

from cm4vllm.common.errors import RunFailed
from cm4vllm.loadgen.process.kept_answers import file_of, kept_answers
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.rules import ExecutionMode, Mode, Scenario, benchmark_names, benchmark_terms, terms

SENT = {index: expected_tokens(prompt(index), 128, 2) for index in range(64)}
ALL_BUT_THE_FIRST = {"gpt-oss-120b"}


#: A benchmark of each convention, which the terms of a run state.
CELLS = {
    (of.first_token, of.first_token_reported_again, of.logged, bool(of.stops)): (name, scenario)
    for name in benchmark_names("v6.1")
    if benchmark_terms("v6.1", name).loadgen and benchmark_terms("v6.1", name).media is None
    for scenario in benchmark_terms("v6.1", name).scenarios
    for of in [terms("v6.1", name, scenario, Mode.ACCURACY)]
}


def test_the_conventions_are_those_of_the_references():
    assert {name for (_, again, *_), (name, _) in CELLS.items() if not again} == ALL_BUT_THE_FIRST
    assert len(CELLS) > 3


@pytest.mark.parametrize(("name", "scenario"), CELLS.values())
def test_an_answer_is_reported_as_the_reference_reports_it(tmp_path, make_settings, name, scenario):
    run_terms = terms("v6.1", name, scenario, Mode.ACCURACY)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=100, test_query_count=64, dataset_samples=64)
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server" if run_terms.first_token else "Offline", "accuracy")
        settings = replace(settings, terms=run_terms, user_conf=conf.text)
        record = run(settings, tmp_path / "run")
    left_out = 1 if name in ALL_BUT_THE_FIRST and scenario is not Scenario.OFFLINE else 0
    logged = {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(tmp_path / "run" / ACCURACY_LOG)}
    assert logged == {index: tokens[left_out:] for index, tokens in SENT.items()}
    assert record.client.completion_tokens == sum(map(len, SENT.values()))
    assert record.client.reported_tokens == record.client.completion_tokens - 64 * left_out


def test_answers_are_those_of_their_samples_where_loadgen_loads_the_dataset_in_parts(tmp_path, make_settings):
    """It frees a part's queries when all of it was answered, and gives their keys to queries of the next one."""
    settings = make_settings("http://a", "Offline", "accuracy", max_in_flight=4)
    whole = "performance_sample_count_override = 64"
    assert whole in settings.user_conf
    with FakeVllm(Behaviour(fault=lambda number: Fault.STATUS_400 if number >= 40 else Fault.NONE)) as server:
        settings = replace(
            settings,
            server=replace(settings.server, endpoint=server.endpoint),
            user_conf=settings.user_conf.replace(whole, "performance_sample_count_override = 4"),
        )
        with pytest.raises(RunFailed):
            run(settings, tmp_path / "run", keep_answers=True)
    kept = kept_answers(file_of(tmp_path / "run"))
    assert len(kept) == 40
    assert {index: array("i", answer.data).tolist() for index, answer in kept.items()} == {i: SENT[i] for i in kept}

"""The settings of a run with random weights: one length for all answers, and the notice of it."""

import pytest
from msgspec.structs import replace

from cm4vllm import DUMMY_NOTICE, REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.loadgen.measurement import RunInputs, settings_of
from cm4vllm.loadgen.settings import in_flight_of, run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.assets import DUMMY_SOURCE, ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.given_options import given_options
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms


@pytest.mark.parametrize(
    ("round_name", "benchmark", "length"),
    [
        ("v6.1", "llama3.1-8b", 128),  # the limit: the rules publish no mean length
        ("v6.0", "llama2-70b-99", 294),
        ("v6.0", "llama3.1-405b", 685),
    ],
)
def test_random_weights_answer_with_the_mean_length_that_the_rules_publish(dataset, round_name, benchmark, length):
    run_terms = terms(round_name, benchmark, Scenario.OFFLINE, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=1, test_query_count=8, dataset_samples=dataset.samples)
    server = ServerRecord(endpoint="http://a:1", model_name="m", max_model_len=4096, version="0", owned=False)
    model = ModelRecord(name="m", path="", source=DUMMY_SOURCE, sha256="", min_tokens=2)
    settings = run_settings(conf, model=model, dataset=dataset, server=server)
    assert (settings.min_tokens, settings.max_tokens) == (length, length)
    assert settings.notice == f"{DUMMY_NOTICE}; {REHEARSAL_NOTICE}"
    real = run_settings(conf, model=replace(model, source="elsewhere"), dataset=dataset, server=server)
    assert (real.min_tokens, real.max_tokens) == (2, run_terms.generation.max_tokens)
    assert real.notice == REHEARSAL_NOTICE


@pytest.mark.parametrize(
    ("words", "in_flight"),
    [
        ([], 2048),
        (["--max-num-seqs", "64"], 128),
        (["--max_num_seqs=64"], 128),
        (["--max-num-seqs=256", "--max_num_seqs=64"], 128),
        (["--max-num-seqs=0"], 2048),
        (["--max-num-seqs=64", "-dp=4"], 512),
    ],
)
def test_the_client_keeps_two_requests_in_flight_for_each_sequence_of_the_server(words, in_flight):
    assert in_flight_of(given_options(["vllm", "serve", "m", *words])) == in_flight


def test_all_records_that_a_run_lacks_are_named_at_once():
    inputs = RunInputs(scenario="Offline", mode="accuracy", model_record="model.json")
    with pytest.raises(UsageError, match="not given: --dataset_record, --server_record") as error:
        settings_of(inputs)
    assert error.value.remedy.splitlines() == [
        "--dataset_record=..., as get,dataset gives it",
        "--server_record=..., as run,vllm-server gives it",
    ]

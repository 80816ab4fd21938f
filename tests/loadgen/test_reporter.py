"""What LoadGen is told of an answer, by the convention of each benchmark's reference: LoadGen's own logs say it."""

import pytest
from fake_vllm import FakeVllm, expected_tokens, prompt
from msgspec.structs import replace

from cm4vllm.loadgen.logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.loadgen.runner import run
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.rules.benchmarks import BENCHMARKS
from cm4vllm.rules.scenarios import ExecutionMode, Mode, Scenario

SENT = {index: expected_tokens(prompt(index), 128, 2) for index in range(64)}
ALL_BUT_THE_FIRST = {"gpt-oss-120b"}


@pytest.mark.parametrize("scenario", list(Scenario))
@pytest.mark.parametrize("name", [b.name for b in BENCHMARKS.values() if b.limits and "v6.1" in b.rounds])
def test_an_answer_is_told_as_the_reference_tells_it(tmp_path, make_settings, name, scenario):
    benchmark = BENCHMARKS[name]
    conf = user_conf(benchmark, scenario, Mode.ACCURACY, ExecutionMode.TEST, target_qps=100, test_query_count=64,
                     dataset_samples=64)
    with FakeVllm() as server:
        settings = replace(make_settings(server.endpoint, scenario, "accuracy"), benchmark=name,
                           loadgen_name=benchmark.loadgen_name, user_conf=conf.text)
        record = run(settings, tmp_path / "run")
    left_out = 1 if name in ALL_BUT_THE_FIRST and scenario is Scenario.SERVER else 0
    logged = {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(tmp_path / "run" / ACCURACY_LOG)}
    assert logged == {index: tokens[left_out:] for index, tokens in SENT.items()}
    assert record.client.completion_tokens == sum(map(len, SENT.values()))
    assert record.client.reported_tokens == record.client.completion_tokens - 64 * left_out

"""The configuration of the reference client, from the data of each benchmark."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.endpoints.client_config import ClientRun, client_document
from cm4vllm.endpoints.point import require_dataset_file
from cm4vllm.rules import endpoints_benchmark, endpoints_benchmarks, seed_set

RUN = [entry.name for entry in endpoints_benchmarks() if not entry.refused]


def document(name, *, scored=True, key=""):
    benchmark = endpoints_benchmark(name)
    return client_document(
        ClientRun(
            folder="point-1",
            endpoints=("http://127.0.0.1:8000",),
            api=benchmark.api,
            model="served",
            dataset=benchmark.performance,
            parameters=benchmark.parameters,
            scored=benchmark.scored if scored else (),
            samples=benchmark.samples,
            concurrency=8,
            seeds=seed_set("2026-11-C1"),
            max_tokens=benchmark.max_tokens,
            temperature=benchmark.temperature,
            top_p=benchmark.top_p,
            key_variable=key,
        )
    )


@pytest.mark.parametrize("name", RUN)
def test_each_benchmark_that_is_run_has_its_dataset_and_its_scorers(name):
    made = document(name)
    performance, *accuracy = made["datasets"]
    assert performance["type"] == "performance" and performance["name"]
    assert accuracy and all(entry["type"] == "accuracy" for entry in accuracy)
    assert all(entry["accuracy_config"]["eval_method"] for entry in accuracy)
    assert len(document(name, scored=False)["datasets"]) == 1


def test_gpt_oss_is_scored_on_three_datasets_with_the_repeats_of_the_clients_example():
    made = document("gpt-oss-120b")
    repeats = {entry["name"]: entry["accuracy_config"]["num_repeats"] for entry in made["datasets"][1:]}
    assert repeats == {"livecodebench::gptoss": 3, "aime25::gptoss": 8, "gpqa::gptoss": 5}
    assert "ground_truth" not in made["datasets"][1]["accuracy_config"]
    assert made["datasets"][0]["path"] == "perf_eval_ref.parquet"
    assert (made["model_params"]["top_k"], made["model_params"]["skip_special_tokens"]) == (-1, False)


def test_all_paths_are_relative_and_a_key_is_named_by_its_variable():
    for name in RUN:
        made = document(name, key="SERVER_KEY")
        assert not any(str(entry.get("path", "")).startswith("/") for entry in made["datasets"])
        assert made["endpoint_config"]["api_key"] == "${SERVER_KEY}"
        assert "seed" not in made["model_params"]  # that of the set is greater than what vLLM takes


@pytest.mark.parametrize("name", ["gpt-oss-120b", "deepseek-r1"])
def test_a_dataset_that_the_client_cannot_fetch_is_asked_for(name):
    with pytest.raises(UsageError, match=f"the dataset of {name} is needed as a file") as refused:
        require_dataset_file(endpoints_benchmark(name), "")
    assert "--dataset_path=FILE" in str(refused.value)
    require_dataset_file(endpoints_benchmark("llama3_1-8b"), "")

"""A job of MLPerf Endpoints: what its plan refuses."""

import pyarrow
import pytest
from pyarrow import parquet

from cm4vllm.campaign.endpoints.job import plan_job
from cm4vllm.campaign.endpoints.settings import EndpointsSettings
from cm4vllm.common.errors import UsageError
from cm4vllm.rules import endpoints_benchmark, endpoints_benchmarks


def plan(tmp_path, **given):
    stated = tmp_path / "submitter.yaml"
    stated.write_text("node: {driver: none, filesystem: ext4, host_processor_vcpu_count: 4}\n")
    env = {
        "OUTPUT_BASE_DIR": str(tmp_path / "out"),
        "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": str(stated),
        "CM_VLLM_SERVER_MODEL_NAME": "meta-llama/Llama-3.1-8B-Instruct",
        **given,
    }
    return plan_job(EndpointsSettings.of(env))


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "localhost:8000,http://[::1]:8001"])
def test_a_server_of_this_machine_is_measured(tmp_path, address):
    assert plan(tmp_path, CM_MLPERF_INFERENCE_API_SERVER=address)["steps"]


def test_what_the_bundle_needs_of_a_node_of_a_given_server_is_asked_for_by_the_plan(tmp_path):
    given = {"CM_MLPERF_INFERENCE_API_SERVER": "http://127.0.0.1:8000", "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": ""}
    needed = "driver and filesystem and host_processor_core_count or host_processor_vcpu_count"
    with pytest.raises(UsageError, match=f"does not state {needed} of a node"):
        plan(tmp_path, **given)
    stated = tmp_path / "without.yaml"
    stated.write_text("node: {driver: none, filesystem: ext4}\n")
    with pytest.raises(UsageError, match="does not state host_processor_core_count or host_processor_vcpu_count"):
        plan(tmp_path, **{**given, "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": str(stated)})


@pytest.mark.parametrize("address", ["http://gpu-7.lab.example:8000", "http://127.0.0.1:8000,203.0.113.7:8000"])
def test_an_address_that_would_be_published_is_refused_by_the_plan(tmp_path, address):
    with pytest.raises(UsageError, match="is no address of this machine") as raised:
        plan(tmp_path, CM_MLPERF_INFERENCE_API_SERVER=address)
    assert "config.yaml" in raised.value.cause


def test_models_whose_requests_are_an_agents_are_refused_with_the_reason(tmp_path):
    refused = [entry for entry in endpoints_benchmarks() if entry.refused]
    assert {entry.name for entry in refused} == {"kimi-k3", "qwen3_6-35b-a3b", "deepseek-v4_1-flash"}
    for entry in refused:
        with pytest.raises(UsageError, match=f"does not run {entry.name}") as raised:
            plan(tmp_path, CM_MLPERF_ENDPOINTS_MODEL=entry.name)
        assert "conversations of an agent with tools" in raised.value.cause


@pytest.mark.parametrize("model", ["gpt-oss-120b", "deepseek-r1"])
def test_the_other_models_are_planned_with_random_weights_and_a_dataset_file(tmp_path, model):
    given = {
        "CM_MLPERF_ENDPOINTS_MODEL": model,
        "CM_ML_MODEL_SOURCE": f"_dummy.{model}",
        "CM_VLLM_SERVER_MODEL_NAME": "",
    }
    with pytest.raises(UsageError, match=f"the dataset of {model} is needed as a file"):
        plan(tmp_path, **given)
    rows = pyarrow.table({"prompt": ["a"] * endpoints_benchmark(model).samples})
    parquet.write_table(rows, tmp_path / "set.parquet")
    steps = plan(tmp_path, **given, CM_DATASET_FILE=str(tmp_path / "set.parquet"))["steps"]
    assert f"get,ml-model,_dummy.{model}" in [step["tags"] for step in steps]
    assert sum(step["tags"] == "run,mlperf,endpoints,point" for step in steps) == 7
    assert not any(step["tags"].startswith("get,dataset") for step in steps)

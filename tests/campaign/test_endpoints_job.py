"""A job of MLPerf Endpoints: what its plan refuses."""

import pytest

from cm4vllm.campaign.endpoints.job import plan_job
from cm4vllm.common.errors import UsageError


def plan(tmp_path, **given):
    stated = tmp_path / "submitter.yaml"
    stated.write_text("node: {driver: none, filesystem: ext4}\n")
    return plan_job(
        {
            "CM_MLPERF_OUTPUT_DIR": str(tmp_path / "out"),
            "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": str(stated),
            "CM_VLLM_SERVER_MODEL_NAME": "meta-llama/Llama-3.1-8B-Instruct",
            **given,
        }
    )


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "localhost:8000,http://[::1]:8001"])
def test_a_server_of_this_machine_is_measured(tmp_path, address):
    assert plan(tmp_path, CM_MLPERF_INFERENCE_API_SERVER=address)["steps"]


@pytest.mark.parametrize("address", ["http://gpu-7.lab.example:8000", "http://127.0.0.1:8000,203.0.113.7:8000"])
def test_an_address_that_would_be_published_is_refused_by_the_plan(tmp_path, address):
    with pytest.raises(UsageError, match="is no address of this machine") as raised:
        plan(tmp_path, CM_MLPERF_INFERENCE_API_SERVER=address)
    assert "config.yaml" in raised.value.cause

"""The plan of a job of MLPerf Endpoints: what it refuses, on which server, and for which cohort."""

from datetime import UTC, datetime

import pyarrow
import pytest
from msgspec.structs import replace
from pyarrow import parquet

from cm4vllm.campaign.endpoints.job import plan_job
from cm4vllm.campaign.endpoints.settings import EndpointsJob, EndpointsSettings
from cm4vllm.common.errors import InstallError, ServerUnsuitable, UsageError
from cm4vllm.common.files import json_text, write_text
from cm4vllm.rules import RulesInputs, endpoints_rules, plain_rules
from text_server import MODEL, TextServer

pytestmark = pytest.mark.usefixtures("any_day")


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


def test_a_server_of_this_machine_is_measured(tmp_path):
    assert plan(tmp_path, CM_MLPERF_INFERENCE_API_SERVER="localhost:8000,http://[::1]:8001")["steps"]


def test_a_vllm_that_this_machine_cannot_have_is_refused_before_any_step(tmp_path):
    with pytest.raises(InstallError, match=r"no CPU build of vLLM 0\.33\.0"):
        plan(tmp_path, CM_VLLM_WANTED_VERSION="0.33.0", CM_VLLM_VARIANT="cpu")


def test_what_the_bundle_needs_of_a_node_of_a_given_server_is_asked_for_by_the_plan(tmp_path):
    given = {"CM_MLPERF_INFERENCE_API_SERVER": "http://127.0.0.1:8000", "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": ""}
    needed = "driver and filesystem and host_processor_core_count or host_processor_vcpu_count"
    with pytest.raises(UsageError, match=f"does not state {needed} of a node"):
        plan(tmp_path, **given)
    stated = tmp_path / "without.yaml"
    stated.write_text("node: {driver: none, filesystem: ext4}\n")
    with pytest.raises(UsageError, match="does not state host_processor_core_count or host_processor_vcpu_count"):
        plan(tmp_path, **{**given, "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": str(stated)})


def test_an_address_that_would_be_published_is_refused_by_the_plan(tmp_path):
    with pytest.raises(UsageError, match="is no address of this machine") as raised:
        plan(tmp_path, CM_MLPERF_INFERENCE_API_SERVER="http://127.0.0.1:8000,203.0.113.7:8000")
    assert "config.yaml" in raised.value.cause


def test_models_whose_requests_are_an_agents_are_refused_with_the_reason(tmp_path):
    refused = [entry for entry in endpoints_rules().benchmarks if entry.refused]
    assert {entry.name for entry in refused} == {"kimi-k3", "qwen3_6-35b-a3b", "deepseek-v4_1-flash"}
    for entry in refused:
        with pytest.raises(UsageError, match=f"does not run {entry.name}") as raised:
            plan(tmp_path, CM_MLPERF_ENDPOINTS_MODEL=entry.name)
        assert "conversations of an agent with tools" in raised.value.cause


def test_the_other_models_are_planned_with_random_weights_and_a_dataset_file(tmp_path):
    model = "deepseek-r1"
    given = {"CM_MLPERF_ENDPOINTS_MODEL": model, "CM_ML_MODEL_SOURCE": f"_dummy.{model}"}
    given |= {"CM_VLLM_SERVER_MODEL_NAME": ""}
    with pytest.raises(UsageError, match=f"the dataset of {model} is needed as a file"):
        plan(tmp_path, **given)
    rows = pyarrow.table({"prompt": ["a"] * endpoints_rules().benchmark(model).samples})
    parquet.write_table(rows, tmp_path / "set.parquet")
    steps = plan(tmp_path, **given, CM_DATASET_FILE=str(tmp_path / "set.parquet"))["steps"]
    assert f"get,ml-model,_dummy.{model}" in [step["tags"] for step in steps]
    assert sum(step["tags"] == "run,mlperf,endpoints,point" for step in steps) == 7
    assert not any(step["tags"].startswith("get,dataset") for step in steps)


NEWER = """
cohort:
  cohort-id: 2026-12-C1
  seed_sets:
  - {id: B, scheduler_rng_seed: 1, sample_index_rng_seed: 2, model_seed: 3}
"""


def settings(tmp_path, *, valid=False, cohort="", newer=""):
    (tmp_path / "sets.yaml").write_text(newer)
    return EndpointsSettings(
        execution_mode="valid" if valid else "test",
        cohort=cohort,
        output_dir=str(tmp_path / "out"),
        rules=RulesInputs(seed_sets_file=str(tmp_path / "sets.yaml") if newer else ""),
    )


LATER = pytest.mark.parametrize("any_day", ["2026-12-20", "2027-03-01"], indirect=True)


@LATER
def test_a_rehearsal_takes_the_newest_seed_set_and_says_that_its_cohort_is_over(tmp_path, capsys):
    plan_job(settings(tmp_path))
    said = capsys.readouterr().out
    assert "cohort 2026-12-C0 of 2026-12-02, whose checks pass by 2026-12-01; seed set A" in said
    assert "cohort over: not submittable; no published seed set is for the cohort" in said
    assert "COHORT OVER: NOT SUBMITTABLE" in EndpointsJob.of(settings(tmp_path)).notices[1]


@LATER
def test_a_valid_job_needs_a_seed_set_of_its_cohort(tmp_path, any_day):
    with pytest.raises(UsageError, match="cannot be submitted") as refused:
        EndpointsJob.of(settings(tmp_path, valid=True))
    assert "no published seed set is for the cohort" in refused.value.cause
    assert "--seed_sets=FILE" in refused.value.remedy
    newer = NEWER if any_day < "2027-01" else NEWER.replace("2026-12-C1", "2027-03-C0")
    job = EndpointsJob.of(settings(tmp_path, valid=True, newer=newer))
    assert (job.target.seeds.name, job.target.over) == ("B", "")
    assert job.target.cohort == ("2027-01-C0" if any_day == "2026-12-20" else "2027-03-C0")


def test_a_cohort_that_is_over_is_no_target_of_a_valid_job(tmp_path):
    with pytest.raises(UsageError) as refused:
        EndpointsJob.of(settings(tmp_path, valid=True, cohort="2026-11-C0"))
    assert "the cohort 2026-11-C0 is over: checks had to pass by 2026-11-03" in refused.value.cause


def test_a_server_that_does_not_tell_its_longest_request_is_refused_by_the_plan(tmp_path):
    with TextServer(lists_models=True) as server:
        given = {"CM_MLPERF_INFERENCE_API_SERVER": server.endpoint, "CM_VLLM_SERVER_MODEL_NAME": MODEL}
        with pytest.raises(ServerUnsuitable, match="does not report how long a request may be"):
            plan(tmp_path, **given)
        assert plan(tmp_path, **given, CM_VLLM_SERVER_MAX_MODEL_LEN="4096")["steps"]
        assert not server.bodies


def test_rules_start_no_client_that_was_not_named(tmp_path):
    shipped = endpoints_rules()
    later = replace(shipped, client=replace(shipped.client, commits=(*shipped.client.commits, "f" * 40)))
    write_text(tmp_path / "rules.json", json_text(plain_rules(later)))
    asked = EndpointsSettings(rules=RulesInputs(rules_file=str(tmp_path / "rules.json")))
    with pytest.raises(UsageError, match="ask for the reference client at ffffffffffff") as refused:
        EndpointsJob.of(asked)
    assert f"--endpoints_commit={'f' * 40}" in refused.value.remedy
    assert EndpointsJob.of(replace(asked, endpoints_commit="f" * 40)).settings.endpoints_commit == "f" * 40


def test_points_that_are_kept_take_no_time_of_the_cohort(tmp_path, monkeypatch):
    """Less than an hour before the end of the last day, seven points of 600 s cannot end in time, and one can."""
    late = datetime(2026, 12, 1, 23, 15, tzinfo=UTC)
    monkeypatch.setattr("cm4vllm.campaign.endpoints.settings.present", lambda: late)
    asked = settings(tmp_path, valid=True, cohort="2026-12-C0")
    with pytest.raises(UsageError, match="cannot be submitted"):
        EndpointsJob.of(asked)
    for number in range(1, 7):
        write_text(tmp_path / f"out/endpoints/valid/points/point-{number}/point.json", "{}")
    assert EndpointsJob.of(asked).target.cohort == "2026-12-C0"

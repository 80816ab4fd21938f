"""The job settings: checked against the rules before anything else happens."""

from dataclasses import replace
from pathlib import Path

import pytest

from cm4vllm.campaign.job_checks.job_notes import job_notes
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.common.settings import env_keys, parts_of
from cm4vllm.rules import ExecutionMode, Mode, Scenario


def job(**fields):
    made = Job.of(CampaignSettings.of(CampaignSettings(**fields).env()))
    return replace(made, notes=job_notes(made))


def test_the_default_is_a_rehearsal_of_both_scenarios_and_modes():
    default = job()
    assert default.rehearsal
    assert default.scenarios == (Scenario.OFFLINE, Scenario.SERVER)
    assert default.modes == (Mode.ACCURACY, Mode.PERFORMANCE)
    assert default.out == Path.cwd() / "mlperf-results" / "test"
    valid = job(execution_mode="valid")
    assert (valid.execution_mode, valid.out.name) == (ExecutionMode.VALID, "valid"), "rehearsals share no folder"


def test_a_rehearsal_says_before_it_begins_what_is_not_scored():
    fields = {"model": "gpt-oss-120b", "round": "v6.0"}
    assert [note for note in job(**fields).notes if "exact_match: LiveCodeBench's tests are not given" in note]
    assert job(**fields, modes="performance", execution_mode="valid").notes == ()
    assert job(livecodebench_path="tests").notes[0].startswith("--livecodebench_path=tests: ignored")
    assert not any("ignored" in note for note in job(**fields, livecodebench_path="tests").notes)
    with pytest.raises(UsageError, match="cannot be scored as a whole"):
        job(**fields, execution_mode="valid")


def test_what_a_rehearsal_cannot_have_is_said_once():
    (note,) = job().notes
    assert note == (
        "a rehearsal has runs of about 10 s or 256 samples, fewer where it would take more than 15 minutes; a result "
        "needs 600 s and all 13,368 samples"
    )
    assert job(execution_mode="valid").notes == ()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"test_query_count": 458}, "Server"),
        ({"test_query_count": 459}, ""),
        ({"test_query_count": 458, "modes": "accuracy"}, ""),
        ({"test_query_count": 24, "scenario": "Offline"}, ""),
        ({"test_query_count": 24, "scenario": "Server,Interactive"}, "Server, Interactive"),
    ],
)
def test_queries_too_few_for_the_early_stopping_test_are_named_before_the_run(fields, named):
    size, *few = job(**fields).notes
    assert f"runs of {fields['test_query_count']} queries" in size
    assert [note.partition(" INVALID")[0].partition("calls ")[2] for note in few] == ([named] if named else [])
    assert all("459 queries or more" in note for note in few)


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"division": "opn"}, "open"),
        ({"category": "datacentre"}, "datacenter"),
        ({"device": "cpuu"}, "cpu"),
        ({"round": "v6.2"}, "v6.1"),
    ],
)
def test_a_word_nobody_defined_names_the_nearest(fields, remedy):
    with pytest.raises(UsageError) as error:
        job(**fields)
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    "fields", [{"offline_target_qps": 0.0}, {"max_test_duration": 0.0}, {"submitter": "../up"}, {"num_workers": 0}]
)
def test_unusable_values_are_refused(fields):
    """test_plan_of_main_job.py has more."""
    with pytest.raises(UsageError):
        job(**fields)


@pytest.mark.parametrize(
    ("given", "variations"),
    [("int8", "_scheme.int8"), ("_int8,_kv-fp8", "_scheme.int8,_kv-fp8"), ("kv-fp8", "_kv-fp8")],
)
def test_quantisation_is_asked_for_by_scheme(given, variations):
    assert job(quantize=given).quantisation == variations


def test_the_published_v41_command_is_understood():
    env = {
        "CM_MLPERF_MODEL": "llama2-70b-99",
        "CM_MLPERF_ROUND": "v4.1",
        "CM_MLPERF_IMPLEMENTATION": "reference",
        "CM_MLPERF_LOADGEN_SCENARIO": "Server",
        "CM_MLPERF_LOADGEN_ALL_SCENARIOS": "yes",
        "CM_RERUN": "yes",
        "CM_MLPERF_INFERENCE_NUM_WORKERS": "12",
        "CM_MLPERF_LOADGEN_SERVER_TARGET_QPS": "9.2",
    }
    same = Job.of(CampaignSettings.of(env))
    assert (same.round.name, same.benchmark.name, same.settings.num_workers) == ("v4.1", "llama2-70b-99", 12)
    assert same.scenarios == (Scenario.OFFLINE, Scenario.SERVER)
    assert [note.split(":")[0].split("=")[0] for note in job_notes(same)] == [
        "--implementation",
        "_all-scenarios overrides --scenario",
        "a rehearsal has runs of about 10 s or 256 samples, fewer where it would take more than 15 minutes; a result "
        "needs 600 s and all 24,576 samples",
    ]


def test_every_field_has_an_environment_key_or_is_a_part_with_keys():
    assert {*env_keys(CampaignSettings), *parts_of(CampaignSettings)} == set(CampaignSettings.__struct_fields__)


@pytest.mark.parametrize("device", ["", "cuda"])
def test_every_device_that_vllm_is_built_for_can_be_asked_for(device):
    assert job(device=device).settings.device == device
    with_server = job(device=device, api_server="http://127.0.0.1:1")
    assert any(note.startswith("--device=") for note in with_server.notes) is bool(device)


def test_the_category_is_the_benchmarks_unless_it_is_given():
    assert job().category == "datacenter"
    edge = job(model="llama3.1-8b-edge")
    assert edge.category == "edge"
    assert edge.scenarios == (Scenario.OFFLINE, Scenario.SINGLE_STREAM)
    assert job(model="llama3.1-8b-edge", category="edge").category == "edge"
    for model, category in (("llama3.1-8b-edge", "datacenter"), ("llama3.1-8b", "edge")):
        with pytest.raises(UsageError, match=f"the category does not fit the model {model}") as refused:
            job(model=model, category=category)
        assert f"--category={category}:" in refused.value.cause


def test_a_scenario_of_other_benchmarks_is_refused():
    with pytest.raises(UsageError, match="has no scenario SingleStream") as refused:
        job(scenario="SingleStream")
    assert refused.value.remedy == "run one of Offline, Server, Interactive"


def test_random_weights_are_measured_for_their_performance_alone():
    dummy = job(model_source="_dummy", model="llama2-70b-99.9")
    assert dummy.modes == (Mode.PERFORMANCE,)
    assert dummy.sources.model == "_dummy.llama2-70b-99.9"
    assert any(note.startswith("DUMMY WEIGHTS") for note in dummy.notes)


@pytest.mark.parametrize(
    "fields", [{"execution_mode": "valid"}, {"modes": "accuracy"}, {"compliance": "TEST06"}, {"quantize": "int8"}]
)
def test_what_needs_real_weights_is_refused_with_random_ones(fields):
    with pytest.raises(UsageError, match="cannot be given with random weights") as caught:
        job(model_source="_dummy", **fields)
    assert caught.value.cause and "--vllm_model_name" in caught.value.remedy


@pytest.mark.parametrize("fields", [{"model_source": "_smollm2"}, {"vllm_model_name": "a/b", "dataset": "articles"}])
def test_a_result_is_never_of_the_articles(fields):
    assert job(**fields).sources.has_articles
    with pytest.raises(UsageError, match="valid cannot be given with the articles") as refused:
        job(**fields, execution_mode="valid")
    assert "13,368 samples" in refused.value.cause and "--dataset=benchmark" in refused.value.remedy
    assert not job(**fields | {"dataset": "benchmark"}, execution_mode="valid").sources.has_articles


def test_articles_are_no_dataset_of_a_benchmark_of_another_kind():
    with pytest.raises(DatasetError, match="cannot stand for the dataset of llama2-70b-99.9"):
        job(model_source="_smollm2", model="llama2-70b-99.9")


def test_a_division_with_lengths_of_its_own_names_both_sources_and_what_decides():
    fields = {"model": "llama3.1-405b", "round": "v6.0"}
    (note,) = (note for note in job(**fields, division="closed", modes="performance").notes if "new tokens" in note)
    assert "2 to 20,000 new tokens, by the policy" in note and "decides in the closed division" in note
    assert note.endswith("SUT_VLLM.py gen_kwargs has 1 to 2,000")
    assert not any("new tokens" in note for note in job(**fields).notes)

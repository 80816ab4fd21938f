"""The schedule is data: what a step needs of others is named, and others came before it."""

import itertools
import re

import msgspec
import pytest

from cm4vllm.accuracy.graders.catalogue import grader_lacks
from cm4vllm.campaign.job_checks.job_notes import job_notes
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.steps import MeasuredTarget
from cm4vllm.campaign.settings import CampaignSettings, Job

#: The earlier steps that export the keys to which inputs refer.
EXPORTED_BY = {
    "CM_SUT_NAME": {"system"},
    "CM_ML_MODEL_NAME": {"model", "quantisation"},
    "CM_PERFORMANCE_DATASET_RECORD": {"performance dataset"},
    "CM_COMPLIANCE_DATASET_RECORD": {"TEST07 dataset"},
    "CM_MLPERF_GRADER_MATH": {"grader math"},
    "CM_MLPERF_GRADER_MBXP": {"grader mbxp"},
}
FIELDS = {
    "scenario": ["", "Offline", "Server"],
    "modes": ["accuracy,performance", "accuracy", "performance"],
    "execution_mode": ["test", "valid"],
    "offline_target_qps": [None, 9.0],
    "server_target_qps": [None, 3.0],
    "rerun": ["no", "yes"],
    "api_server": ["", "http://127.0.0.1:1"],
    "run_checker": [True, False],
}


def jobs():
    for values in itertools.product(*FIELDS.values()):
        yield Job.of(CampaignSettings(**dict(zip(FIELDS, values, strict=True))))
    yield Job.of(CampaignSettings(vllm_model_name="owner/name", quantize="int8"))
    yield Job.of(CampaignSettings(model="gpt-oss-120b", compliance="TEST07,TEST09"))
    yield Job.of(CampaignSettings(model="mixtral-8x7b", round="v6.0"))
    yield Job.of(CampaignSettings(model="deepseek-r1"))
    yield Job.of(CampaignSettings(model="gpt-oss-120b", modes="performance", execution_mode="valid"))


def test_what_a_step_needs_comes_of_steps_before_it():
    for job in jobs():
        before = set()
        for step in schedule(job):
            assert step.name not in before, step.name
            for value in step.inputs.given.values():
                if isinstance(value, MeasuredTarget):
                    assert value.step in before, (step.name, value)
                else:
                    assert all(EXPORTED_BY[key] & before for key in re.findall(r"<<<(\w+)>>>", str(value))), step.name
            if step.condition is not None:
                assert all(subject in before or "<<<" in subject for subject in step.condition.of), step.name
            before.add(step.name)


def test_performance_runs_have_a_dataset_and_a_rate_of_their_own_where_the_rules_give_them_one():
    job = Job.of(CampaignSettings(model="gpt-oss-120b", test_query_count=40, max_test_duration=5))
    steps = {step.name: step for step in schedule(job)}
    for name in ("Offline rate", "Offline performance", "Server performance"):
        assert steps[name].inputs.mode == "performance"
    assert steps["Offline performance"].inputs.target_qps.step == "Offline rate"
    assert steps["Offline rate"].inputs.test_query_count == 40
    assert steps["performance dataset"].tags == "get,dataset,_performance,_tiny"
    alone = schedule(Job.of(CampaignSettings(model="gpt-oss-120b", modes="performance")))
    assert "dataset" not in {step.name for step in alone}


def test_sentences_are_split_only_for_scores_that_need_them():
    def names(model, modes="accuracy,performance"):
        fields = {"model": model, "modes": modes, "vllm_model_name": "owner/name", "round": "v6.0"}
        return {step.name for step in schedule(Job.of(CampaignSettings(**fields)))}

    assert "sentence model" in names("mixtral-8x7b")
    assert "sentence model" not in names("deepseek-r1") | names("mixtral-8x7b", "performance")


def test_a_schedule_is_plain_data():
    for job in jobs():
        steps = schedule(job)
        written = msgspec.json.decode(msgspec.json.encode(steps))
        assert [step["name"] for step in written] == [step.name for step in steps]


@pytest.mark.parametrize(
    ("fields", "runs"),
    [
        ({}, ["Offline accuracy", "Offline performance", "Server performance", "Server accuracy"]),
        (
            {"execution_mode": "valid", "find_target_qps": False},
            [
                "Offline accuracy",
                "Offline performance",
                "Offline performance again",
                "Server performance",
                "Server accuracy",
            ],
        ),
        (
            {"execution_mode": "valid", "offline_target_qps": 9.0},
            [
                "Offline accuracy",
                "Offline performance",
                "Server performance",
                "Server performance again",
                "Server performance again (2)",
                "Server accuracy",
            ],
        ),
        (
            {"execution_mode": "valid", "offline_target_qps": 9.0, "server_target_qps": 3.0},
            ["Offline accuracy", "Offline performance", "Server performance", "Server accuracy"],
        ),
        (
            {"model": "llama3.1-8b-edge"},
            [
                "Offline accuracy",
                "Offline performance",
                "SingleStream latency",
                "SingleStream performance",
                "SingleStream accuracy",
            ],
        ),
        (
            {"model": "llama3.1-8b-edge", "scenario": "SingleStream", "execution_mode": "valid"},
            [
                "SingleStream latency",
                "SingleStream performance",
                "SingleStream performance again",
                "SingleStream accuracy",
            ],
        ),
        (
            {"model": "llama3.1-8b-edge", "scenario": "SingleStream", "singlestream_target_latency": 250.0},
            ["SingleStream performance", "SingleStream accuracy"],
        ),
        ({"model": "llama3.1-8b-edge", "scenario": "SingleStream", "modes": "accuracy"}, ["SingleStream accuracy"]),
        ({"modes": "performance"}, ["Offline rate", "Offline performance", "Server performance"]),
        ({"modes": "performance", "scenario": "Server", "server_target_qps": 3.0}, ["Server performance"]),
        ({"scenario": "Server"}, ["Offline rate", "Server performance", "Server accuracy"]),
        ({"modes": "accuracy"}, ["Offline accuracy", "Server accuracy"]),
    ],
)
def test_the_loadgen_runs(fields, runs):
    steps = schedule(Job.of(CampaignSettings(**fields)))
    assert [step.name for step in steps if step.tags.startswith("app,")] == runs


def test_a_single_stream_run_aims_at_the_latency_measured_before_it_or_given():
    fields = {"model": "llama3.1-8b-edge", "scenario": "SingleStream"}
    steps = {step.name: step for step in schedule(Job.of(CampaignSettings(**fields, execution_mode="valid")))}
    measured, run = steps["SingleStream latency"], steps["SingleStream performance"]
    assert (measured.inputs.target_qps, measured.inputs.test_query_count) == (None, 64)
    assert measured.condition.words.startswith("runs/SYSTEM/MODEL/SingleStream/performance holds no valid result")
    assert run.inputs.target_qps.words == (
        "1.33 x the mean latency of SingleStream latency, or that of a valid result of an earlier run in "
        "runs/SYSTEM/MODEL/SingleStream/performance"
    )
    assert run.inputs.target_qps.subject == "expected latency"
    again = steps["SingleStream performance again"]
    assert again.inputs.target_qps.step == "SingleStream performance"
    assert steps["SingleStream accuracy"].inputs.target_qps is None
    given = {step.name: step for step in schedule(Job.of(CampaignSettings(**fields, singlestream_target_latency=250)))}
    run = given["SingleStream performance"]
    assert (run.inputs.target_qps, run.inputs.target_qps_source) == (4.0, "given by --singlestream_target_latency")


def test_the_server_serves_what_the_steps_before_it_provide():
    """A name of the catalogue or of the hub is no model of the server's: the quantised folder would not be served."""
    job = Job.of(CampaignSettings(vllm_model_name="llama-3.1-8b-instruct", quantize="int8"))
    (server,) = [step for step in schedule(job) if step.name == "server"]
    assert server.inputs.model_name == ""
    names = [step.name for step in schedule(job)]
    assert names.index("quantisation") < names.index("server")
    given = Job.of(CampaignSettings(vllm_model_name="served", api_server="http://127.0.0.1:1"))
    (server,) = [step for step in schedule(given) if step.name == "server"]
    assert server.inputs.model_name is None


def test_a_compliance_test_is_run_and_verified_in_each_scenario():
    steps = {step.name: step for step in schedule(Job.of(CampaignSettings(compliance="TEST06")))}
    names = list(steps)
    for scenario in ("Offline", "Server"):
        run, verification = steps[f"{scenario} TEST06"], steps[f"{scenario} TEST06: verification"]
        performance = steps[f"{scenario} performance"]
        assert names.index(performance.name) < names.index(run.name) < names.index(verification.name)
        assert names.index(verification.name) < names.index("submission")
        assert run.inputs.compliance_test == "TEST06"
        assert run.inputs.target_qps == performance.inputs.target_qps
        assert run.inputs.output_dir == verification.inputs.test_dir
        assert verification.tags == "process,mlperf,compliance"
    assert not [name for step in schedule(Job.of(CampaignSettings())) if "TEST06" in (name := step.name)]


@pytest.mark.parametrize(
    ("fields", "searched"),
    [
        ({}, False),
        ({"find_target_qps": True}, True),
        ({"execution_mode": "valid"}, True),
        ({"execution_mode": "valid", "find_target_qps": False}, False),
        ({"execution_mode": "valid", "find_target_qps": True}, True),
        ({"execution_mode": "valid", "server_target_qps": 3.0}, False),
        ({"execution_mode": "valid", "modes": "accuracy"}, False),
        ({"execution_mode": "valid", "scenario": "Offline"}, False),
        ({"find_target_qps": True, "scenario": "Server", "modes": "performance"}, True),
    ],
)
def test_the_rate_is_searched_for_where_that_is_asked_and_in_a_valid_run_where_none_is_given(fields, searched):
    steps = {step.name: step for step in schedule(Job.of(CampaignSettings(**fields)))}
    assert ("Server search" in steps) is searched
    assert "Offline search" not in steps
    if searched:
        names = list(steps)
        assert names.index("Server search") < names.index("Server performance")
        target = steps["Server performance"].inputs.target_qps
        assert (target.step, target.searched) == ("Server search", True)
        assert "the rate found by Server search" in target.words
        valid = fields.get("execution_mode") == "valid"
        assert steps["Server search"].duration.words.startswith("1,500 s, 2.5 full-length" if valid else "75 s, about")
        assert steps["Server performance"].duration.seconds == (0 if valid else 10)


def test_a_full_length_run_that_misses_a_limit_is_made_again_at_lower_rates():
    settings = CampaignSettings(execution_mode="valid", find_target_qps=True)
    steps = {step.name: step for step in schedule(Job.of(settings))}
    for times, name in ((1, "Server performance again"), (2, "Server performance again (2)")):
        assert steps[name].inputs.target_qps.lowered == times
        assert steps[name].condition.words == "Server performance missed a latency limit"


def test_a_compliance_test_with_a_dataset_of_its_own_gets_that():
    job = Job.of(CampaignSettings(model="gpt-oss-120b", compliance="TEST07,TEST09", scenario="Offline"))
    steps = {step.name: step for step in schedule(job)}
    assert steps["TEST07 dataset"].tags == "get,dataset,_compliance.TEST07,_tiny"


def test_answers_that_a_grader_judges_are_scored_with_its_record_where_it_can_run():
    job = Job.of(CampaignSettings(model="mixtral-8x7b", round="v6.0", scenario="Offline"))
    steps = {step.name: step for step in schedule(job)}
    wanted = "" if grader_lacks("mbxp") else "<<<CM_MLPERF_GRADER_MBXP>>>"
    assert steps["Offline accuracy: scores"].inputs.graders == wanted
    assert ("grader mbxp" in steps) is bool(wanted)
    assert any("not scored: mbxp" in note for note in job_notes(job)) is not bool(wanted)

"""Plans for another machine: judged by that machine, with hours by the nearest published results."""

import pytest
from msgspec.structs import replace

from cm4vllm.campaign.entry import checked_job, plan_job, run_job
from cm4vllm.campaign.planning.expected_times import _on_named_machine
from cm4vllm.campaign.planning.published_times import expected_rates
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.published.published_results import published_run, published_runs, published_settings
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import InstallError, ModelError, ServerUnreachable, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.records.machine import GpuFacts
from cm4vllm.rules import Mode, Scenario
from cm4vllm.serving.installation.builds import WantedBuild
from cm4vllm.serving.launch_settings import LaunchSettings

H100 = "v4.1-neuralmagic-llama2-70b-fp8-4xh100"
VALID = {"execution_mode": "valid", "submitter": "Someone"}
#: Seconds from the first to the last line of mlperf_log_detail.txt of the accuracy and of the performance run, of
#: mlcommons/inference_results_v5.1 at 965182b0. The logs of v5.0 and v6.1 could not be had.
LOGGED = {
    ("v5.1-redhat-llama3.1-8b-fp8-1xh100-offline", Scenario.OFFLINE): (295, 889),
    ("v5.1-redhat-llama3.1-8b-fp8-1xh100-server", Scenario.SERVER): (337, 676),
    ("v5.1-redhat-llama3.1-8b-fp8-1xl40s-offline", Scenario.OFFLINE): (1048, 1042),
    ("v5.1-redhat-llama3.1-8b-fp8-1xl40s-server", Scenario.SERVER): (1429, 1429),
}
#: The published runs of which nothing else with such weights on such accelerators is published with vLLM.
NOT_KNOWN = {name for name in published_runs() if name.startswith("v4.1-neuralmagic")}


def job_of_published(name):
    """Return the job of a published run on its machine, whose rates are not given."""
    settings = published_settings(CampaignSettings(published=name, machine=name, **VALID))
    return checked_job(replace(settings, offline_target_qps=None, server_target_qps=None))


@pytest.mark.parametrize("name", published_runs())
def test_the_hours_of_a_published_run_are_foreseen_from_the_others_within_a_factor_of_2(name):
    job = job_of_published(name)
    rates = expected_rates(job, without=[name])
    assert bool(rates) == (name not in NOT_KNOWN)
    steps, notes = _on_named_machine(job, schedule(job), rates)
    if not rates:
        assert "no published result with vLLM has this model, with weights of this data type" in notes[-1]
        return
    expected = {step.name: step.expected.seconds for step in steps if step.expected is not None}
    for result in published_run(name).results:
        assert 1 / 2 < rates[result.scenario].value / result.samples_per_second < 2
        logged = LOGGED.get((name, result.scenario))
        for mode, seconds in zip((Mode.ACCURACY, Mode.PERFORMANCE), logged or (), strict=False):
            if (
                f"{result.scenario} {mode}" in expected
            ):  # a performance run that a search has made has no time of its own
                assert 1 / 2 < expected[f"{result.scenario} {mode}"] / seconds < 2


def test_most_published_runs_are_foreseen():
    known = [name for name in published_runs() if expected_rates(job_of_published(name), without=[name])]
    assert len(known) == 8


def plan_of(capsys, **fields):
    said = plan_job(CampaignSettings(**fields))
    return said, capsys.readouterr().out + capsys.readouterr().err


def test_the_plan_of_a_published_run_is_that_of_its_machine(capsys):
    said, text = plan_of(capsys, published=H100, machine="4xH100-SXM-80GB", **VALID)
    first = next(line for line in text.splitlines() if "note" not in line)
    assert "a plan for another machine: 4 x NVIDIA H100-SXM-80GB with 80 GiB each" in first
    assert "this machine:" not in text and "at hand" not in text
    assert said["elsewhere"] and said["env"]["CM_MLPERF_DEVICE"] == "cuda"
    # 24,576 queries at the given 5 a second, twice; the nearest is the run itself, at 4.99 a second.
    assert said["takes"].startswith("hours: at least 2.7; expected 2.7")
    (run,) = [step for step in said["steps"] if step["name"] == "Server performance"]
    assert any("24,576 queries at the given 5 a second" in note for note in run["notes"])
    assert any("24,576 queries by the 4.99 samples/s of NeuralMagic" in note for note in run["notes"])


def test_a_published_run_that_does_not_fit_here_names_its_own_machine():
    with pytest.raises(UsageError, match="4 workers need 4 cores") as caught:
        plan_job(CampaignSettings(published=H100))
    assert f"--published={H100} --plan --machine=4xH100-SXM-80GB" in caught.value.remedy


def test_hours_that_nothing_was_published_for_are_not_known(capsys):
    said, text = plan_of(
        capsys, vllm_model_name="llama-3.1-8b-instruct", machine="4xA10", **VALID, **{"scenario": "Offline"}
    )
    assert "expected: not known for Offline accuracy, Offline performance" in said["takes"]
    assert "HF_TOKEN in the environment" in text, "at hand there"


def test_an_old_driver_of_the_machine_is_refused_with_the_release_for_it(tmp_path, capsys):
    gpu = GpuFacts(
        name="NVIDIA L40S",
        uuid="GPU-1",
        memory_bytes=45 * 2**30,
        max_sm_mhz=None,
        pcie_generation=4,
        pcie_width=16,
        driver="570.26",
    )
    path = tmp_path / "machine.json"
    write_record(path, replace(detect_machine(), gpus=[gpu]))
    asked = {"vllm_model_name": "llama-3.1-8b-instruct", "machine": str(path)}
    with pytest.raises(InstallError, match=r"driver 570\.26 is too old for vLLM 0\.32\.0") as caught:
        plan_job(CampaignSettings(**asked))
    assert "--vllm_version=0.19.1, the newest release for this driver" in caught.value.remedy
    older = LaunchSettings(build=WantedBuild(version="0.19.1"))
    _, text = plan_of(capsys, **asked, vllm_version="0.19.1", servers=older)
    assert "vLLM 0.19.1, CUDA build: CUDA 12.8, NVIDIA driver 525.60.13 or newer; resolved, never served here" in text


def test_what_does_not_fit_the_named_machine_is_refused_with_the_arithmetic():
    with pytest.raises(ModelError, match="does not fit 1 x 24.0 GiB"):
        plan_job(CampaignSettings(model="llama2-70b-99.9", vllm_model_name="llama-2-70b-chat", machine="1xRTX4090"))
    with pytest.raises(UsageError, match="8 workers need 8 GPUs, and 4 x NVIDIA L40S has 4"):
        settings = CampaignSettings(vllm_model_name="llama-3.1-8b-instruct", machine="4xL40S")
        server = replace(settings.servers.server, tp_size=8)
        plan_job(replace(settings, servers=replace(settings.servers, server=server)))


def test_a_size_that_is_given_is_not_made_larger_to_fit():
    """One worker is asked for: more stages of a pipeline are no answer."""
    settings = CampaignSettings(model="llama2-70b-99.9", vllm_model_name="llama-2-70b-chat", machine="4xH100-SXM-80GB")
    plan_job(settings)
    for asked in ({"tp_size": 1}, {"extra": "--tensor-parallel-size=1"}):
        with pytest.raises(ModelError, match="does not fit 4 x 80.0 GiB"):
            plan_job(
                replace(settings, servers=replace(settings.servers, server=replace(settings.servers.server, **asked)))
            )


def test_what_does_not_fit_here_is_refused_before_anything_is_downloaded():
    with pytest.raises(ModelError, match="llama-2-70b-chat does not fit this machine's memory"):
        plan_job(CampaignSettings(model="llama2-70b-99.9", vllm_model_name="meta-llama/Llama-2-70b-chat-hf"))


def test_a_server_that_does_not_answer_is_refused_by_the_plan():
    with pytest.raises(ServerUnreachable, match="nothing answers at http://127.0.0.1:9"):
        plan_job(CampaignSettings(api_server="http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"gpu_memory_gib": 80.0}, "--gpu_memory=80 is given without --machine"),
        ({"machine": "8xH200", "rehearse": "2-core-cpu-tiny"}, "--machine cannot be given with --rehearse"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(fields, says):
    with pytest.raises(UsageError, match=says):
        plan_job(CampaignSettings(**fields))


def test_a_job_does_not_run_for_another_machine():
    with pytest.raises(UsageError, match="--machine=8xH200 is for a plan"):
        run_job(CampaignSettings(machine="8xH200"), lambda tags, env: {}, "")

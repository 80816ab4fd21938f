"""Published results: their settings are understood, their figures are those of the logs, the user's go first."""

import pytest

from cm4vllm.campaign.published.published_results import (
    LAYOUTS_DIFFER,
    SEQUENCES_DIFFER,
    fit_lines,
    published_notes,
    published_run,
    published_runs,
    published_settings,
)
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import UsageError
from cm4vllm.common.settings import env_keys
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import Scenario
from cm4vllm.serving.options.arguments import ServerSettings

H100 = "v4.1-neuralmagic-llama2-70b-fp8-4xh100"
RATE = "CM_MLPERF_LOADGEN_SERVER_TARGET_QPS"


@pytest.mark.parametrize("name", published_runs())
def test_its_settings_make_a_job_of_its_round_and_scenarios(name):
    run = published_run(name)
    assert set(run.settings) <= {*env_keys(CampaignSettings), *env_keys(ServerSettings), "replicas"}
    job = Job.of(published_settings(CampaignSettings(published=name)))
    assert (job.round.name, job.benchmark.name) == (run.round, run.settings["model"])
    assert {result.scenario for result in run.results} <= set(job.scenarios)
    assert job.settings.launch.server.workers in (1, run.accelerators)
    for result in run.results:
        assert (result.ttft_p99_ms is None) == (result.scenario is Scenario.OFFLINE)


def test_what_the_user_gives_goes_first():
    asked = published_settings(
        CampaignSettings.of({"CM_MLPERF_PUBLISHED": H100, "CM_VLLM_SERVER_TP_SIZE": "2", RATE: "7.0"})
    )
    assert (asked.round, asked.model, asked.launch.server.max_num_seqs) == ("v4.1", "llama2-70b-99", 1024)
    assert (asked.launch.server.tp_size, asked.server_target_qps) == (2, 7.0)


def test_a_server_that_runs_keeps_its_options():
    asked = published_settings(CampaignSettings(published=H100, api_server="http://a:1"))
    assert (asked.vllm_model_name, asked.server_target_qps) == ("nm-testing/Llama-2-70b-chat-hf-FP8", 5)
    launch = asked.launch
    assert (launch.server.tp_size, launch.server.max_num_seqs, launch.image.choice.version) == (None, None, "")


def test_a_release_is_taken_where_it_can_be_measured(monkeypatch):
    asked = CampaignSettings(published=H100)
    assert published_settings(asked).launch.image.choice.version == ""
    (note,) = [note for note in published_notes(asked) if "vLLM 0.5.2 does not return" in note]
    assert "--vllm_version=0.10.2" in note
    monkeypatch.setattr("cm4vllm.campaign.published.published_results.OLDEST_RELEASE", (0, 5, 0))
    assert published_settings(asked).launch.image.choice.version == "0.5.2"
    assert not any("does not return" in note for note in published_notes(asked))


def test_without_one_nothing_is_set():
    assert published_settings(CampaignSettings()) == CampaignSettings()
    assert published_notes(CampaignSettings()) == ()
    with pytest.raises(UsageError, match="--published=h100 is not known"):
        published_settings(CampaignSettings(published="h100"))


@pytest.mark.parametrize("name", [name for name in published_runs() if name.startswith("v4.1-neuralmagic")])
def test_its_figures_are_those_of_the_published_logs(name, neural_magic):
    run = published_run(name)
    (submission,) = read_tree(neural_magic)
    served = str(run.settings["vllm_model_name"])
    folder = run.settings["model"] if "70" in served else served.replace("/", "_")
    for published in run.results:
        place = (run.system, folder, published.scenario)
        (result,) = [each for each in submission.results if (each.system, each.model, each.scenario) == place]
        latencies = {latency.name: float(latency.p99) for latency in result.performance.latencies}
        assert (result.performance.tokens_per_second, result.performance.samples_per_second) == (
            published.tokens_per_second,
            published.samples_per_second,
        )
        assert (latencies.get("TTFT"), latencies.get("TPOT")) == (published.ttft_p99_ms, published.tpot_p99_ms)
        scores = [result.accuracy.figures.value(f"rouge{name}") for name in ("1", "2", "L")]
        assert scores == [published.rouge1, published.rouge2, published.rougeL]
        if published.scenario is not Scenario.OFFLINE:
            assert result.performance.target_qps == run.settings["server_target_qps"]


def test_the_plan_shows_the_advisors_layout_beside_the_published_one_and_why_they_differ():
    notes = published_notes(CampaignSettings(published=H100))
    advised = next(note for note in notes if note.startswith("fit advisor"))
    assert "4 x 80 GiB" in advised and "tensor 2 x data 2, 133 sequences each" in advised
    own = next(note for note in notes if note.startswith("published: tensor 4, at most 1,024 sequences"))
    assert "371 requests of full length, or 1,024 requests of 743 tokens" in own
    assert {LAYOUTS_DIFFER, SEQUENCES_DIFFER} <= set(notes)


def test_a_layout_that_the_advisor_gives_too_has_nothing_to_explain():
    settings = {
        "vllm_model_name": "nm-testing/Llama-2-70b-chat-hf-FP8",
        "tp_size": 2,
        "max_model_len": 2048,
        "gpu_memory_utilization": 0.95,
        "max_num_seqs": 133,
    }
    lines = list(fit_lines(settings, "NVIDIA H100-SXM-80GB", 4))
    assert len(lines) == 2 and "tensor 2 x data 2, at most 133 sequences" in lines[1]
    assert list(fit_lines({**settings, "max_num_seqs": 1024}, "NVIDIA H100-SXM-80GB", 4))[2:] == [SEQUENCES_DIFFER]
    assert list(fit_lines({**settings, "tp_size": 4}, "NVIDIA H100-SXM-80GB", 4))[2:] == [
        LAYOUTS_DIFFER,
        SEQUENCES_DIFFER,
    ]


def test_what_the_advisor_cannot_say_is_named():
    settings = {"vllm_model_name": "nm-testing/Llama-2-70b-chat-hf-FP8"}
    (unknown,) = fit_lines(settings, "Unheard Of", 4)
    assert "the memory of Unheard Of is not in the table" in unknown
    (unknown,) = fit_lines({"vllm_model_name": "a/b"}, "NVIDIA L40S", 1)
    assert "a/b is not in the catalogue" in unknown
    assert list(fit_lines(settings, "NVIDIA L40S", 4))[1] == "the layout of the published run is not known"
    assert list(fit_lines(settings, "2 x Intel Xeon", 0)) == []


def test_a_release_that_is_not_stated_is_not_asked_for():
    name = "v6.1-intel-llama3.1-8b-int8-2xxeon6980p-offline"
    asked = published_settings(CampaignSettings(published=name))
    assert (asked.launch.image.choice.version, asked.device) == ("", "cpu")
    assert "vLLM of a release that is not stated" in published_notes(asked)[0]


def test_random_weights_take_the_place_of_a_published_model():
    name = "v6.1-intel-llama3.1-8b-int8-2xxeon6980p-offline"
    job = Job.of(published_settings(CampaignSettings(published=name, model_source="_dummy")))
    assert (job.settings.vllm_model_name, job.settings.quantize) == ("", "")
    assert job.sources.model == "_dummy.llama3.1-8b"

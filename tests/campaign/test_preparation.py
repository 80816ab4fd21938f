"""All that a job needs is got beforehand, by the steps of its own schedule that need no server and no GPU."""

import pytest

from cm4vllm.campaign.preparation import prepare_job
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import SourceUnavailable, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.serving.installation.install import VllmRecord

LINE = "cm run script --tags=run-mlperf,inference,_vllm --prepare --device=cuda"


class Recipes:
    """Recipes that only note by which tags they were asked, with the device of vLLM that they got."""

    def __init__(self, exports=None, failing=""):
        self.exports, self.failing, self.tags, self.variants = exports or {}, failing, [], set()

    def __call__(self, tags, env):
        self.tags.append(tags)
        self.variants.add(env.get("CM_VLLM_VARIANT", ""))
        if self.failing and tags.startswith(self.failing):
            raise SourceUnavailable("no network", cause="none")
        return self.exports.get(tags, {})


def test_the_steps_that_fetch_are_taken_and_no_server_is_started(tmp_path, capsys):
    recipes = Recipes()
    prepare_job(CampaignSettings(output_dir=str(tmp_path / "out")), recipes, LINE)
    assert recipes.tags == [
        "get,vllm",
        "get,mlperf,inference,src",
        "get,mlperf,inference,loadgen,_r6.1",
        "get,ml-model,_tiny",
        "get,dataset,_tiny",
    ]
    text = capsys.readouterr().out
    assert "left for the machine that serves: give the command without --prepare: cm run script" in text
    assert "--prepare --" not in text and not (tmp_path / "out").exists(), "results are made by the run alone"


def test_a_gpu_that_is_elsewhere_is_prepared_for_and_what_is_left_is_said(tmp_path, capsys):
    record = tmp_path / "entry" / "vllm.json"
    record.parent.mkdir()
    (tmp_path / "entry" / "big").write_bytes(b"1" * 5_000_000)
    write_record(
        record,
        VllmRecord(python="/p", device="cuda", packages={}, source="", driver="580.65.06", kernels="kernels missing"),
    )
    recipes = Recipes({"get,vllm": {"CM_VLLM_INSTALLATION": str(record)}})
    job = CampaignSettings(
        model="llama2-70b-99.9", vllm_model_name="llama-2-70b-chat-fp8", device="cuda", output_dir=str(tmp_path / "out")
    )
    prepare_job(job, recipes, LINE)
    text = capsys.readouterr().out
    assert recipes.variants == {"cuda"}
    assert "get,ml-model,_catalogue.llama-2-70b-chat-fp8" in recipes.tags
    assert "get,nltk-data" in recipes.tags
    assert "vLLM: 5.0 MB on disk" in text
    assert "the first server proves vLLM, with a driver from 580.65.06 on; kernels missing" in text


def test_what_cannot_be_had_is_named_where_a_rehearsal_goes_on_without_it(tmp_path, capsys):
    prepare_job(CampaignSettings(output_dir=str(tmp_path)), Recipes(failing="get,mlperf,inference,src"), LINE)
    assert "not to be had: checker source" in capsys.readouterr().out
    valid = CampaignSettings(execution_mode="valid", submitter="Someone", output_dir=str(tmp_path))
    with pytest.raises(SourceUnavailable):
        prepare_job(valid, Recipes(failing="get,mlperf,inference,src"), LINE)


def test_what_the_run_would_refuse_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--submitter"):
        prepare_job(CampaignSettings(submitter="a b"), Recipes(), LINE)


def test_the_environment_of_a_quantised_job_is_prepared_and_not_the_weights(tmp_path, capsys):
    recipes = Recipes()
    job = CampaignSettings(vllm_model_name="llama-3.1-8b-instruct", quantize="fp8-dynamic", device="cuda")
    prepare_job(job, recipes, LINE)
    assert "get,llm-compressor" in recipes.tags
    assert not [tags for tags in recipes.tags if tags.startswith("quantize")]
    assert "the model is quantised" in capsys.readouterr().out

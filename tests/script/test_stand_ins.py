"""From the command line: no stand-in replaces what was asked for, and --plan approves nothing that the run refuses."""

import pytest

from cm4vllm.common.errors import DatasetError, ModelError, UsageError


@pytest.mark.parametrize(("flags", "tags", "wanted"), [
    (["--vllm_model_name=owner/name"], "", ["get,ml-model,_hf.owner/name", "get,dataset,_mlcommons"]),
    (["--vllm_model_name=llama-3.1-8b-instruct"], "", ["get,ml-model,_catalogue.llama-3.1-8b-instruct", "cnn_eval.json",
                                                       "HF_TOKEN", "https://huggingface.co/meta-llama/"]),
    (["--quantize=_int8"], ",_hf.owner/name", ["get,dataset,_calibration,_mlcommons", "cnn_dailymail_calibration.json",
                                                "get,dataset,_mlcommons"]),
    (["--api_server=http://127.0.0.1:1", "--vllm_model_name=owner/name"], "", ["get,dataset,_mlcommons"]),
])
def test_the_plan_of_a_model_of_ones_own_names_no_stand_in(cm, flags, tags, wanted):
    done = cm.main_job("--plan", *flags, tags=tags)
    assert done.code == 0, done.output
    for word in wanted:
        assert word in done.output
    assert "_tiny" not in done.output
    assert "the tiny model" not in done.output


@pytest.mark.parametrize(("flags", "tags", "error", "word"), [
    (["--model=llama9"], "", UsageError, "llama9"),
    (["--division=closed"], "", UsageError, "closed division"),
    ([], ",_r4.1", UsageError, "v4.1"),
    (["--vllm_model_name=/nowhere/model"], "", UsageError, "/nowhere/model"),
    ([], ",_path./nowhere/model", ModelError, "/nowhere/model"),
    (["--dataset_path=gone.json"], "", DatasetError, "gone.json"),
    (["--quantize=_int8,_fp8"], "", UsageError, "_int8,_fp8"),
    (["--preset=fastest"], "", UsageError, "fastest"),
])
def test_the_plan_refuses_what_the_run_refuses(cm, flags, tags, error, word):
    planned, done = cm.main_job("--plan", *flags, tags=tags), cm.main_job(*flags, tags=tags)
    planned.refused_with(error.exit_code, word)
    done.refused_with(error.exit_code, word)
    assert message_of(planned) == message_of(done)
    assert not (cm.cwd / "mlperf-results").exists()


def message_of(done):
    return done.output[done.output.index("CM error:"):].strip()

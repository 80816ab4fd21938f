"""whisper: its plan from the command line, and what the plan refuses before anything is fetched."""

import json

import pytest
from tests.script.main_job import asked, planned, refused
from tests.script.speech import SAMPLES, entry, job, write_clip

from cm4vllm.assets.tiny import tone_speech
from cm4vllm.common.errors import DatasetError, DownloadError, UsageError

WHISPER = {"model": "whisper", "submitter": "Tester"}


def tags_of(nodes):
    return [tags for node in nodes for tags in (node.tags, *tags_of(node.children))]


def test_schemes_that_need_a_calibration_set_are_refused_by_the_plan(tmp_path):
    for scheme in ("fp8", "gptq-w4a16", "kv-fp8,fp8-dynamic"):
        refused(
            UsageError,
            ["none is published for whisper", "fp8-dynamic or int8"],
            tmp_path,
            "_vllm",
            **WHISPER,
            quantize=scheme,
        )
    tags = tags_of(planned(tmp_path, asked(tmp_path, "_vllm", {**WHISPER, "quantize": "int8"}, tmp_path)))
    assert any(each.startswith("quantize,ml-model") for each in tags), tags
    assert not any("get,dataset,_calibration" in each for each in tags), tags


def test_the_plan_refuses_another_machines_times_and_random_weights(tmp_path):
    refused(UsageError, ["not for --model=whisper"], tmp_path, "_vllm", **WHISPER, rehearse="4xh100-llama2-70b-fp8")
    refused(UsageError, ["random weights cannot stand for the model of whisper"], tmp_path, "_vllm,_dummy", **WHISPER)


def test_the_plan_of_whispers_own_model_names_its_dataset_and_no_stand_in(cm):
    done = job(cm, "--plan", "--vllm_model_name=whisper-large-v3")
    assert done.code == 0, done.output
    for word in ("get,ml-model,_catalogue.whisper-large-v3", "get,speech-packages", "dev-all-repack.json"):
        assert word in done.output
    assert "_tiny" not in done.output


@pytest.mark.parametrize(
    "extra", ["--mm-processor-cache-gb 4", "--mm_processor_cache_gb=4", "--mm-proc=4", "--enable-prefix-caching"]
)
def test_no_extra_argument_lets_a_server_keep_clips(tmp_path, extra):
    words = ["cannot be given in --extra_args", "answers may not be reused between queries"]
    refused(UsageError, words, tmp_path, "_vllm", **WHISPER, extra_args=extra)


#: What is wrong with one clip of a dataset, as seconds, Hz and channels; None for one that is missing.
WRONG = {
    "30 s at most": (31, tone_speech.RATE_HZ, 1),
    "2 channels of 16 bits at 48000 Hz": (1, 48_000, 2),
    "no such file": None,
}


@pytest.mark.parametrize("cause", WRONG)
def test_the_plan_refuses_a_clip_that_the_reference_does_not_have(tmp_path, cause):
    (tmp_path / "clips").mkdir()
    write_clip(tmp_path / "clips/right.wav", bytes(3200))
    if WRONG[cause] is not None:
        seconds, rate, channels = WRONG[cause]
        write_clip(tmp_path / "clips/wrong.wav", bytes(seconds * rate * channels * 2), rate, channels)
    names = ["clips/right.wav"] * (SAMPLES - 1) + ["clips/wrong.wav"]
    path = tmp_path / "dev-all-repack.json"
    path.write_text(json.dumps([entry(name, "salt") for name in names]))
    words = [cause, "wrong.wav", "speech2text/download_dataset.sh"]
    refused(DatasetError, words, tmp_path, "_vllm,_tiny", **WHISPER, dataset_path=str(path))


def test_the_plan_refuses_a_part_of_the_dataset_and_in_the_closed_division_another_checksum(tmp_path):
    write_clip(tmp_path / "right.wav", bytes(3200))
    path = tmp_path / "dev-all-repack.json"
    path.write_text(json.dumps([entry("right.wav", "salt")] * 2))
    words = ["has 2 samples", "the benchmark's dataset has 1633"]
    valid = {"execution_mode": "valid", "dataset_path": str(path)}
    refused(DatasetError, words, tmp_path, "_vllm,_tiny", **WHISPER, **valid)
    path.write_text(json.dumps([entry("right.wav", "salt")] * SAMPLES))
    words = ["dev-all-repack.json has md5:", "is published with md5:898743fc5b2522db2bc39e9ceb4a4da6"]
    flags = {"division": "closed", "execution_mode": "valid", "vllm_model_name": "whisper-large-v3"}
    refused(UsageError, words, tmp_path, "_vllm", **WHISPER, dataset_path=str(path), **flags)


def test_storage_of_mlcommons_that_cannot_be_reached_is_named_with_what_to_give_instead(cm, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    done = cm("run", "script", "--tags=get,dataset,_mlcommons", "--model=whisper", "--quiet")
    done.refused_with(
        DownloadError.exit_code,
        "whisper-dataset.uri cannot be read",
        "md5:898743fc5b2522db2bc39e9ceb4a4da6",
        "--dataset_path",
    )
    done = cm("run", "script", "--tags=get,ml-model,_mlcommons.whisper-large-v3", "--quiet")
    done.refused_with(DownloadError.exit_code, "whisper-model.uri cannot be read", "_path")

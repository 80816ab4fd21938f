"""whisper from the command line: the refusals of the plan, before anything is fetched."""

import json

import pytest
from tests.script.speech import SAMPLES, entry, job, write_clip

from cm4vllm.assets import tone_speech
from cm4vllm.common.errors import DatasetError, DownloadError, UsageError


def test_schemes_that_need_a_calibration_set_are_refused_by_the_plan(cm):
    for scheme in ("fp8", "gptq-w4a16", "kv-fp8,fp8-dynamic"):
        done = job(cm, "--plan", f"--quantize={scheme}")
        done.refused_with(UsageError.exit_code, "none is published for whisper", "fp8-dynamic or int8")
    done = job(cm, "--plan", "--quantize=int8")
    assert done.code == 0, done.output
    assert "get,dataset,_calibration" not in done.output


def test_the_plan_refuses_another_machines_times_and_random_weights(cm):
    job(cm, "--plan", "--rehearse=4xh100-llama2-70b-fp8", tags=",_vllm").refused_with(
        UsageError.exit_code, "not for --model=whisper"
    )
    job(cm, "--plan", tags=",_vllm,_dummy").refused_with(
        UsageError.exit_code, "random weights cannot stand for the model of whisper"
    )


def test_the_plan_of_whispers_own_model_names_its_dataset_and_no_stand_in(cm):
    done = job(cm, "--plan", "--vllm_model_name=whisper-large-v3")
    assert done.code == 0, done.output
    for word in ("get,ml-model,_catalogue.whisper-large-v3", "get,speech-packages", "dev-all-repack.json"):
        assert word in done.output
    assert "_tiny" not in done.output


@pytest.mark.parametrize(
    "extra", ["--mm-processor-cache-gb 4", "--mm_processor_cache_gb=4", "--mm-proc=4", "--enable-prefix-caching"]
)
def test_no_extra_argument_lets_a_server_keep_clips(cm, extra):
    job(cm, "--plan", f"--extra_args={extra}").refused_with(
        UsageError.exit_code, "cannot be given in --extra_args", "answers may not be reused between queries"
    )


#: What is wrong with one clip of a dataset, as seconds, Hz and channels; None for one that is missing.
WRONG = {
    "30 s at most": (31, tone_speech.RATE_HZ, 1),
    "2 channels of 16 bits at 48000 Hz": (1, 48_000, 2),
    "no such file": None,
}


@pytest.mark.parametrize("cause", WRONG)
def test_the_plan_refuses_a_clip_that_the_reference_does_not_have(cm, cause):
    (cm.cwd / "clips").mkdir()
    write_clip(cm.cwd / "clips/right.wav", bytes(3200))
    if WRONG[cause] is not None:
        seconds, rate, channels = WRONG[cause]
        write_clip(cm.cwd / "clips/wrong.wav", bytes(seconds * rate * channels * 2), rate, channels)
    names = ["clips/right.wav"] * (SAMPLES - 1) + ["clips/wrong.wav"]
    path = cm.cwd / "dev-all-repack.json"
    path.write_text(json.dumps([entry(name, "salt") for name in names]))
    done = job(cm, "--plan", f"--dataset_path={path}", tags=",_vllm,_tiny")
    done.refused_with(DatasetError.exit_code, cause, "wrong.wav", "speech2text/download_dataset.sh")


def test_the_plan_refuses_a_part_of_the_dataset_and_in_the_closed_division_another_checksum(cm):
    write_clip(cm.cwd / "right.wav", bytes(3200))
    path = cm.cwd / "dev-all-repack.json"
    path.write_text(json.dumps([entry("right.wav", "salt")] * 2))
    job(cm, "--plan", f"--dataset_path={path}", tags=",_vllm,_tiny").refused_with(
        DatasetError.exit_code, "has 2 samples", "the benchmark's dataset has 1633"
    )
    path.write_text(json.dumps([entry("right.wav", "salt")] * SAMPLES))
    flags = ("--division=closed", "--execution_mode=valid", "--vllm_model_name=whisper-large-v3")
    job(cm, "--plan", f"--dataset_path={path}", *flags).refused_with(
        UsageError.exit_code, "dev-all-repack.json has md5:", "is published with md5:898743fc5b2522db2bc39e9ceb4a4da6"
    )


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

"""whisper from the command line: the whole job on the tiny whisper and the real vLLM, and what a plan refuses."""

import json
import wave
from pathlib import Path

import pytest

from cm4vllm.assets import tone_speech
from cm4vllm.assets.tiny_dataset import EVALUATION_SEED
from cm4vllm.common.errors import DatasetError, UsageError

#: vLLM's installation and the model's training included, where nothing of it is there yet.
FIRST_START_S = 1200
SAMPLES = 1633


def manifest(folder, *, silent, seconds=tone_speech.CLIP_S, count=SAMPLES):
    """Write a manifest as the reference's, with the texts of the stand-in's dataset, and return its path."""
    (folder / "dev-all-repack").mkdir(parents=True)
    entries = []
    for number, text in enumerate(tone_speech.sentences(count, EVALUATION_SEED, evaluation=True)):
        name = f"dev-all-repack/{number}.wav"
        sound = bytes(seconds * tone_speech.RATE_HZ * 2) if silent else tone_speech.clip(text).tobytes()
        with wave.open(str(folder / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(tone_speech.RATE_HZ)
            file.writeframes(sound)
        entries.append({"transcript": text, "files": [{"fname": name, "speed": 1}], "original_duration": seconds})
    path = folder / "dev-all-repack.json"
    path.write_text(json.dumps(entries))
    return path


def job(cm, *flags, tags=""):
    return cm.main_job("--model=whisper", "--submitter=Tester", *flags, tags=tags, timeout_s=FIRST_START_S)


def accuracy(folder):
    scores = json.loads(next(Path(folder).glob("test/runs/*/*/Offline/accuracy/accuracy.json")).read_text())
    return scores["values"]["accuracy"]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("vllm-2")
def test_the_whole_job_and_the_same_with_silence_in_place_of_the_clips(cm):
    done = job(cm, "--compliance=TEST01", "--output_dir=results")
    assert done.code == 0, done.output
    out = cm.cwd / "results"
    assert accuracy(out) > 98
    run = json.loads(next(out.glob("test/runs/*/*/Offline/performance/run.json")).read_text())
    words = run["settings"]["server"]["argv"]
    assert words[words.index("--mm-processor-cache-gb") + 1] == "0"
    assert run["server_metrics"]["media_cache_hits"] == 0
    tree = next(out.glob("test/submission/open/Tester/compliance/*/*/Offline/TEST01"), None) or next(
        out.glob("test/submission/open/Tester/results/*/*/Offline/TEST01")
    )
    for name in ("verify_accuracy.txt", "verify_performance.txt"):
        assert "TEST PASS" in (tree / name).read_text()
    path = manifest(cm.cwd / "silent", silent=True)
    silent = job(cm, f"--dataset_path={path}", "--output_dir=silence", tags=",_tiny,_accuracy-only")
    assert silent.code == 0, silent.output
    assert accuracy(cm.cwd / "silence") < 50


def test_the_plan_refuses_clips_that_are_too_long_and_a_simulated_server(cm):
    path = manifest(cm.cwd / "long", silent=True, seconds=31, count=2)
    job(cm, "--plan", f"--dataset_path={path}", tags=",_tiny").refused_with(
        DatasetError.exit_code, "has 2 samples", "the benchmark's dataset has 1633"
    )
    job(cm, "--plan", "--rehearse=4xh100-llama2-70b-fp8").refused_with(UsageError.exit_code, "not for --model=whisper")
    job(cm, "--plan", tags=",_dummy").refused_with(
        UsageError.exit_code, "random weights cannot stand for the model of whisper"
    )


def test_the_plan_of_whispers_own_model_names_its_dataset_and_no_stand_in(cm):
    done = job(cm, "--plan", "--vllm_model_name=whisper-large-v3")
    assert done.code == 0, done.output
    for word in ("get,ml-model,_catalogue.whisper-large-v3", "get,speech-packages", "dev-all-repack.json"):
        assert word in done.output
    assert "_tiny" not in done.output

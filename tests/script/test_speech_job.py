"""whisper from the command line: whole jobs on the tiny whisper and the real vLLM, and the refusals of the probe."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.script.by_hand import real_vllm, server_by_hand
from tests.script.main_job import asked, planned, refused
from tests.script.speech import FIRST_START_S, SAMPLES, entry, job, manifest, sound_of, write_clip

from cm4vllm.accuracy.word_errors import word_error_rate
from cm4vllm.assets.tiny import tone_speech
from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED
from cm4vllm.common.errors import DatasetError, DownloadError, ServerDied, ServerUnsuitable, UsageError
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_label_log
from cm4vllm.records.server import Api
from cm4vllm.rules import Mode, Scenario, terms
from cm4vllm.serving.probing.media_apis import FORM, transcription_form
from cm4vllm.serving.probing.server_requests import Site, ask
from cm4vllm.submission.checker.official_checker import codes_of

#: Transcripts that are compared with those of transformers.
COMPARED = 256


#: What the official checkers say of a run that is shorter than the rules ask, by the codes of our checks, and the words
#: in which they sum up.
SHORT = {"LOG-MIN-DURATION", "PERFORMANCE-SAMPLES", "ACCURACY-SAMPLES"}
SUMS = ("checks Checks failed for", "has issues", "NoResults", "SUMMARY")


def accuracy(folder):
    scores = json.loads(next(Path(folder).glob("test/runs/*/*/Offline/accuracy/accuracy.json")).read_text())
    return scores["values"]["accuracy"]


def run_of(folder, mode):
    return json.loads(next(Path(folder).glob(f"test/runs/*/*/Offline/{mode}/run.json")).read_text())


@pytest.fixture(scope="module")
def packages(start_cm):
    """The folder of the packages for speech."""
    done = start_cm()("run", "script", "--tags=get,speech-packages,_server", "--quiet", "-j", timeout_s=FIRST_START_S)
    assert done.code == 0, done.output
    return Path(json.loads(done.output[done.output.index("{") :])["new_env"]["CM_SPEECH_PACKAGES"])


@pytest.fixture
def reference_score(official_file, packages, tmp_path):
    """Return what speech2text/accuracy_eval.py prints of a log, with the package that its authors use."""
    for name in ("accuracy_eval.py", "helpers.py", "legacy_helpers.py", "manifest.py"):
        (tmp_path / name).write_text(official_file("b66003e1", f"speech2text/{name}"))
    (tmp_path / "whisper.py").write_text(f"__path__ = [{str(packages / 'whisper')!r}]\n")  # without PyTorch

    def score(log, references):
        flags = [f"--log_dir={log}", f"--dataset_dir={references.parent}", f"--manifest={references}"]
        done = subprocess.run(
            [sys.executable, "accuracy_eval.py", *flags],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return score


@real_vllm
@pytest.mark.parametrize(("round_name", "category"), [("5.1", "datacenter"), ("6.0", "edge"), ("6.1", "datacenter")])
def test_the_whole_job_of_each_round(cm, inference_git, reference_score, tmp_path, round_name, category):
    flags = ("--compliance=TEST01", f"--category={category}", f"--inference_src={inference_git}")
    done = job(cm, *flags, "--output_dir=results", tags=f",_vllm,_r{round_name}")
    assert done.code == 0, done.output
    out = cm.cwd / "results"
    assert accuracy(out) > 98
    words = run_of(out, "performance")["settings"]["server"]["argv"]
    assert words[words.index("--mm-processor-cache-gb") + 1] == "0"
    assert run_of(out, "performance")["server_metrics"]["media_cache_hits"] == 0
    home = out / "test/submission/open/Tester"
    assert "TEST PASS" in next(home.rglob("TEST01/verify_accuracy.txt")).read_text()
    # The speeds of runs of seconds differ on a busy machine.
    same_speed = "TEST PASS" in next(home.rglob("TEST01/verify_performance.txt")).read_text()
    assert same_speed or "too short to compare their speeds" in done.output
    checkers = json.loads((out / "test/checker.json").read_text())
    assert checkers["runs"] and not any(run["crashed"] for run in checkers["runs"])
    errors = [error for run in checkers["runs"] for error in run["errors"] if not any(sum_ in error for sum_ in SUMS)]
    assert [error for error in errors if not set(codes_of(error)) & SHORT] == []
    texts = tone_speech.sentences(SAMPLES, EVALUATION_SEED, evaluation=True)
    references = tmp_path / "references.json"
    references.write_text(json.dumps([entry("none.wav", text) for text in texts]))
    folder = next((out / "test").glob("runs/*/*/Offline/accuracy"))
    assert reference_score(folder, references) == (folder / "accuracy.txt").read_text()


@real_vllm
def test_with_silence_in_place_of_the_clips_the_score_falls_and_a_changed_clip_is_refused(cm):
    path = manifest(cm.cwd / "silent", silent=True)
    done = job(cm, f"--dataset_path={path}", "--output_dir=silence", tags=",_vllm,_tiny,_accuracy-only")
    assert done.code == 0, done.output
    assert accuracy(cm.cwd / "silence") < 50
    write_clip(path.parent / "dev-all-repack/7.wav", b"\1\0" * tone_speech.CLIP_S * tone_speech.RATE_HZ)
    changed = job(cm, f"--dataset_path={path}", "--output_dir=changed", tags=",_vllm,_tiny,_accuracy-only")
    changed.refused_with(DatasetError.exit_code, "7.wav has changed", "its SHA-256 differs", "--renew")
    assert "starting vLLM" not in changed.output


@pytest.fixture(scope="module")
def by_hand(start_cm):
    """A whisper that run,vllm-server has started, as its record."""
    with server_by_hand(start_cm(), "whisper", FIRST_START_S) as record:
        yield record


@real_vllm
def test_a_server_that_runs_is_measured_with_exact_counts(cm, by_hand):
    done = job(cm, f"--api_server={by_hand.endpoint}", "--output_dir=results", "--run_checker=no")
    assert done.code == 0, done.output
    out = cm.cwd / "results"
    assert accuracy(out) > 98
    record, folder = run_of(out, "accuracy"), next((out / "test").glob("runs/*/*/Offline/accuracy"))
    labels = terms("v6.1", "whisper", Scenario.OFFLINE, Mode.ACCURACY).labels
    logged = [count for _, _, count in read_label_log(folder / ACCURACY_LOG, labels)]
    text, ended = record["client"]["text"], record["client"]["finish_reasons"]["stop"]
    assert not record["settings"]["server"]["owned"]
    # The server counts the end token, which is in no text.
    assert sum(logged) == text["server_tokens"] == record["client"]["reported_tokens"]
    assert text["server_tokens"] == text["tokenizer_tokens"] + ended
    assert (text["answers"], text["apart"]) == (len(logged), 0)


TRANSFORMERS = """
import json, sys, wave
import numpy as np, torch
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

torch.set_num_threads(1)
folder, paths = sys.argv[1], json.load(sys.stdin)
model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
extractor = WhisperFeatureExtractor.from_pretrained(folder)
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
start = [tokenizer.token_to_id(f"<|{word}|>") for word in ("startoftranscript", "en", "transcribe", "notimestamps")]
end = tokenizer.token_to_id("<|endoftext|>")
sound = [np.frombuffer(wave.open(path).readframes(10**9), np.int16).astype(np.float32) / 32768 for path in paths]
features = extractor(sound, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features
with torch.no_grad():
    heard = model.model.encoder(features)
    ids = torch.tensor([start] * len(paths))
    for _ in range(200):
        following = model(encoder_outputs=heard, decoder_input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)
        following[(ids == end).any(1)] = end
        ids = torch.cat([ids, following], 1)
        if (ids == end).any(1).all():
            break
answers = [row[len(start) : row.index(end)] if end in row else row[len(start) :] for row in ids.tolist()]
print(json.dumps([[tokenizer.decode(answer), len(answer)] for answer in answers]))
"""


def transcript(site, model, path):
    """The text that a server gives of a clip, and the tokens that it counts."""
    form = transcription_form(model, path.read_bytes(), {"temperature": "0", "max_completion_tokens": "200"})
    _, answer = ask(site, "POST", Api.TRANSCRIPTIONS.path, form, 120, content_type=FORM)
    lines = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    return text, next(event["usage"]["completion_tokens"] for event in reversed(events) if event.get("usage"))


@real_vllm
def test_transcripts_are_those_of_transformers_and_silence_gives_none(by_hand, vllm_python, tmp_path):
    texts = tone_speech.sentences(COMPARED, EVALUATION_SEED, evaluation=True)
    paths = [tmp_path / f"{number}.wav" for number in range(COMPARED)]
    for path, text in zip(paths, texts, strict=True):
        write_clip(path, sound_of(text))
    write_clip(tmp_path / "silence.wav", tone_speech.silence().tobytes())
    model = by_hand.argv[by_hand.argv.index("serve") + 1]
    done = subprocess.run(
        [vllm_python, "-c", TRANSFORMERS, model],
        input=json.dumps(list(map(str, paths))),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(done.stdout)
    site = Site(by_hand.endpoint)
    with ThreadPoolExecutor(16) as pool:
        given = list(pool.map(lambda path: transcript(site, by_hand.model_name, path), paths))
        silent = list(pool.map(lambda _: transcript(site, by_hand.model_name, tmp_path / "silence.wav")[0], paths))
    assert [text.strip() for text, _ in given] == [text.strip() for text, _ in expected]
    assert [count for _, count in given] == [count + 1 for _, count in expected]  # and the end token
    assert word_error_rate([text for text, _ in given], texts) < 0.02
    assert word_error_rate(silent, texts) > 0.5


@real_vllm
@pytest.mark.parametrize("scheme", ["int8", "fp8-dynamic"])
def test_a_quantised_model_is_served_and_scored(cm, scheme):
    flags = (f"--quantize={scheme}", "--output_dir=results", "--run_checker=no")
    done = job(cm, *flags, tags=",_vllm,_accuracy-only")
    if scheme == "int8" and "amx_int8" in detect_cpu().flags:  # vLLM's kernel for AMX does not take batches of matrices
        assert done.code == ServerDied.exit_code and "--quantize=fp8-dynamic" in done.output, done.output
        return
    assert done.code == 0, done.output
    assert accuracy(cm.cwd / "results") > 95
    model = run_of(cm.cwd / "results", "accuracy")["settings"]["model"]
    assert model["quantization"]["scheme"] == scheme
    assert "proj_out" in model["quantization"]["ignored"]


def test_a_machine_that_serves_whisper_is_rehearsed(cm):
    short = ("--test_query_count=16", "--max_test_duration=3")
    done = cm.main_job("--rehearse=2xl40s-whisper", "--output_dir=results", *short, timeout_s=300)
    assert done.code == 0, done.output
    record = run_of(cm.cwd / "results", "performance")
    assert record["settings"]["benchmark" if "benchmark" in record["settings"] else "terms"]
    assert record["settings"]["server"]["simulated"]["profile"] == "2xl40s-whisper"
    assert record["client"]["text"]["apart"] == 0
    assert "SIMULATED" in done.output


class _TextOnly(BaseHTTPRequestHandler):
    """A server of OpenAI's format that lists a model and takes no audio."""

    def do_GET(self):
        body = json.dumps({"data": [{"id": "m", "max_model_len": 448, "owned_by": "somebody"}]}).encode()
        self._answer(200 if self.path == "/v1/models" else 404, body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(404, b'{"detail":"Not Found"}')

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_server_without_audio_ends_the_job_before_anything_else(cm):
    with ThreadingHTTPServer(("127.0.0.1", 0), _TextOnly) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        done = job(cm, f"--api_server={endpoint}", "--vllm_model_name=m", "--output_dir=results", tags=",_vllm,_tiny")
        server.shutdown()
    words = ("gives no transcripts of audio", "answers HTTP 404", "get,speech-packages")
    done.refused_with(ServerUnsuitable.exit_code, *words)
    assert not list(cm.cwd.glob("results/test/runs/*"))


# --- whisper: its plan from the command line, and what the plan refuses before anything is fetched


WHISPER = {"model": "whisper", "submitter": "Tester"}


def tags_of(nodes):
    return [tags for node in nodes for tags in (node.tags, *tags_of(node.children))]


def test_schemes_that_need_a_calibration_set_are_refused_by_the_plan(tmp_path):
    words = ["none is published for whisper", "fp8-dynamic or int8"]
    for scheme in ("fp8", "kv-fp8,fp8-dynamic"):
        refused(UsageError, words, tmp_path, "_vllm", **WHISPER, quantize=scheme)
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


@pytest.mark.parametrize("extra", ["--mm_processor_cache_gb=4", "--mm-proc=4", "--enable-prefix-caching"])
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
    words = ("whisper-dataset.uri cannot be read", "md5:898743fc5b2522db2bc39e9ceb4a4da6", "--dataset_path")
    done.refused_with(DownloadError.exit_code, *words)
    done = cm("run", "script", "--tags=get,ml-model,_mlcommons.whisper-large-v3", "--quiet")
    done.refused_with(DownloadError.exit_code, "whisper-model.uri cannot be read", "_path")

"""Runs whose samples are clips: what is sent, counted and logged, and which servers and files are refused."""

import base64
import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest
from media_server import MediaServer
from msgspec.structs import replace
from tokenizers import Tokenizer, models, pre_tokenizers

from cm4vllm.assets.samples.audio_dataset import audio_rows, write_clips
from cm4vllm.assets.samples.picture_dataset import write_products
from cm4vllm.assets.tiny import tone_speech
from cm4vllm.assets.tiny.stand_ins import MODELS
from cm4vllm.common.errors import DatasetError, RunFailed, ServerUnsuitable, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_label_log, read_performance, read_text_log
from cm4vllm.records.metrics import ServerMetrics
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.rules import ExecutionMode, Mode, Scenario, chat_prompts, terms
from cm4vllm.serving.probing.media_apis import PICTURE_CHATS, TRANSCRIPTS, check_pictures, check_transcription
from cm4vllm.serving.probing.server_requests import Site

SAMPLES = 24
TEXTS = [text.capitalize() for text in tone_speech.sentences(SAMPLES, 1, evaluation=True)]


class Peer(MediaServer):
    """A server of transcripts: it knows clips by their bytes, and counts a token for each word and one for the end."""

    def __init__(self, known, *, status=200, usage=True, counted=0, most=1 << 30):
        self.known, self.status, self.usage, self.counted, self.most = known, status, usage, counted, most
        self.forms = []

    def answer(self, body):
        self.forms.append(dict(re.findall(rb'name="(\w+)"\r\n\r\n(.*?)\r\n--', body, re.DOTALL)))
        clip = body.split(b"audio/wav\r\n\r\n", 1)[1].rsplit(b"\r\n--", 1)[0]
        words = self.known.get(clip, "").split()
        events = [{"choices": [{"delta": {"content": f" {word}"}}]} for word in words]
        events.append({"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]})
        if self.usage:
            count = len(words) + 1 + self.counted
            events.append({"choices": [], "usage": {"prompt_tokens": 304, "completion_tokens": count}})
        return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"

    def answered(self, path, headers, body):
        form = headers["Content-Type"].startswith("multipart/form-data; boundary=")
        if not form or path != "/v1/audio/transcriptions" or self.status != 200 or len(self.forms) >= self.most:
            return 404, b'{"detail":"Not Found"}'
        return 200, self.answer(body)


def dataset_record(path, longest):
    facts = {"source": "made by the test", "samples": SAMPLES, "media_folder": str(path.parent)}
    return DatasetRecord(name=path.stem, path=str(path), sha256=sha256_of(path), max_input_tokens=longest, **facts)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """The record of a dataset of clips, and the transcript of each clip."""
    folder = tmp_path_factory.mktemp("clips")
    rows = write_clips(folder, TEXTS, lambda text: tone_speech.clip(text.lower()).tobytes())
    path = folder / "clips.json"
    path.write_text(json.dumps(rows))
    return dataset_record(path, 4), {(folder / row["audio"]).read_bytes(): row["output"] for row in rows}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    words = {word: number for number, word in enumerate([*tone_speech.WORDS, *map(str.capitalize, tone_speech.WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="salt"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelRecord(name="words", path=str(folder), source="made by the test", sha256="")


def rehearsal(run_terms, endpoint, rate, asked, **given):
    """Return the settings of a run of a second at `rate`; `asked` is how the server is asked."""
    count = {"test_query_count": SAMPLES, "dataset_samples": SAMPLES}
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=rate, max_test_duration_s=1, **count)
    server = ServerRecord(endpoint=endpoint, model_name="tiny", version="0", owned=False, **asked)
    own = {"target_qps": rate, "target_qps_source": "the test's", "self_check": False}
    return run_settings(conf, server=server, **{**own, **given})


@pytest.fixture
def settings(clips, model):
    """Make the settings of a run of whisper against an endpoint."""

    def make(endpoint, mode="accuracy", *, api=Api.TRANSCRIPTIONS, dataset=clips[0], benchmark="whisper", **options):
        run_terms = terms("v6.1", benchmark, Scenario.OFFLINE, Mode(mode))
        asked = {"api": api, "dialect": TRANSCRIPTS if api is Api.TRANSCRIPTIONS else None, "max_model_len": 448}
        return rehearsal(run_terms, endpoint, 20, asked, model=model, dataset=dataset, **options)

    return make


def test_clips_are_asked_for_and_their_labels_logged_as_the_reference_does(settings, clips, tmp_path):
    with Peer(clips[1]) as peer:
        made = settings(peer.endpoint)
        record = run(made, tmp_path / "run")
    logged = {
        index: (text, count)
        for index, text, count in read_label_log(tmp_path / "run" / ACCURACY_LOG, made.terms.labels)
    }
    assert logged == {index: (text.lower(), len(text.split()) + 1) for index, text in enumerate(TEXTS)}
    entry = json.loads((tmp_path / "run" / ACCURACY_LOG).read_text())[0]
    first = np.frombuffer(bytes.fromhex(entry["data"]), np.int64)
    assert first[0] == made.terms.labels.index(TEXTS[entry["qsl_idx"]][0].lower())
    assert record.client.completion_tokens == sum(len(text.split()) + 1 for text in TEXTS)
    assert record.client.finish_reasons.stop == SAMPLES
    asked = {b"language": b"en", b"temperature": b"0", b"max_completion_tokens": b"200"}
    assert all(form | asked | {b"stream_include_usage": b"true"} == form for form in peer.forms)


def test_an_accuracy_run_that_was_stopped_asks_for_the_remaining_transcripts(settings, clips, tmp_path):
    folder = tmp_path / "run"
    with Peer(clips[1], most=10) as peer:
        made = settings(peer.endpoint, max_in_flight=1)
        with pytest.raises(RunFailed):
            run(made, folder, keep_answers=True)
        peer.most = SAMPLES
        record = run(made, folder, keep_answers=True)
    assert len(peer.forms) == SAMPLES
    logged = {index: text for index, text, _ in read_label_log(folder / ACCURACY_LOG, made.terms.labels)}
    assert logged == {index: text.lower() for index, text in enumerate(TEXTS)}
    assert (record.client.kept, [piece.answers for piece in record.pieces]) == (10, [10, SAMPLES - 10])
    assert record.client.completion_tokens == sum(len(text.split()) + 1 for text in TEXTS)


def test_a_performance_run_counts_by_the_servers_usage(settings, clips, tmp_path):
    with Peer(clips[1]) as peer:
        record = run(settings(peer.endpoint, "performance", self_check=True), tmp_path / "run")
    result = read_performance(tmp_path / "run")
    assert result.samples == record.client.completed >= SAMPLES
    assert float(result.figures["tokens_per_second"]) > float(result.samples_per_second) > 0
    assert record.client.self_check.capacity_qps > 0


def test_a_server_that_counts_other_tokens_than_the_tokenizer_is_refused(settings, clips, tmp_path):
    with Peer(clips[1], counted=20) as peer, pytest.raises(ServerUnsuitable, match="counts other tokens"):
        run(settings(peer.endpoint), tmp_path / "run")


def test_a_server_that_does_not_count_fails_the_run(settings, clips, tmp_path):
    with Peer(clips[1], usage=False) as peer, pytest.raises(RunFailed) as failed:
        run(settings(peer.endpoint), tmp_path / "run")
    assert "usage.completion_tokens" in failed.value.cause


def test_the_probe_refuses_servers_without_audio_or_counts():
    with Peer({}) as peer:
        check_transcription(Site(peer.endpoint), "tiny")
    with Peer({}, status=404) as peer, pytest.raises(ServerUnsuitable, match="gives no transcripts") as refused:
        check_transcription(Site(peer.endpoint), "tiny")
    assert "/v1/audio/transcriptions answers HTTP 404 Not Found" in refused.value.cause
    with Peer({}, usage=False) as peer, pytest.raises(ServerUnsuitable, match="does not count"):
        check_transcription(Site(peer.endpoint), "tiny")


def test_a_server_for_the_other_kind_of_samples_is_refused(settings):
    with pytest.raises(ServerUnsuitable, match=r"asked at /v1/completions"):
        settings("http://a", api=Api.COMPLETIONS)
    with pytest.raises(ServerUnsuitable, match=r"asked at /v1/audio/transcriptions"):
        settings("http://a", benchmark="llama3.1-8b")
    with pytest.raises(UsageError, match="stream_interval=0"):
        settings("http://a", stream_interval=0)


def test_a_changed_clip_and_a_missing_one_end_the_run_before_it_begins(settings, clips, tmp_path):
    rows = write_clips(tmp_path, TEXTS, lambda text: tone_speech.clip(text.lower()).tobytes())
    path = tmp_path / "clips.json"
    path.write_text(json.dumps(rows))
    own = replace(clips[0], path=str(path), sha256=sha256_of(path), media_folder=str(tmp_path))
    changed = tmp_path / rows[3]["audio"]
    changed.write_bytes(changed.read_bytes()[:-2] + b"xx")
    with Peer(clips[1]) as peer:
        with pytest.raises(DatasetError, match="has changed"):
            run(settings(peer.endpoint, dataset=own), tmp_path / "run")
        changed.unlink()
        with pytest.raises(DatasetError, match="has no clip"):
            run(settings(peer.endpoint, dataset=own), tmp_path / "run")
    assert not peer.forms


def wav(path, *, seconds=1.0, rate=16_000, channels=1, width=2):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes(int(seconds * rate) * channels * width))


def manifest(folder, count=2, **more):
    (folder / "clips").mkdir()
    for number in range(count):
        wav(folder / f"clips/{number}.wav", **(more if number == 1 else {}))
    entries = [{"transcript": "salt", "files": [{"fname": f"clips/{n}.wav", "speed": 1}]} for n in range(count)]
    path = folder / "dev-all-repack.json"
    path.write_text(json.dumps(entries))
    return path


def test_the_references_manifest_is_read(tmp_path):
    rows = audio_rows(manifest(tmp_path), 2, 30)
    assert [(row["audio"], row["seconds"], row["output"]) for row in rows] == [
        ("clips/0.wav", 1.0, "salt"),
        ("clips/1.wav", 1.0, "salt"),
    ]


@pytest.mark.parametrize(
    ("more", "cause"),
    [({"seconds": 31}, "30 s at most"), ({"rate": 48_000, "channels": 2}, "2 channels of 16 bits at 48000 Hz")],
)
def test_clips_that_the_reference_does_not_have_are_refused(tmp_path, more, cause):
    with pytest.raises(DatasetError) as refused:
        audio_rows(manifest(tmp_path, **more), 2, 30)
    assert cause in refused.value.cause and refused.value.remedy


def test_a_missing_file_a_part_of_the_dataset_and_a_path_outside_are_refused(tmp_path):
    path = manifest(tmp_path)
    with pytest.raises(DatasetError, match="has 2 samples"):
        audio_rows(path, 1633, 30)
    (tmp_path / "clips/1.wav").unlink()
    with pytest.raises(DatasetError, match=r"no clip clips/1\.wav"):
        audio_rows(path, 2, 30)
    path.write_text(json.dumps([{"transcript": "salt", "files": [{"fname": "../x.wav"}]}]))
    wav(tmp_path.parent / "x.wav")
    with pytest.raises(DatasetError, match="no clip"):
        audio_rows(path, 1, 30)


def test_clips_from_a_cache_make_a_run_invalid():
    counts = dict.fromkeys(
        ("samples", "missed", "running_max", "waiting_max", "preemptions", "prefix_cache_hits", "cached_prompt_tokens"),
        0,
    )
    means = dict.fromkeys(("interval_s", "running_mean", "waiting_mean", "kv_cache_usage_max"), 0.0)
    metrics = ServerMetrics(**counts, **means, prompt_tokens=9, generation_tokens=9)
    assert metrics.reason_of_reuse == ""
    assert "vllm:mm_cache_hits_total" in replace(metrics, media_cache_hits=3).reason_of_reuse


# --- runs whose samples have a picture: what is sent, counted and logged, and which servers are refused


BENCHMARK = "qwen3-vl-235b-a22b"
ANSWER = '{"category": "é > b", "brand": "c", "is_secondhand": false}'
PICTURE_TOKENS = 4


class PicturePeer(MediaServer):
    """A server of conversations: its answer is ANSWER; it counts the tokens that `prompts` has of a picture's bytes."""

    def __init__(self, prompts=(), *, status=200, usage=True, counted=0, reads=True):
        self.prompts, self.status, self.usage, self.counted, self.reads = prompts, status, usage, counted, reads
        self.bodies = []

    def answer(self, body):
        self.bodies.append(body)
        parts = body["messages"][-1]["content"]
        picture = isinstance(parts, list)
        asked = parts[0]["text"] if picture else parts
        prompt = next((tokens for text, tokens in self.prompts if text == asked), len(asked.split()))
        prompt += (PICTURE_TOKENS if picture and self.reads and not self.prompts else 0) + self.counted
        document = {"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}]}
        if self.usage:
            document["usage"] = {"prompt_tokens": prompt, "completion_tokens": len(ANSWER.split()) + 1}
        return json.dumps(document).encode()

    def answered(self, path, headers, body):
        if path != "/v1/chat/completions" or self.status != 200:
            return self.status, b'{"error":{"message":"no image input"}}'
        return 200, self.answer(json.loads(body))


@pytest.fixture(scope="module")
def picture_model():
    return ModelRecord(name="words", path=str(MODELS / "cm4vllm-tiny-vision"), source="made by the test", sha256="")


@pytest.fixture(scope="module")
def products(tmp_path_factory, picture_model):
    """The record of a dataset of products, and its rows."""
    folder = tmp_path_factory.mktemp("products")
    rows = write_products(folder, SAMPLES, 5, Path(picture_model.path))
    path = folder / "products.json"
    path.write_text(json.dumps(rows))
    return dataset_record(path, max(max(row["prompt_tokens"].values()) for row in rows)), rows


def prompts(rows, round_name="v6.1"):
    """Return the text of each row's request with the tokens of its prompt."""
    prompt = next(prompt for prompt in chat_prompts() if prompt.name == round_name)
    return [(prompt.messages(row)[1], row["prompt_tokens"][round_name]) for row in rows]


@pytest.fixture
def picture_settings(products, picture_model):
    """Make the settings of a run of qwen3-vl against an endpoint."""

    def make(endpoint, mode="accuracy", *, round_name="v6.1", scenario=Scenario.OFFLINE, api=Api.PICTURES, **options):
        made = terms(round_name, BENCHMARK, scenario, Mode(mode))
        asked = {"api": api, "dialect": PICTURE_CHATS if api is Api.PICTURES else None, "max_model_len": 4096}
        return rehearsal(made, endpoint, 40, asked, model=picture_model, dataset=products[0], **options)

    return make


def test_pictures_are_asked_for_as_the_reference_does_and_answers_logged_as_text(picture_settings, products, tmp_path):
    with PicturePeer(prompts(products[1])) as peer:
        record = run(picture_settings(peer.endpoint), tmp_path / "run")
    logged = list(read_text_log(tmp_path / "run" / ACCURACY_LOG))
    assert sorted(index for index, _, _ in logged) == list(range(SAMPLES))
    assert {(text, count) for _, text, count in logged} == {(ANSWER, 0)}  # LoadGen logs no counts for it
    assert record.client.completion_tokens == SAMPLES * (len(ANSWER.split()) + 1)
    assert record.client.prompt_tokens == sum(tokens for _, tokens in prompts(products[1]))
    prompt = next(prompt for prompt in chat_prompts() if prompt.name == "v6.1")
    expected = {prompt.messages(row): row for row in products[1]}
    folder = products[0].media_folder
    for body in peer.bodies:
        system, user = body["messages"]
        text, picture = user["content"]
        row = expected[system["content"], text["text"]]
        form, _, data = picture["image_url"]["url"].partition(";base64,")
        assert form == "data:image/PNG"
        assert base64.b64decode(data) == (Path(folder) / row["picture"]).read_bytes()
        assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.8, 20)
        assert "seed" not in body and "stream" not in body
        assert body["max_tokens"] == 150


def test_an_answer_without_a_limit_has_the_room_that_the_longest_prompt_leaves(picture_settings, products):
    assert picture_settings("http://a").max_tokens == 150
    assert picture_settings("http://a", round_name="v6.0").max_tokens == 4096 - products[0].max_input_tokens


def test_a_server_run_is_judged_by_whole_answers(picture_settings, products, tmp_path):
    with PicturePeer(prompts(products[1])) as peer:
        made = picture_settings(peer.endpoint, "performance", scenario=Scenario.SERVER, self_check=True)
        record = run(made, tmp_path / "run")
    assert (made.stream_interval, made.terms.first_token) == (0, False)
    result = read_performance(tmp_path / "run")
    assert "tokens_per_second" not in result.figures and result.samples == record.client.completed
    assert "target_latency" not in (tmp_path / "run" / "user.conf").read_text()
    assert record.client.self_check.capacity_qps > 0


@pytest.mark.parametrize("counted", [1, -3])
def test_a_server_that_reads_other_pictures_or_none_is_refused(picture_settings, products, tmp_path, counted):
    with PicturePeer(prompts(products[1]), counted=counted) as peer, pytest.raises(RunFailed) as refused:
        run(picture_settings(peer.endpoint), tmp_path / "run")
    assert "other prompt tokens than were sent: it reads other prompts, or pictures of other" in refused.value.cause


def test_the_probe_refuses_servers_without_pictures_or_counts():
    with PicturePeer() as peer:
        check_pictures(Site(peer.endpoint), "tiny")
    with PicturePeer(status=400) as peer, pytest.raises(ServerUnsuitable, match="does not read pictures") as refused:
        check_pictures(Site(peer.endpoint), "tiny")
    assert "/v1/chat/completions answers HTTP 400 no image input" in refused.value.cause
    with PicturePeer(reads=False) as peer, pytest.raises(ServerUnsuitable, match="does not read pictures") as refused:
        check_pictures(Site(peer.endpoint), "tiny")
    assert "with a picture" in refused.value.cause
    with PicturePeer(usage=False) as peer, pytest.raises(ServerUnsuitable, match="does not count tokens"):
        check_pictures(Site(peer.endpoint), "tiny")


def test_a_server_for_the_other_kind_of_samples_is_refused_picture_chats(picture_settings):
    with pytest.raises(ServerUnsuitable, match=r"asked at /v1/completions"):
        picture_settings("http://a", api=Api.COMPLETIONS)
    with pytest.raises(ServerUnsuitable, match=r"asked at /v1/audio/transcriptions"):
        picture_settings("http://a", api=Api.TRANSCRIPTIONS)
    with pytest.raises(UsageError, match="stream_interval=-1"):
        picture_settings("http://a", stream_interval=-1)

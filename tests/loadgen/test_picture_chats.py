"""Runs whose samples have a picture: what is sent, counted and logged, and which servers are refused."""

import base64
import json
from pathlib import Path

import pytest
from media_server import MediaServer

from cm4vllm.assets.samples.picture_dataset import write_products
from cm4vllm.assets.tiny.stand_ins import MODELS
from cm4vllm.common.errors import RunFailed, ServerUnsuitable, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_performance, read_text_log
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.rules import ExecutionMode, Mode, Scenario, chat_prompts, terms
from cm4vllm.serving.probing.media_apis import PICTURE_CHATS, check_pictures
from cm4vllm.serving.probing.server_requests import Site

BENCHMARK = "qwen3-vl-235b-a22b"
SAMPLES = 24
ANSWER = '{"category": "é > b", "brand": "c", "is_secondhand": false}'
PICTURE_TOKENS = 4


class Peer(MediaServer):
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
def model():
    return ModelRecord(name="words", path=str(MODELS / "cm4vllm-tiny-vision"), source="made by the test", sha256="")


@pytest.fixture(scope="module")
def products(tmp_path_factory, model):
    """The record of a dataset of products, and its rows."""
    folder = tmp_path_factory.mktemp("products")
    rows = write_products(folder, SAMPLES, 5, Path(model.path))
    path = folder / "products.json"
    path.write_text(json.dumps(rows))
    record = DatasetRecord(
        name="products",
        path=str(path),
        source="made by the test",
        sha256=sha256_of(path),
        samples=SAMPLES,
        max_input_tokens=max(max(row["prompt_tokens"].values()) for row in rows),
        media_folder=str(folder),
    )
    return record, rows


def prompts(rows, round_name="v6.1"):
    """Return the text of each row's request with the tokens of its prompt."""
    prompt = next(prompt for prompt in chat_prompts() if prompt.name == round_name)
    return [(prompt.messages(row)[1], row["prompt_tokens"][round_name]) for row in rows]


@pytest.fixture
def settings(products, model):
    """Make the settings of a run of qwen3-vl against an endpoint."""

    def make(endpoint, mode="accuracy", *, round_name="v6.1", scenario=Scenario.OFFLINE, api=Api.PICTURES, **options):
        made = terms(round_name, BENCHMARK, scenario, Mode(mode))
        count = {"test_query_count": SAMPLES, "dataset_samples": SAMPLES}
        conf = user_conf(made, ExecutionMode.TEST, target_qps=40, max_test_duration_s=1, **count)
        dialect = PICTURE_CHATS if api is Api.PICTURES else None
        server = ServerRecord(
            endpoint=endpoint, api=api, dialect=dialect, model_name="tiny", max_model_len=4096, version="0", owned=False
        )
        options = {"target_qps": 40, "target_qps_source": "the test's", "self_check": False, **options}
        return run_settings(conf, model=model, dataset=products[0], server=server, **options)

    return make


def test_answers_are_logged_as_text_and_counted_by_the_servers_usage(settings, products, tmp_path):
    with Peer(prompts(products[1])) as peer:
        record = run(settings(peer.endpoint), tmp_path / "run")
    logged = list(read_text_log(tmp_path / "run" / ACCURACY_LOG))
    assert sorted(index for index, _, _ in logged) == list(range(SAMPLES))
    assert {(text, count) for _, text, count in logged} == {(ANSWER, 0)}  # LoadGen logs no counts for it
    assert record.client.completion_tokens == SAMPLES * (len(ANSWER.split()) + 1)
    assert record.client.prompt_tokens == sum(tokens for _, tokens in prompts(products[1]))


def test_an_answer_without_a_limit_has_the_room_that_the_longest_prompt_leaves(settings, products):
    assert settings("http://a").max_tokens == 150
    assert settings("http://a", round_name="v6.0").max_tokens == 4096 - products[0].max_input_tokens


def test_a_request_asks_as_the_reference_does(settings, products, tmp_path):
    with Peer(prompts(products[1])) as peer:
        run(settings(peer.endpoint), tmp_path / "run")
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


def test_a_server_run_is_judged_by_whole_answers(settings, products, tmp_path):
    with Peer(prompts(products[1])) as peer:
        made = settings(peer.endpoint, "performance", scenario=Scenario.SERVER, self_check=True)
        record = run(made, tmp_path / "run")
    assert (made.stream_interval, made.terms.first_token) == (0, False)
    result = read_performance(tmp_path / "run")
    assert "tokens_per_second" not in result.figures and result.samples == record.client.completed
    assert "target_latency" not in (tmp_path / "run" / "user.conf").read_text()
    assert record.client.self_check.capacity_qps > 0


@pytest.mark.parametrize("counted", [1, -3])
def test_a_server_that_reads_other_pictures_or_none_is_refused(settings, products, tmp_path, counted):
    with Peer(prompts(products[1]), counted=counted) as peer, pytest.raises(RunFailed) as refused:
        run(settings(peer.endpoint), tmp_path / "run")
    assert "other prompt tokens than were sent: it reads other prompts, or pictures of other" in refused.value.cause


def test_the_probe_refuses_servers_without_pictures_or_counts():
    with Peer() as peer:
        check_pictures(Site(peer.endpoint), "tiny")
    with Peer(status=400) as peer, pytest.raises(ServerUnsuitable, match="does not read pictures") as refused:
        check_pictures(Site(peer.endpoint), "tiny")
    assert "/v1/chat/completions answers HTTP 400 no image input" in refused.value.cause
    with Peer(reads=False) as peer, pytest.raises(ServerUnsuitable, match="does not read pictures") as refused:
        check_pictures(Site(peer.endpoint), "tiny")
    assert "with a picture" in refused.value.cause
    with Peer(usage=False) as peer, pytest.raises(ServerUnsuitable, match="does not count tokens"):
        check_pictures(Site(peer.endpoint), "tiny")


def test_a_server_for_the_other_kind_of_samples_is_refused(settings):
    with pytest.raises(ServerUnsuitable, match=r"asked at /v1/completions"):
        settings("http://a", api=Api.COMPLETIONS)
    with pytest.raises(ServerUnsuitable, match=r"asked at /v1/audio/transcriptions"):
        settings("http://a", api=Api.TRANSCRIPTIONS)
    with pytest.raises(UsageError, match="stream_interval=-1"):
        settings("http://a", stream_interval=-1)

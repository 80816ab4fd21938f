"""Servers that give text and no token ids: the facts that probing finds, the refusals, and the messages."""

import re
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from text_server import MODEL, TextServer, save_model, tokenizer

sys.path.insert(0, str(Path(__file__).parent))

import peer

from cm4vllm.common.errors import ModelError, ServerUnsuitable
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import Api, Dialect, Prompts, ServerRecord, counting
from cm4vllm.rules import Division
from cm4vllm.serving.launch import launch
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.probing.text_servers import check_tokenizer, require_division
from cm4vllm.serving.probing.vocabularies import check_vocabulary


def probed(server, **more):
    return probe(server.endpoint, MODEL, text=True, max_model_len=2048, **more)


@pytest.fixture
def model(tmp_path):
    return ModelRecord(name=MODEL, path=str(save_model(tmp_path / "model")), source="made for this test", sha256="")


def test_transformers_serve_is_asked_in_text_and_without_what_it_refuses(tmp_path, capsys):
    with TextServer() as server:
        record, path = launch(
            LaunchSettings(api_server=server.endpoint, model_name=MODEL, max_model_len=2048, folder=str(tmp_path))
        )
    assert record.dialect is not None
    assert (record.dialect.prompts, record.dialect.usage, record.dialect.done) == (Prompts.TEXT, True, False)
    assert set(record.dialect.left_out) == {"min_tokens", "top_k"}
    assert (record.software, record.version) == ("", "")
    assert any("its /v1/models answers HTTP 500" in note for note in record.unchecked)
    said = capsys.readouterr()
    assert "gives text and no token ids" in said.out + said.err
    assert "takes no min_tokens, top_k" in said.out + said.err
    assert ServerRecord.__name__
    assert '"prompts": "text"' in path.read_text()


def test_a_server_that_takes_ids_and_all_parameters_is_asked_with_them():
    with TextServer(refuses=(), takes_ids=True, done=True, lists_models=True, owner="sglang") as server:
        record = probed(server)
    assert record.dialect == Dialect(prompts=Prompts.IDS, usage=True, done=True, left_out=[])
    assert record.named == "SGLang"
    with TextServer(refuses=(), takes_ids=True, template_tokens=1) as server:  # it counts ids as something else
        assert probed(server).dialect.prompts is Prompts.TEXT


def test_another_server_that_tells_a_version_is_no_vllm_and_is_not_asked_for_its_vocabulary(model):
    with TextServer(refuses=(), takes_ids=True, lists_models=True, owner="tensorrt_llm", version="1.2.0") as server:
        record = probed(server)
        asked = len(server.bodies)
        check_vocabulary(record, model)
        assert len(server.bodies) == asked
    assert record.named == "TensorRT-LLM 1.2.0"


def test_a_server_without_usage_is_of_the_open_division_alone():
    with TextServer(counts=False, takes_ids=True) as server:
        record = probed(server)
    assert not record.dialect.usage
    assert record.dialect.prompts is Prompts.TEXT  # without a count nothing shows that ids were read as ids
    require_division(record, Division.OPEN)
    with pytest.raises(ServerUnsuitable, match="the closed division is not possible") as caught:
        require_division(record, Division.CLOSED)
    assert "usage" in caught.value.cause
    assert "open division alone" in " ".join(counting(record))


def test_a_server_with_usage_may_be_of_the_closed_division():
    """A server without usage raises ServerUnsuitable, as above."""
    with TextServer() as server:
        require_division(probed(server), Division.CLOSED)
    with peer.running() as url:
        require_division(probe(url), Division.CLOSED)


def test_conversations_are_asked_for_by_name_and_are_of_the_open_division_alone():
    with TextServer(chat=True, takes_text=False, template_tokens=9, reasoning=2) as server:
        with pytest.raises(ServerUnsuitable, match="neither token ids nor text") as caught:
            probed(server)
        assert "--api=chat" in caught.value.remedy
        record = probed(server, api=Api.CHAT)
        assert server.bodies[-1]["messages"][0]["role"] == "user"
    assert record.dialect.prompts is Prompts.CHAT
    with pytest.raises(ServerUnsuitable, match="closed"):
        require_division(record, Division.CLOSED)


@pytest.mark.parametrize(
    ("habits", "words"),
    [
        ({"reason": "abort"}, "finish_reason is 'abort'"),
        ({"error_event": True}, "the model died"),
        ({"overcount": 50}, "in its usage"),
        ({"takes_text": False}, "prompt must be a string"),
        ({"refuses": ("max_tokens",)}, "HTTP 422 Unexpected fields"),
    ],
)
def test_a_server_whose_text_cannot_be_counted_is_refused(habits, words):
    with TextServer(**habits) as server, pytest.raises(ServerUnsuitable) as caught:
        probed(server)
    assert words in caught.value.cause
    assert caught.value.remedy


def test_of_a_refusal_that_names_no_parameter_only_those_are_left_out_that_are_not_taken():
    class Vague(TextServer):
        def refusal(self, path, body):
            refusal = super().refusal(path, body)
            return refusal and (refusal[0], "bad request")

    with Vague(refuses=("top_p", "seed")) as server:
        assert set(probed(server).dialect.left_out) == {"top_p", "seed"}


@pytest.mark.parametrize(
    ("listed", "name", "words"), [(True, "other", f"does not serve other.*{MODEL}"), (False, "", "--vllm_model_name")]
)
def test_a_wrong_name_is_refused_and_a_model_that_is_not_listed_must_be_named(listed, name, words):
    with TextServer(lists_models=listed) as server, pytest.raises(ServerUnsuitable) as caught:
        probe(server.endpoint, name, text=True, max_model_len=2048)
    assert re.search(words, f"{caught.value.what} {caught.value.cause} {caught.value.remedy}", re.DOTALL)


def test_an_older_vllm_that_lists_no_ids_is_counted_by_its_usage():
    with peer.running() as url:
        assert probe(url, text=True).dialect is None
    with peer.running("no-ids") as url:
        assert probe(url, text=True).dialect == Dialect(prompts=Prompts.IDS, usage=True, done=True)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("token-short", "listed 3 ids and reported 4"),
        ("prompt-changed", "it counts 145"),
        ("cut-stream", "[DONE]"),
        ("engine-dead", "EngineCore encountered an issue"),
    ],
)
def test_a_server_that_lists_ids_wrongly_is_not_counted_by_its_text_instead(fault, words):
    with peer.running(fault) as url, pytest.raises(ServerUnsuitable) as caught:
        probe(url, peer.MODEL, text=True)
    assert words in caught.value.cause


def test_servers_in_two_dialects_are_not_alike():
    with (
        TextServer() as first,
        TextServer(counts=False) as second,
        pytest.raises(ServerUnsuitable, match="the servers differ"),
    ):
        probe(f"{first.endpoint},{second.endpoint}", MODEL, text=True, max_model_len=2048)


def test_the_tokenizer_of_the_model_counts_as_the_server_does(model):
    with TextServer() as server:
        check_tokenizer(probed(server), model)
    with TextServer(takes_ids=True) as server:
        check_tokenizer(probed(server), model)
        assert server.bodies[-1]["prompt"] == tokenizer().encode("On Monday the harbour log says that").ids


def test_the_tokenizer_of_another_model_is_refused_and_a_model_without_one(model, tmp_path):
    letters = Tokenizer(WordLevel({"none": 0}, unk_token="none"))
    (tmp_path / "other").mkdir()
    letters.save(str(tmp_path / "other" / "tokenizer.json"))
    with TextServer() as server:
        record = probed(server)
        with pytest.raises(ServerUnsuitable, match="does not serve other") as caught:
            check_tokenizer(record, replace(model, name="other", path=str(tmp_path / "other")))
    assert "that model's tokenizer gives 1" in caught.value.cause
    with pytest.raises(ModelError, match="without the tokenizer") as caught:
        check_tokenizer(record, replace(model, path=str(tmp_path)))
    assert "tokenizer.json" in caught.value.cause


def test_what_is_said_of_each_way_of_counting():
    record = ServerRecord(endpoint="http://a", model_name="m", max_model_len=1, version="1", owned=False)
    assert "Token ids are those that the server lists" in counting(record)[0]
    chat = replace(record, dialect=Dialect(prompts=Prompts.CHAT, usage=False, left_out=["top_k", "stream_options"]))
    text = " ".join(counting(chat))
    for words in ("own tokenizer", "does not count them", "chat template", "takes no top_k:", "open division alone"):
        assert words in text
    assert "stream_options" not in text

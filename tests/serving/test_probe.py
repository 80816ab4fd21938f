"""The probe against real servers on the loopback interface, most of which misbehave."""

import socket
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

sys.path.insert(0, str(Path(__file__).parent))

import peer

from cm4vllm.assets.records import ModelRecord
from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError
from cm4vllm.serving import probe as module
from cm4vllm.serving.probe import base_url, check_vocabulary, probe


def test_a_good_server_is_described_by_what_it_says_itself():
    with peer.running() as url:
        record = probe(url, peer.MODEL)
    assert (record.endpoint, record.model_name) == (url, peer.MODEL)
    assert (record.max_model_len, record.version) == (2048, "0.32.0")
    assert record.owned is False
    assert record.supervisor_pid is None


def test_the_only_model_need_not_be_named():
    with peer.running() as url:
        assert probe(url).model_name == peer.MODEL


def test_an_adapter_does_not_make_the_choice_of_the_model_unclear():
    with peer.running("adapter") as url:
        assert probe(url).model_name == peer.MODEL


def test_of_two_models_one_must_be_named():
    with peer.running("two-models") as url:
        with pytest.raises(ServerUnsuitable, match="serves 2 models") as caught:
            probe(url)
        assert "--vllm_model_name" in caught.value.remedy
        assert probe(url, peer.MODEL).model_name == peer.MODEL


def test_a_wrong_name_is_told_with_the_nearest_that_is_served():
    with peer.running("two-models") as url, pytest.raises(ServerUnsuitable, match="not serve some-modle") as caught:
        probe(url, "some-modle")
    assert "some-model, another-model" in caught.value.cause
    assert "did you mean" in caught.value.remedy
    assert "some-model" in caught.value.remedy


@pytest.mark.parametrize(("fault", "words"), [
    ("web-page", "not JSON"),
    ("not-vllm", "HTTP 404"),
    ("key", "HTTP 401"),
    ("no-ids", "has none"),
    ("token-short", "listed 3 ids and reported 4"),
    ("prompt-changed", "to a prompt of 4"),
    ("cut-stream", "[DONE]"),
    ("engine-dead", "EngineCore encountered an issue"),
    ("prefix-caching", "rules forbid"),
])  # fmt: skip
def test_an_unsuitable_server_is_refused_with_the_reason(fault, words):
    with peer.running(fault) as url, pytest.raises(ServerUnsuitable) as caught:
        probe(url, peer.MODEL)
    assert words in caught.value.cause
    assert caught.value.remedy


def test_prefix_caching_has_its_remedy():
    with peer.running("prefix-caching") as url, pytest.raises(ServerUnsuitable) as caught:
        probe(url)
    assert "--no-enable-prefix-caching" in caught.value.remedy


def test_a_server_without_metrics_is_not_refused():
    with peer.running("no-metrics") as url:
        assert probe(url).model_name == peer.MODEL


def test_nothing_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=f"nothing answers at http://127.0.0.1:{port}") as caught:
        probe(f"127.0.0.1:{port}")
    assert "refused" in caught.value.cause


def test_a_server_that_never_answers(monkeypatch):
    monkeypatch.setattr(module, "_SHORT_S", 0.3)
    with peer.running("silent") as url, pytest.raises(ServerUnreachable, match="does not answer /version"):
        probe(url)


def test_something_that_speaks_no_http():
    import threading

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"SSH-2.0-hello\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises(ServerUnsuitable, match="not a vLLM") as caught:
            probe(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert "does not speak HTTP" in caught.value.cause


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with peer.running() as url:
        assert probe(url).version == "0.32.0"


@pytest.mark.parametrize(("given", "url"), [
    ("localhost:8000", "http://localhost:8000"),
    ("http://localhost:8000/", "http://localhost:8000"),
    ("http://localhost:8000/v1", "http://localhost:8000"),
    ("http://localhost:8000/v1/", "http://localhost:8000"),
    ("https://example.org", "https://example.org"),
    ("http://[::1]:8000", "http://[::1]:8000"),
    ("  127.0.0.1:80 ", "http://127.0.0.1:80"),
])  # fmt: skip
def test_addresses_as_people_write_them(given, url):
    assert base_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://host:1", "http://", "http://host:99999", "http://host:x",
                                   "http://user:word@host:1", "http://host:1/v1/completions", "http://host:1/?key=x"])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(UsageError) as caught:
        base_url(given)
    assert "--api_server" in caught.value.remedy
    assert "word" not in str(caught.value)


@pytest.fixture
def model(tmp_path):
    words = {word: token for token, word in enumerate(peer.VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="none")).save(str(tmp_path / "tokenizer.json"))
    return ModelRecord(name="harbour", path=str(tmp_path), source="made for this test", sha256="")


def test_a_server_that_reads_token_ids_as_the_model_does_may_be_that_model(model):
    with peer.running() as url:
        check_vocabulary(probe(url), model)


def test_a_server_of_another_vocabulary_is_not_measured_under_the_models_name(model):
    with peer.running("other-vocabulary") as url, pytest.raises(ServerUnsuitable, match="not serve harbour") as caught:
        check_vocabulary(probe(url), model)
    assert "--vllm_model_name" in caught.value.remedy

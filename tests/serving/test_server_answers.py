"""Statuses, redirects and pages that the probe gets: real servers behind a gateway that answers some requests."""

import gzip
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from gateway import Gateway
from text_server import MODEL, TextServer

sys.path.insert(0, str(Path(__file__).parent))

import peer

from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.access import KEY_VARIABLES
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import Prompts
from cm4vllm.serving.probing import server_requests
from cm4vllm.serving.probing.server_identities import identity, optional_page
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.probing.server_requests import Site, ask
from cm4vllm.serving.probing.vocabularies import check_vocabulary


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def upstream():
    with peer.running() as url:
        yield url


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(server_requests, "PATIENCE_S", 0.8)
    monkeypatch.setattr(server_requests, "_PAUSES_S", (0.05, 0.1))


def first(number, status, path, headers=None):
    """A rule: the first `number` requests to a path are answered with a status."""
    asked = Counter()

    def rule(method, asked_path, body):
        asked[asked_path] += 1
        if asked_path == path and asked[asked_path] <= number:
            return status, b'{"error": {"message": "busy"}}', headers or {}
        return None

    return rule


@pytest.mark.parametrize(
    ("status", "path"),
    [
        *((status, "/v1/completions") for status in (429, 503, 500)),
        *((503, path) for path in ("/v1/models", "/version", "/metrics")),
    ],
)
def test_one_answer_that_means_not_now_changes_nothing(upstream, status, path):
    with Gateway(upstream) as gateway:
        expected = probe(gateway.endpoint, peer.MODEL, text=True)
    with Gateway(upstream, rule=first(1, status, path)) as gateway:
        record = probe(gateway.endpoint, peer.MODEL, text=True)
    assert (record.dialect, record.version, record.options) == (None, expected.version, expected.options)
    assert record.unchecked == expected.unchecked


def test_several_such_answers_change_nothing_either_and_waiting_is_said(upstream, impatient, capsys):
    for rule in (first(3, 503, "/v1/completions"), first(2, 500, "/v1/completions"), first(4, 503, "/v1/models")):
        with Gateway(upstream, rule=rule) as gateway:
            assert probe(gateway.endpoint, peer.MODEL, text=True).dialect is None
    assert "answers HTTP 503 to /v1/models: asked again" in "".join(capsys.readouterr())


def test_retry_after_is_waited_for(upstream):
    began = time.monotonic()
    with Gateway(upstream, rule=first(1, 429, "/v1/models", {"Retry-After": "1"})) as gateway:
        probe(gateway.endpoint, peer.MODEL, text=True)
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize(
    ("status", "path", "name"),
    [(408, "/v1/models", ""), (503, "/v1/models", "another"), (429, "/v1/completions", "another")],
)
def test_a_server_that_stays_busy_is_unsuitable_with_its_status(upstream, impatient, status, path, name):
    with Gateway(upstream, rule=first(10**6, status, path)) as gateway, pytest.raises(ServerUnsuitable) as caught:
        probe(gateway.endpoint, name, text=True)
    assert "is not ready" in caught.value.what
    assert f"its {path} answered" in caught.value.cause
    assert f"HTTP {status} busy" in caught.value.cause
    assert "max_model_len" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "times", "refusal", "cause"),
    [
        *((status, 10**6, "neither token ids nor", "/v1/completions: HTTP {} busy") for status in (404, 422, 500)),
        *((status, 1, None, "its /v1/completions answers HTTP {} busy") for status in (402, 505)),
    ],
)
def test_an_endpoint_that_is_not_supported_is_named_with_its_status(upstream, impatient, status, times, refusal, cause):
    rule = first(times, status, "/v1/completions")
    with Gateway(upstream, rule=rule) as gateway, pytest.raises(ServerUnsuitable, match=refusal) as caught:
        probe(gateway.endpoint, peer.MODEL, text=True)
    assert cause.format(status) in caught.value.cause


def failing_at(*unknown):
    """A rule: an internal error for a request with one of these fields, which it does not name."""

    def rule(method, path, body):
        failed = method == "POST" and set(json.loads(body)) & {*unknown, "return_token_ids", "ignore_eos"}
        return (500, b"Internal Server Error", {}) if failed else None

    return rule


def repeating(method, path, body):
    """Repeat the request in the error."""
    return (400, b"invalid: " + body, {}) if b"top_k" in body or b"return_token_ids" in body else None


@pytest.mark.parametrize(
    ("rule", "takes_ids", "left_out"),
    [
        (failing_at("top_k"), False, {"top_k"}),
        (failing_at("top_p", "seed"), False, {"top_p", "seed"}),
        (failing_at("stream_options"), False, {"stream_options"}),
        (repeating, True, {"top_k"}),
    ],
)
def test_parameters_at_which_a_server_fails_are_left_out_one_by_one(impatient, rule, takes_ids, left_out):
    with (
        TextServer(lists_models=True, takes_ids=takes_ids, refuses=()) as server,
        Gateway(server.endpoint, rule=rule) as gateway,
    ):
        dialect = probe(gateway.endpoint, MODEL, text=True, max_model_len=2048).dialect
    assert set(dialect.left_out) == left_out
    assert dialect.prompts is Prompts.TEXT or takes_ids


#: The answer of vLLM 0.32.0 to a request above the limit of its queue.
REJECTED = b'{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}'


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda *_: (401, b"{}", {}), "asks for a key"),
        (lambda *_: (503, b"loading", {}), "HTTP 503 loading"),
        (lambda *_: (503, REJECTED, {}), "its admission control rejects requests (--max-num-queued-reqs)"),
        (lambda *_: (200, b"<!DOCTYPE html><title>Sign in</title>", {}), "is not JSON: '<!DOCTYPE html>"),
        (lambda *_: (302, b"", {"Location": "https://login.example/?next=a"}), "redirects its /v1/models"),
        (lambda *_: (404, b'{"detail": "Not Found"}', {}), "its /v1/models answers HTTP 404 Not Found"),
        (lambda *_: (200, gzip.compress(b"{}"), {"Content-Encoding": "gzip"}), "compressed (gzip)"),
    ],
)
@pytest.mark.parametrize("name", ["", "another"])
def test_the_cause_is_said_at_once_whether_the_model_is_named_or_not(upstream, impatient, rule, words, name):
    with Gateway(upstream, rule=rule) as gateway, pytest.raises(ServerUnsuitable) as caught:
        probe(gateway.endpoint, name, text=True)
    assert words in str(caught.value)
    assert "max_model_len" not in str(caught.value)
    assert caught.value.remedy


def test_a_wrong_prefix_is_named_also_where_the_model_is(upstream):
    with Gateway(upstream, "/right") as gateway, pytest.raises(ServerUnsuitable) as caught:
        probe(gateway.endpoint.replace("right", "wrong"), peer.MODEL, text=True)
    assert "its /v1/models answers HTTP 404" in caught.value.cause
    assert "/v1/completions: HTTP 404" in caught.value.cause
    assert "the path before /v1" in caught.value.remedy


def moved(path):
    return lambda method, asked, body: (307, b"", {"Location": f"{path}/"}) if asked == path else None


def test_pages_are_read_where_the_same_server_moved_them(upstream):
    def slashed(method, path, body):
        if path == "/metrics/":
            return 200, b'process_start_time_seconds 1.5\nvllm:cache_config_info{block_size="16"} 1.0\n', {}
        return moved("/metrics")(method, path, body)

    with Gateway(upstream, rule=slashed) as gateway:
        reported = identity(Site(gateway.endpoint), peer.MODEL)
        assert reported.process_started_s == 1.5
        assert reported.reported["cache of engine 0.block_size"] == "16"


def test_a_prompt_follows_no_redirect_not_even_on_the_same_server(upstream):
    with Gateway(upstream, rule=moved("/v1/completions")) as gateway:
        with pytest.raises(ServerUnsuitable, match="redirects its /v1/completions"):
            probe(gateway.endpoint, peer.MODEL, text=True)
        assert not any("/v1/completions/" in head for head in gateway.heads)


def test_a_page_without_end_holds_no_question(upstream, monkeypatch):
    monkeypatch.setattr("cm4vllm.common.http_requests.MOST_BYTES", 10**5)
    endless = (200, b"x" * 10**6, {})
    with Gateway(upstream, rule=lambda method, path, body: endless if path == "/metrics" else None) as gateway:
        assert identity(Site(gateway.endpoint), peer.MODEL).reported["version.version"] == "0.32.0"
    with (
        Gateway(upstream, rule=lambda *_: endless) as gateway,
        pytest.raises(ServerUnsuitable, match="cannot|can be") as caught,
    ):
        ask(Site(gateway.endpoint), "GET", "/v1/models", None, 5)
    assert "longer than 100 kB" in caught.value.cause


class Hanging:
    """A server that takes connections at a port of its own and never sends a whole header, or sends it slowly."""

    def __init__(self, piece=b"", pause_s=0.05):
        self.piece, self.pause_s, self.ended = piece, pause_s, threading.Event()

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self.thread.join()
        self.listener.close()

    def serve(self):
        while not self.ended.is_set():
            connection, _ = self.listener.accept()
            with connection, suppress(OSError):
                while not self.ended.wait(self.pause_s):
                    connection.sendall(self.piece)


def hangs(path, piece=b""):
    """A rule: the answer at a path has no end of its header in time."""

    def rule(method, asked, body):
        if asked == path:
            time.sleep(0.6)
            return 200, piece, {}
        return None

    return rule


@pytest.mark.parametrize("path", ["/metrics", "/version", "/server_info?config_format=json"])
def test_a_page_whose_header_never_comes_ends_no_probe_and_is_named(upstream, monkeypatch, path):
    monkeypatch.setattr("cm4vllm.serving.probing.server_identities._SHORT_S", 0.3)
    with Gateway(upstream, rule=hangs(path)) as gateway:
        record = probe(gateway.endpoint, peer.MODEL, text=True)
    words = f"its {path} cannot be read ({gateway.endpoint} does not answer {path}: no answer within"
    assert record.model_name == peer.MODEL
    assert any(words in note for note in record.unchecked) is (path in ("/metrics", "/version"))
    assert set(record.identities[gateway.endpoint].unanswered) == {path} & {"/metrics", "/version"}


@pytest.mark.parametrize("piece", [b"", b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"])
def test_a_page_that_sends_a_line_of_its_header_now_and_then_is_not_answered(monkeypatch, piece):
    monkeypatch.setattr("cm4vllm.serving.probing.server_identities._SHORT_S", 0.4)
    with Hanging(piece) as server:
        page = optional_page(Site(f"http://127.0.0.1:{server.port}"), "/metrics")
    assert not page.answered
    assert page.missing.startswith("its /metrics cannot be read (")


@pytest.mark.parametrize(
    ("path", "of", "answer", "words"),
    [
        *(
            ("/metrics", "whether it caches prompt prefixes: ", answer, words)
            for answer, words in (
                ((301, b"", {"Location": "https://gateway.example/metrics/"}), "to https://gateway.example/metrics/"),
                ((401, b"no", {}), "/metrics: HTTP 401, and no key was sent"),
                ((404, b"no", {}), "its /metrics answers HTTP 404"),
                ((200, b"x" * 10**6, {}), "longer than 100 kB"),
                ((200, gzip.compress(b"x"), {"Content-Encoding": "gzip"}), "compressed (gzip)"),
                ((200, b"process_open_fds 7.0\n", {}), "its /metrics do not state it"),
            )
        ),
        ("/version", "its vocabulary", (401, b"no", {}), "/version: HTTP 401, and no key was sent"),
        ("/version", "its vocabulary", (200, b"<html>", {}), "its /version states none"),
    ],
)
def test_why_a_fact_of_a_page_is_not_known_is_said(upstream, monkeypatch, path, of, answer, words):
    monkeypatch.setattr("cm4vllm.common.http_requests.MOST_BYTES", 10**5)
    with Gateway(upstream, rule=lambda method, asked, body: answer if asked == path else None) as gateway:
        record = probe(gateway.endpoint, peer.MODEL)
    (note,) = [note for note in record.unchecked if of in note]
    assert words in note


@pytest.mark.parametrize(
    ("path", "page"),
    [
        *(("/metrics", f"process_start_time_seconds {start}\n") for start in ("1e300", "+Inf", "NaN", "-1", "x")),
        *(
            ("/version", f'{{"version": {version}}}')
            for version in ('"\\ud800x"', '{"a":' * 900 + "1" + "}" * 900, "1e999")
        ),
    ],
)
def test_a_strange_page_can_be_recorded_and_a_start_that_is_no_time_is_not(upstream, path, page):
    answer = (200, page.encode(), {})
    with Gateway(upstream, rule=lambda method, asked, body: answer if asked == path else None) as gateway:
        reported = identity(Site(gateway.endpoint), peer.MODEL)
    assert msgspec.json.encode(reported)
    assert reported.process_started_s is None


@pytest.mark.parametrize(
    ("status", "words"), [(404, "its /detokenize answers HTTP 404"), (503, "HTTP 503"), (400, "differently")]
)
def test_why_a_vocabulary_could_not_be_compared_is_said(upstream, impatient, tmp_path, status, words):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokens = {word: token for token, word in enumerate(peer.VOCABULARY)}
    Tokenizer(WordLevel(tokens, unk_token="none")).save(str(tmp_path / "tokenizer.json"))
    model = ModelRecord(name="harbour", path=str(tmp_path), source="made for this test", sha256="")
    with Gateway(upstream, rule=first(10**6, status, "/detokenize")) as gateway:
        record = probe(gateway.endpoint, peer.MODEL)
        with pytest.raises(ServerUnsuitable) as caught:
            check_vocabulary(record, model)
    assert words in str(caught.value)


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_plain_http_to_a_server_that_speaks_tls_is_named(certificate):
    with (
        peer.running(tls=certificate) as url,
        pytest.raises(ServerUnsuitable, match="speaks TLS, not plain HTTP") as caught,
    ):
        probe(url.replace("https:", "http:"), peer.MODEL, text=True)
    assert "https://" in caught.value.remedy


def test_plain_http_to_a_server_that_answers_it_with_an_error_is_named(certificate):
    """As nginx and Go's servers do: 400 for a request in plain HTTP at the port of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(listener):
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                if connection.recv(1, socket.MSG_PEEK) != b"\x16":
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
                else:
                    with context.wrap_socket(connection, server_side=True):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises(ServerUnsuitable, match="speaks TLS, not plain HTTP"):
            probe(f"http://127.0.0.1:{listener.getsockname()[1]}", peer.MODEL, text=True)
        thread.join()


def test_tls_to_a_server_that_speaks_plain_http_is_named(upstream):
    with pytest.raises(ServerUnsuitable, match="no TLS connection") as caught:
        probe(upstream.replace("http:", "https:"), peer.MODEL, text=True)
    assert "does not speak TLS" in caught.value.cause
    assert "http://" in caught.value.remedy


@pytest.fixture(scope="module")
def other_certificates(certificate, tmp_path_factory):
    """A folder with certificates for other names, and one that expired yesterday; each is its own authority."""
    folder = tmp_path_factory.mktemp("certificates")
    key = folder / "key"
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:vllm.example,DNS:a.example"]
    address = ["-addext", "subjectAltName=IP:192.0.2.7"]
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    old = ["-signkey", folder / "old-key", "-extfile", folder / "names"]
    for words in (
        ["req", "-x509", *new, *names, "-days", "2", "-keyout", key, "-out", folder / "other"],
        ["req", "-x509", *new, *address, "-days", "2", "-keyout", folder / "key-2", "-out", folder / "address"],
        ["req", *new, "-keyout", folder / "old-key", "-out", folder / "request"],
        ["x509", "-req", "-in", folder / "request", *old, "-days", "-1", "-out", folder / "old"],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    (folder / "other.pem").write_bytes(key.read_bytes() + (folder / "other").read_bytes())
    (folder / "address.pem").write_bytes((folder / "key-2").read_bytes() + (folder / "address").read_bytes())
    (folder / "old.pem").write_bytes((folder / "old-key").read_bytes() + (folder / "old").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("other", "its certificate is for vllm.example, a.example", "--api_server with a name"),
        ("address", "its certificate is for 192.0.2.7", "--api_server with a name"),
        ("old", "expired", "renewed"),
    ],
)
def test_a_certificate_for_another_name_or_that_has_expired_is_named(other_certificates, name, cause, remedy):
    file = other_certificates / f"{name}.pem"
    with peer.running(tls=file) as url, pytest.raises(ServerUnsuitable, match="no TLS connection") as caught:
        probe(url, peer.MODEL, text=True, ca_file=str(file))
    assert cause in caught.value.cause
    assert remedy in caught.value.remedy
    assert "--api_server_ca" not in caught.value.remedy

"""The probe against real servers on the loopback interface, most of which misbehave."""

import socket
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

sys.path.insert(0, str(Path(__file__).parent))

import peer

from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import Api
from cm4vllm.serving.probing import server_probe as module
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.probing.server_requests import base_url, base_urls
from cm4vllm.serving.probing.vocabularies import check_vocabulary


def test_a_good_server_is_described_by_what_it_says_itself():
    with peer.running() as url:
        record = probe(url, peer.MODEL)
    assert (record.endpoint, record.model_name) == (url, peer.MODEL)
    assert (record.max_model_len, record.version) == (2048, "0.32.0")
    assert record.owned is False
    assert record.supervisor_pid is None


def test_the_options_that_a_running_server_reports_are_in_its_record():
    cache = {"block-size": 16, "enable-prefix-caching": False, "gpu-memory-utilization": 0.9}
    with peer.running() as url:
        assert probe(url, peer.MODEL).options == cache
    with peer.running("reports-options") as url:
        assert probe(url, peer.MODEL).options == cache | {"max-num-seqs": 64, "tensor-parallel-size": 2}


def test_a_folder_that_the_server_reports_counts_where_it_holds_a_model(monkeypatch, tmp_path):
    folders = {}
    roots = {"model": tmp_path, "hub": "owner/model", "elsewhere": tmp_path / "none", "empty": tmp_path}
    for name, root in roots.items():
        if name == "empty":
            (tmp_path / "config.json").unlink()
        else:
            (tmp_path / "config.json").write_text("{}")
        monkeypatch.setenv("PEER_ROOT", str(root))
        with peer.running() as url:
            folders[name] = probe(url).model_folder
    assert folders == {"model": str(tmp_path), "hub": "", "elsewhere": "", "empty": ""}


def test_a_server_is_taken_by_what_it_loaded_where_it_has_another_name_for_that(monkeypatch, tmp_path):
    folder, other = tmp_path / "SmolLM2-135M", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    roots = {
        str(folder): (str(folder), f"{folder}/", "SmolLM2-135M", "./SmolLM2-135M", str(tmp_path / "link")),
        "./SmolLM2-135M": (str(folder),),
        "/far/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/93efa2f0": ("HuggingFaceTB/SmolLM2-135M",),
        "/far/hub/models--gpt2/snapshots/607a30d7/": ("gpt2", "/far/hub/models--gpt2/snapshots/607a30d7"),
        "/models/smol": ("/models/smol/",),
    }
    for root, names in roots.items():
        monkeypatch.setenv("PEER_ROOT", root)
        with peer.running("two-models") as url:
            assert {probe(url, name, text=text).model_name for name in names for text in (False, True)} == {peer.MODEL}
            for wrong in (str(other), str(tmp_path), "owner/SmolLM2-135M", "models/smol", "owner/gpt2"):
                with pytest.raises(ServerUnsuitable, match="does not serve"):
                    probe(url, wrong)


@pytest.mark.parametrize(
    ("served", "root", "name"),
    [
        ("cm4vllm-tiny", "", "tiny"),
        ("tiny", "", "cm4vllm-tiny"),
        ("cm4vllm-tiny-vision", "", "tiny-vision"),
        ("/srv/models/cm4vllm-tiny", "/srv/models/cm4vllm-tiny", "tiny"),
        ("mine", "/srv/models/cm4vllm-tiny", "tiny"),
        ("mine", "", "tiny"),
        ("cm4vllm-tiny", "", "tiny-whisper"),
    ],
)
def test_a_stand_in_is_taken_by_each_of_its_names(monkeypatch, served, root, name):
    monkeypatch.setattr(peer, "MODEL", served)
    monkeypatch.setenv("PEER_ROOT", root)
    with peer.running() as url:
        if (served, root) == ("mine", "") or name == "tiny-whisper":
            with pytest.raises(ServerUnsuitable, match=f"does not serve {name}"):
                probe(url, name)
        else:
            assert probe(url, name).model_name == served


@pytest.mark.parametrize("fault", ["none", "adapter", "no-metrics"])
def test_the_only_model_need_not_be_named(fault):
    with peer.running(fault) as url:
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


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("web-page", "not JSON"),
        ("key", "HTTP 401"),
        ("no-ids", "has none"),
        ("token-short", "listed 3 ids and reported 4"),
        ("prompt-changed", "it counts 145"),
        ("cut-stream", "[DONE]"),
        ("engine-dead", "EngineCore encountered an issue"),
        ("prefix-caching", "rules forbid"),
    ],
)
def test_an_unsuitable_server_is_refused_with_the_reason(fault, words):
    with peer.running(fault) as url, pytest.raises(ServerUnsuitable) as caught:
        probe(url, peer.MODEL)
    assert words in caught.value.cause
    assert ("--no-enable-prefix-caching" if fault == "prefix-caching" else "") in caught.value.remedy != ""


def test_several_servers_become_one_record_and_each_is_probed():
    with peer.running() as first, peer.running() as second, peer.running("no-ids") as third:
        record = probe(f"{first}, {second}")
        with pytest.raises(ServerUnsuitable) as said:
            probe(f"{first},{third}")
    assert (record.endpoint, record.endpoints) == (first, [first, second])
    assert third in said.value.what


def test_an_openai_compatible_server_that_is_no_vllm_is_taken_and_what_is_not_known_of_it_is_said(model):
    with peer.running("not-vllm") as url:
        record = probe(url)
    assert record.version == ""
    assert "its software, and its vocabulary: its /version answers HTTP 404" in record.unchecked
    check_vocabulary(record, model)


def test_a_server_that_does_not_tell_its_length_must_have_it_told():
    with peer.running("no-length") as url:
        with pytest.raises(ServerUnsuitable, match="how long a request may be") as said:
            probe(url)
        assert "--max_model_len" in said.value.remedy
        assert probe(url, max_model_len=512).max_model_len == 512


def test_the_token_only_endpoint_is_taken_where_it_is_offered():
    with peer.running("scale-out") as url:
        assert probe(url, api=Api.GENERATE).api is Api.GENERATE
    with peer.running() as url, pytest.raises(ServerUnsuitable) as said:
        probe(url, api=Api.GENERATE)
    assert "--enable-scale-out" in said.value.remedy


def test_a_unix_socket(tmp_path):
    with peer.running(unix=tmp_path / "vllm.sock") as url:
        record = probe(url)
    assert record.endpoint == f"unix://{tmp_path}/vllm.sock"
    with pytest.raises(ServerUnreachable, match="nothing answers at unix:"):
        probe(f"unix://{tmp_path}/other.sock")


def test_a_tls_server_is_checked_against_the_certificates_that_are_named(certificate):
    with peer.running(tls=certificate) as url:
        assert probe(url, ca_file=str(certificate)).ca_file == str(certificate)
        with pytest.raises(ServerUnsuitable, match="no TLS connection") as said:
            probe(url)
        assert "self-signed" in said.value.cause
        assert "--api_server_ca" in said.value.remedy
        with pytest.raises(UsageError, match="cannot read the certificates"):
            probe(url, ca_file="/nowhere.pem")


def test_nothing_listens():
    with socket.socket() as taken:  # its port is nobody else's meanwhile
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ServerUnreachable, match=f"nothing answers at http://127.0.0.1:{port}") as caught:
            probe(f"127.0.0.1:{port}")
    assert "refused" in caught.value.cause


def test_a_server_that_never_answers(monkeypatch):
    monkeypatch.setattr(module, "_SHORT_S", 0.3)
    with peer.running("silent") as url, pytest.raises(ServerUnreachable, match="does not answer /v1/models"):
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
        with pytest.raises(ServerUnsuitable, match="not a server that can be measured") as caught:
            probe(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert "does not speak HTTP" in caught.value.cause


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with peer.running() as url:
        assert probe(url).version == "0.32.0"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("https://example.org", "https://example.org"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("  127.0.0.1:80 ", "http://127.0.0.1:80"),
        ("unix:///run/vllm.sock", "unix:///run/vllm.sock"),
        ("unix:/run/vllm.sock", "unix:///run/vllm.sock"),
    ],
)
def test_addresses_as_people_write_them(given, url):
    assert base_url(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "",
        *(
            "ftp://host:1 http:// http://host:99999 http://host:x http://user:word@host:1 "
            "http://host:1/#part http://host:1/?key=x unix://vllm.sock a:1,"
        ).split(),
    ],
)
def test_what_is_no_address_is_refused(given):
    with pytest.raises(UsageError) as caught:
        base_urls(given)
    assert "--api_server" in caught.value.remedy
    assert "word" not in str(caught.value)


@pytest.fixture
def model(tmp_path):
    words = {word: token for token, word in enumerate(peer.VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="none")).save(str(tmp_path / "tokenizer.json"))
    return ModelRecord(name="harbour", path=str(tmp_path), source="made for this test", sha256="")


def test_a_server_of_another_vocabulary_is_not_measured_under_the_models_name(model):
    with peer.running() as url:
        check_vocabulary(probe(url), model)
    with peer.running("other-vocabulary") as url, pytest.raises(ServerUnsuitable, match="not serve harbour") as caught:
        check_vocabulary(probe(url), model)
    assert "--vllm_model_name" in caught.value.remedy

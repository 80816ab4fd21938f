"""Servers that want a key, headers or a path: real servers behind a small reverse proxy."""

import json
import socket
import sys
from pathlib import Path

import pytest

from gateway import Gateway

sys.path.insert(0, str(Path(__file__).parent))

import peer

from cm4vllm.common.errors import CmError, ServerUnsuitable, UsageError
from cm4vllm.common.host_addresses import host_header, host_of
from cm4vllm.common.secrets.redaction import Vault
from cm4vllm.records.access import KEY_VARIABLES, Access
from cm4vllm.serving.launch import launch
from cm4vllm.serving.launch_settings import LaunchSettings, require_access
from cm4vllm.serving.probing.server_access import chosen_access, own_access, unencrypted
from cm4vllm.serving.probing.server_metrics import look
from cm4vllm.serving.probing.server_probe import check_vocabulary, probe
from cm4vllm.serving.probing.server_requests import base_url, base_urls, sites_of

SECRET = "very-secret-value-1"
TENANT = "tenant-of-the-test"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def upstream():
    with peer.running() as url:
        yield url


def test_a_key_is_kept_out_of_all_records_whatever_its_variable_is_called(monkeypatch):
    monkeypatch.setenv("MY_THING", SECRET)
    monkeypatch.setenv("MY_HEADERS", f"X-Tenant: {TENANT}\n")
    secrets = Vault({})
    with secrets.guarded_output():
        chosen_access("MY_THING", "MY_HEADERS")
    assert secrets.clean(f"{SECRET} of {TENANT}") == "(secret) of (secret)"


def test_a_server_behind_a_prefix_a_key_and_a_header_is_described_without_their_values(upstream, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.setenv("MY_HEADERS", f"X-Tenant: {TENANT}\n")
    with Gateway(upstream, "/team/model", SECRET, {"X-Tenant": TENANT}) as gateway:
        record, path = launch(
            LaunchSettings(
                api_server=f"{gateway.endpoint}/v1/",
                api_key_env="MY_KEY",
                api_headers_env="MY_HEADERS",
                folder=str(tmp_path),
            )
        )
        assert look(sites_of(record)[0]) is None  # the peer's metrics are none of vLLM's
    assert record.endpoint == gateway.endpoint
    assert record.access == Access(key_env="MY_KEY", headers_env="MY_HEADERS")
    assert SECRET not in path.read_text()
    assert TENANT not in path.read_text()
    assert all("/team/model/" in head for head in gateway.heads)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"VLLM_API_KEY": SECRET, "OPENAI_API_KEY": "another"}, "VLLM_API_KEY"),
        ({"OPENAI_API_KEY": SECRET}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": SECRET, "VLLM_API_KEY": ""}, "OPENAI_API_KEY"),
    ],
)
def test_the_usual_variables_are_looked_at_in_this_order(upstream, monkeypatch, variables, name, capsys, tmp_path):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with Gateway(upstream, key=SECRET) as gateway:
        record, _ = launch(LaunchSettings(api_server=gateway.endpoint, folder=str(tmp_path)))
    assert record.access.key_env == name
    said = capsys.readouterr()
    assert f"the key in {name} is sent" in said.out + said.err
    assert SECRET not in said.out + said.err


def test_a_server_that_asks_for_a_key_is_told_with_the_variables_to_set(upstream):
    with Gateway(upstream, key=SECRET) as gateway, pytest.raises(ServerUnsuitable, match="asks for a key") as caught:
        probe(gateway.endpoint)
    assert "HTTP 401" in caught.value.cause
    for name in (*KEY_VARIABLES, "--api_key_env"):
        assert name in caught.value.remedy


def test_a_key_that_is_refused_is_not_repeated_though_the_server_does(upstream, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-the-wrong-one")
    with Gateway(upstream, key=SECRET) as gateway, pytest.raises(ServerUnsuitable, match="refuses the key") as caught:
        probe(gateway.endpoint, access=chosen_access("MY_KEY", ""))
    assert "MY_KEY" in caught.value.remedy
    assert "sk-the-wrong-one" not in str(caught.value)


def test_what_another_answer_repeats_of_the_key_is_hidden(monkeypatch):
    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.setenv("MY_HEADERS", f"X-Basic: Basic {TENANT}")
    access = chosen_access("MY_KEY", "MY_HEADERS")
    hidden = access.without_secrets(f"Incorrect key {SECRET} (Bearer {SECRET}) for {TENANT}")
    assert hidden == "Incorrect key (secret) ((secret)) for (secret)"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("api_key_env", "sk-proj-abc"),
        ("api_key_env", "Bearer abc"),
        ("api_headers_env", "X-Key: abc"),
        ("api_key_env", "$KEY"),
    ],
)
def test_a_key_given_in_place_of_a_variables_name_is_refused_and_not_shown(flag, value):
    with pytest.raises(UsageError, match=f"--{flag} takes the name") as caught:
        require_access(LaunchSettings(api_server="http://a", **{flag: value}))
    assert value not in str(caught.value)


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(UsageError, match="NOT_SET_HERE is not set") as caught:
        chosen_access("NOT_SET_HERE", "")
    assert "export NOT_SET_HERE" in caught.value.remedy
    with pytest.raises(UsageError, match="NOT_SET_HERE is not set"):
        chosen_access("", "NOT_SET_HERE")


@pytest.mark.parametrize("key", ["", "  ", "two\nlines", "tab\x01", "ключ-ключ"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(UsageError, match="the key in MY_KEY cannot be sent") as caught:
        chosen_access("MY_KEY", "")
    assert not key.strip() or key not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["X-Tenant: blue\nX-More:  a: b ", "\n\nX-Tenant:blue\r\nX-More: a: b\n", '{"X-Tenant": "blue", "X-More": "a: b"}'],
)
def test_headers_are_lines_or_json(text, monkeypatch):
    monkeypatch.setenv("MY_HEADERS", text)
    assert chosen_access("", "MY_HEADERS").headers() == {"X-Tenant": "blue", "X-More": "a: b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains no header"),
        ("{}", "contains no header"),
        ("no colon here-SECRET", "no colon"),
        ("{not json SECRET", "no JSON object"),
        ('{"X": 5}', "no JSON object of texts"),
        ("X Y: SECRET", "characters"),
        ("X: SECRET\x02", "characters"),
        ("X: ü", "characters"),
        ('{"X": "a\\r\\nHost: SECRET"}', "characters"),
        ("Host: elsewhere", "client itself"),
        ("content-length: 5", "client itself"),
        ("X-A: 1\nx-a: 2", "twice"),
        (": SECRET", "characters"),
        ('{"a":' * 5000, "no JSON object"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(text, words, monkeypatch):
    monkeypatch.setenv("MY_HEADERS", text)
    with pytest.raises(UsageError, match="the headers in MY_HEADERS cannot be sent") as caught:
        chosen_access("", "MY_HEADERS")
    assert words in caught.value.cause
    assert "SECRET" not in str(caught.value)
    assert "X-Tenant" in caught.value.remedy


def test_an_authorization_of_the_users_own_takes_the_place_of_a_usual_key_and_not_of_a_named_one(monkeypatch):
    monkeypatch.setenv("MY_HEADERS", "authorization: Basic dXNlcjp3b3Jk")
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    assert chosen_access("", "MY_HEADERS").headers() == {"authorization": "Basic dXNlcjp3b3Jk"}
    with pytest.raises(UsageError, match="two keys"):
        chosen_access("VLLM_API_KEY", "MY_HEADERS")


def test_a_redirect_to_another_server_is_not_followed(upstream, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    with Gateway(upstream, key=SECRET) as target, Gateway(upstream, "/a", redirect=target.endpoint) as gateway:
        with pytest.raises(ServerUnsuitable, match="redirects its /v1/models") as caught:
            probe(gateway.endpoint, access=chosen_access("", ""))
        assert target.heads == []
    assert f"to {target.endpoint}/a/v1/models" in caught.value.cause
    assert "--api_server" in caught.value.remedy


def test_an_ipv6_address(upstream, monkeypatch):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    try:
        with Gateway(upstream, "/p", SECRET, host="::1") as gateway:
            assert probe(gateway.endpoint, access=chosen_access("", "")).endpoint == gateway.endpoint
    except OSError as error:
        pytest.skip(f"::1 is not available: {error}")
    assert f"Host: [::1]:{gateway.port}" in gateway.heads[0]


def test_a_zone_of_an_ipv6_address_stays_on_this_machine():
    for given in ("http://[fe80::1%eth0]:8000/p/", "http://[fe80::1%25eth0]:8000/p/v1"):
        url = base_url(given)
        assert url == "http://[fe80::1%25eth0]:8000/p"
        assert host_of(url) == "fe80::1%eth0"
        assert host_header(url) == "[fe80::1]:8000"


def test_several_servers_each_with_a_path_of_its_own(upstream, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    with Gateway(upstream, "/a", SECRET) as first, Gateway(upstream, "/b", SECRET) as second:
        record = probe(f"{first.endpoint},{second.endpoint}/v1", access=chosen_access("", ""))
    assert record.endpoints == [first.endpoint, second.endpoint]


def test_a_key_over_tls(upstream, certificate, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    with Gateway(upstream, "/a", SECRET, certificate=str(certificate)) as gateway:
        record = probe(gateway.endpoint, access=chosen_access("", ""), ca_file=str(certificate))
    assert record.endpoint.startswith("https://127.0.0.1:")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://host/prefix", "https://host/prefix"),
        ("https://host/prefix/v1", "https://host/prefix"),
        ("host:1/a/b/v1/chat/completions", "http://host:1/a/b"),
        ("http://host:1/v1/completions", "http://host:1"),
        ("http://host:1/v1/models/", "http://host:1"),
        ("http://host/v1beta/openai/", "http://host/v1beta/openai"),
        ("http://host/a b/ü", "http://host/a%20b/%C3%BC"),
        ("http://host/a%20b", "http://host/a%20b"),
        ("http://host/a\r\nX: y", "http://host/aX:%20y"),
    ],
)
def test_a_path_is_what_stands_before_v1(given, url):
    assert base_url(given) == url


def test_a_query_in_an_address_is_refused_with_the_place_of_a_key():
    with pytest.raises(UsageError) as caught:
        base_urls("https://host/v1?api_key=SECRET")
    assert "SECRET" not in str(caught.value)
    assert "--api_key_env" in caught.value.remedy


def test_a_path_that_leads_nowhere_says_what_was_asked(upstream):
    with Gateway(upstream, "/right") as gateway, pytest.raises(CmError) as caught:
        probe(gateway.endpoint.replace("right", "wrong"))
    assert "/v1/models answers HTTP 404" in caught.value.cause
    assert "/wrong" in caught.value.what


@pytest.mark.parametrize(
    ("endpoint", "open_"),
    [
        ("http://host:1", True),
        ("https://host:1", False),
        ("http://127.0.0.1:1", False),
        ("http://localhost", False),
        ("http://[::1]:1", False),
        ("unix:///a/b", False),
    ],
)
def test_a_key_in_the_open_is_found(endpoint, open_):
    assert unencrypted(Access(key_env="A"), endpoint) is open_
    assert not unencrypted(Access(), endpoint)


def test_a_key_without_a_server_that_runs_is_refused():
    with pytest.raises(UsageError, match="--api_key_env needs a server that is already running"):
        require_access(LaunchSettings(api_key_env="VLLM_API_KEY"))


def test_a_server_started_here_is_asked_with_the_key_that_it_inherits(monkeypatch):
    assert own_access() == Access()
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert own_access() == Access()
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    assert own_access() == Access(key_env="VLLM_API_KEY")


def test_the_vocabulary_is_asked_with_the_key_too(upstream, monkeypatch, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from cm4vllm.records.assets import ModelRecord

    words = {word: token for token, word in enumerate(peer.VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="none")).save(str(tmp_path / "tokenizer.json"))
    model = ModelRecord(name="harbour", path=str(tmp_path), source="made for this test", sha256="")
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    with Gateway(upstream, "/a", SECRET) as gateway:
        check_vocabulary(probe(gateway.endpoint, access=chosen_access("", "")), model)
    assert any("/detokenize" in head for head in gateway.heads)


def test_a_record_of_before_is_read():
    text = json.dumps({"endpoint": "http://a", "model_name": "m", "max_model_len": 1, "version": "1", "owned": False})
    import msgspec

    from cm4vllm.records.server import ServerRecord

    assert msgspec.json.decode(text, type=ServerRecord).access == Access()

"""Whether what answers at an address is a vLLM that can be measured: asked before anything is built on it."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from cm4vllm.assets.records import ModelRecord
from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError, nearest
from cm4vllm.common.files import json_of
from cm4vllm.serving.access import NO_ACCESS, Access, refused
from cm4vllm.serving.records import Api, ServerRecord, host_of

__all__ = [
    "Site", "base_url", "base_urls", "check_completion", "check_vocabulary", "probe", "served_models", "sites_of",
]  # fmt: skip

#: For an address that must answer at once.
_SHORT_S = 10.0
#: For a completion of a few tokens: a large model that has just started compiles and allocates for its first one.
_LONG_S = 120.0
_PROMPT = [3, 4, 5]
#: About how many token ids a vocabulary is compared by.
_SPREAD = 64
_TOKENS = 4


@dataclass(frozen=True)
class Model:
    """A model that a server lists. `max_model_len` is 0 where the server does not tell it."""

    name: str
    max_model_len: int
    adapter: bool


def base_urls(text: str) -> list[str]:
    """Return the base URLs of several servers, separated by commas. Raises UsageError when one is no address."""
    urls = [base_url(part) for part in text.split(",")]
    twice = next((url for url in urls if urls.count(url) > 1), None)
    if twice:
        raise UsageError(f"{twice} is given twice", remedy="name each server once")
    return urls


def base_url(text: str) -> str:
    """Return a server's base URL: scheme, host, port, and the path that its /v1 is below, where there is one.

    Takes what people have at hand: host:port, a URL, a URL that ends in /v1 or in a path of the API below it,
    unix:///path of a Unix socket. Raises UsageError when `text` is no address.
    """
    url = text.strip()
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(f"{text!r} is not the address of a Unix socket", cause="it needs an absolute path",
                             remedy="give it as --api_server=unix:///run/vllm.sock")
        return f"unix://{path}"
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not a server's address", cause=str(error), remedy=_EXAMPLE) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{text!r} is not a server's address", cause="neither http, https nor unix", remedy=_EXAMPLE)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("the server's address holds more than host, port and path", cause="credentials and queries "
                         "are not sent, and would be written to records", remedy=f"{_EXAMPLE}; a key stands in an "
                         "environment variable (VLLM_API_KEY, or the one that --api_key_env names)")
    host = parts.hostname
    if ":" in host:
        address, zone, name = host.replace("%25", "%").partition("%")
        host = f"[{address}{'%25' if zone else ''}{name}]"
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "") + _prefix(parts.path)


def _prefix(path: str) -> str:
    """Return what a URL's path has before the paths of the API; a server without a prefix has an empty one."""
    path = path.rstrip("/")
    for known in _API_PATHS:
        if path == known or path.endswith(known):
            path = path.removesuffix(known).rstrip("/")
            break
    return quote(path, safe="/%:@!$&'()*+,;=~")


#: Paths of the API that people copy together with the address.
_API_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1")
_EXAMPLE = "give it as --api_server=http://localhost:8000"


def probe(
    api_server: str, model_name: str = "", *, api: Api = Api.COMPLETIONS, ca_file: str = "", max_model_len: int = 0,
    access: Access = NO_ACCESS,
) -> ServerRecord:
    """Return the record of running servers that can be measured: one address, or several separated by commas.

    All are asked with the same key and headers. `model_name` may be empty where they serve one model; `max_model_len`
    is needed of a server that does not tell its own. Raises ServerUnreachable when nothing answers, ServerUnsuitable
    when what answers does not speak the OpenAI format or `api`, does not serve that model, does not give exact token
    ids, or reuses answers' prefixes, and when the servers differ.
    """
    records = [_probe(Site(url, ca_file, access), model_name, api, max_model_len) for url in base_urls(api_server)]
    first = records[0]
    for other in records[1:]:
        for what in ("model_name", "max_model_len", "version"):
            ours, theirs = getattr(first, what), getattr(other, what)
            if ours != theirs:
                raise ServerUnsuitable(
                    "the servers are not alike",
                    cause=f"{what}: {ours} at {first.endpoint}, {theirs} at {other.endpoint}",
                    remedy="start them with the same vLLM, model and options; a result is of one system",
                )
    unchecked = list(dict.fromkeys(note for record in records for note in record.unchecked))
    return replace(first, replicas=[record.endpoint for record in records[1:]], unchecked=unchecked)


def _probe(site: Site, model_name: str, api: Api, max_model_len: int) -> ServerRecord:
    """Return the record of one server."""
    unchecked = []
    version = _version(site)
    if not version:
        unchecked.append("what serves: it has no /version, so it is no vLLM, and its vocabulary cannot be compared")
    model = _chosen(site.endpoint, model_name, served_models(site))
    length = model.max_model_len or max_model_len
    if not length:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} does not tell how long a request may be",
            cause="its /v1/models has no max_model_len; an answer that is cut short would count as whole",
            remedy="say it with --max_model_len=N",
        )
    for streamed in (True, False):
        check_completion(site, model.name, streamed=streamed, api=api)
    if not _prefix_caching_is_known(site):
        unchecked.append("whether it caches prompt prefixes: its /metrics do not tell")
    return ServerRecord(endpoint=site.endpoint, api=api, ca_file=site.ca_file, access=site.access,
                        model_name=model.name, max_model_len=length, version=version, owned=False, unchecked=unchecked)


def served_models(site: Site | str) -> list[Model]:
    """Return the models that the server lists."""
    site = Site.of(site)
    endpoint = site.endpoint
    listed = _json(site, "GET", "/v1/models").get("data")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and entry.get("id") for entry in listed):
        raise _no_vllm(endpoint, "its /v1/models lists no models")
    return [
        Model(str(entry["id"]), int(entry.get("max_model_len") or 0), bool(entry.get("parent"))) for entry in listed
    ]


def check_completion(
    site: Site | str, model: str, *, streamed: bool, timeout_s: float = _LONG_S, api: Api = Api.COMPLETIONS,
) -> None:
    """Ask for a few tokens and prove that their ids come back, as many as the server says it made."""
    site = Site.of(site)
    endpoint = site.endpoint
    drawn = {"max_tokens": _TOKENS, "min_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
    body: dict[str, Any] = {"model": model}
    if api is Api.COMPLETIONS:
        body |= {"prompt": _PROMPT, **drawn, "return_token_ids": True}
    else:
        body |= {"token_ids": _PROMPT, "sampling_params": {**drawn, "detokenize": False}}
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        answer = _request(site, "POST", api.path, body, timeout_s)
    except ServerUnsuitable as error:
        if api is Api.GENERATE:
            error.remedy = f"vLLM offers {api.path} with --enable-scale-out; --api=completions needs no option"
        raise
    documents = _events(site, answer) if streamed else [_decoded(site, api.path, answer)]
    tokens: list[int] = []
    usage: Mapping[str, Any] = {}
    try:
        for document in documents:
            for choice in document.get("choices") or []:
                tokens += choice.get("token_ids") or []
            usage = document.get("usage") or usage
        counted = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    except (AttributeError, TypeError) as error:
        raise _no_vllm(endpoint, "its completion is not in the OpenAI format") from error
    kind = "a streamed completion" if streamed else "a completion"
    if not tokens:
        raise ServerUnsuitable(
            f"the server at {endpoint} does not return token ids", cause=f"{kind} with return_token_ids has none",
            remedy="serve with vLLM 0.10.2 or newer: without ids, tokens could only be guessed from text",
        )
    if len(tokens) != _TOKENS or counted != (len(_PROMPT), _TOKENS):
        raise ServerUnsuitable(
            f"the server at {endpoint} does not count tokens exactly",
            cause=f"{kind} of {_TOKENS} tokens to a prompt of {len(_PROMPT)} listed {len(tokens)} ids and reported "
            f"{counted[1]} tokens to a prompt of {counted[0]}",
            remedy="point --api_server at vLLM itself, not at a proxy that changes requests",
        )


def check_vocabulary(server: ServerRecord, model: ModelRecord) -> None:
    """Prove that the server reads token ids as the tokenizer of `model` does: that it can be that model at all.

    Ids from all over the vocabulary are turned into text by both; letters and digits are compared, because spaces and
    broken characters depend on options of the decoder. Raises ServerUnsuitable when they differ. A server that is no
    vLLM cannot be asked; its record says so (`unchecked`).
    """
    if not server.version:
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model.path) / "tokenizer.json"))
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ids = list(range(0, size, max(1, size // _SPREAD)))
    ours = tokenizer.decode(ids, skip_special_tokens=False)
    body = {"model": server.model_name, "tokens": ids}
    site = sites_of(server)[0]
    try:
        answer = _request(site, "POST", "/detokenize", body, _SHORT_S)
        theirs = str(_decoded(site, "/detokenize", answer).get("prompt"))
    except ServerUnsuitable as error:
        theirs = error.cause
    if _letters(ours) != _letters(theirs):
        raise ServerUnsuitable(
            f"the server at {server.endpoint} does not serve {model.name}",
            cause=f"it reads token ids {ids[1]}, {ids[2]}, {ids[3]}, ... in another way than that model's tokenizer",
            remedy=f"name the model it serves with --vllm_model_name (a hub id or a folder), and its dataset with "
            f"--dataset_path; or serve {model.path}",
        )


def _letters(text: str) -> str:
    return "".join(character for character in text if character.isalnum())


def _version(site: Site) -> str:
    """Return the version of vLLM, empty where the server has none to tell.

    Gateways answer a path that they do not know with any status, or with a page: what is wrong with the server itself
    shows in its /v1/models.
    """
    try:
        version = _json(site, "GET", "/version").get("version")
    except ServerUnsuitable as error:
        if _NO_HTTP in error.cause:
            raise
        return ""
    return version if isinstance(version, str) else ""


def _chosen(endpoint: str, name: str, models: list[Model]) -> Model:
    names = [model.name for model in models]
    for model in models:
        if model.name == name:
            return model
    if name:
        raise ServerUnsuitable(f"the server at {endpoint} does not serve {name}", cause=f"it serves {', '.join(names)}",
                               remedy=nearest(name, names) + "\n--vllm_model_name says which model is measured")
    own = [model for model in models if not model.adapter]
    if len(own) != 1:
        raise ServerUnsuitable(f"the server at {endpoint} serves {len(own)} models: {', '.join(names)}",
                               remedy="say which one with --vllm_model_name")
    return own[0]


def _prefix_caching_is_known(site: Site) -> bool:
    """Refuse a server that says it caches prefixes; tell whether another says anything of it."""
    try:
        text = _request(site, "GET", "/metrics", None, _SHORT_S).decode(errors="replace")
    except (ServerUnreachable, ServerUnsuitable):
        return False
    said = re.search(r'^vllm:cache_config_info\{[^}]*enable_prefix_caching="(\w+)"', text, re.MULTILINE)
    if said and said[1] == "True":
        raise ServerUnsuitable(
            f"the server at {site.endpoint} caches prompt prefixes",
            cause="MLPerf's rules forbid to reuse anything between queries (inference_rules, Caching)",
            remedy="start it with --no-enable-prefix-caching",
        )
    return said is not None


# --- HTTP ------------------------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """Where and how a server is asked: its base URL, the file of certificates that it is checked against, its key."""

    endpoint: str
    ca_file: str = ""
    access: Access = Access()

    @classmethod
    def of(cls, where: Site | str) -> Site:
        return cls(where) if isinstance(where, str) else where

    def target(self, path: str) -> str:
        """Return the path of a request to the server's `path`."""
        return path if self.endpoint.startswith("unix:") else urlsplit(self.endpoint).path + path

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is not made yet. Raises UsageError when the certificates cannot be read."""
        parts = urlsplit(self.endpoint)
        if parts.scheme == "unix":
            return _UnixConnection(parts.path, timeout_s)
        if parts.scheme == "http":
            return http.client.HTTPConnection(host_of(self.endpoint), parts.port, timeout=timeout_s)
        tls = ssl.create_default_context()
        if self.ca_file:
            try:
                tls.load_verify_locations(self.ca_file)
            except OSError as error:
                raise UsageError(f"cannot read the certificates in {self.ca_file}", cause=error.strerror or str(error),
                                 remedy="give a file of PEM certificates with --api_server_ca") from error
        return http.client.HTTPSConnection(host_of(self.endpoint), parts.port, timeout=timeout_s, context=tls)


def sites_of(server: ServerRecord) -> list[Site]:
    """Return all servers of a record."""
    return [Site(endpoint, server.ca_file, server.access) for endpoint in server.endpoints]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _json(site: Site, method: str, path: str) -> Mapping[str, Any]:
    return _decoded(site, path, _request(site, method, path, None, _SHORT_S))


def _decoded(site: Site, path: str, answer: bytes) -> Mapping[str, Any]:
    try:
        value = json_of(answer)
    except ValueError as error:
        begin = site.access.hidden(answer.decode(errors="replace"))[:60]
        raise _no_vllm(site.endpoint, f"its {path} is not JSON: {begin!r}") from error
    if not isinstance(value, dict):
        raise _no_vllm(site.endpoint, f"its {path} is not a JSON object")
    return value


def _events(site: Site, answer: bytes) -> list[Mapping[str, Any]]:
    data = [line[5:].strip() for line in answer.splitlines() if line.startswith(b"data:")]
    if not data or data[-1] != b"[DONE]":
        raise _no_vllm(site.endpoint, "its streamed completion does not end with data: [DONE]")
    return [_decoded(site, "/v1/completions", event) for event in data[:-1]]


def _request(site: Site, method: str, path: str, body: Any, timeout_s: float) -> bytes:
    """Return the body of a 200 answer. Raises ServerUnreachable, ServerUnsuitable."""
    endpoint = site.endpoint
    headers = site.access.headers()
    connection = site.connect(timeout_s)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, site.target(path), data, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        answer = response.read()
    except ssl.SSLError as error:
        raise ServerUnreachable(
            f"no TLS connection to {endpoint}",
            cause=getattr(error, "verify_message", "") or error.reason or str(error),
            remedy="name the file of its certificate's authority with --api_server_ca=FILE, or give a http:// address "
            "if the server has no certificate",
        ) from error
    except TimeoutError as error:
        raise ServerUnreachable(f"{endpoint} does not answer {path}", cause=f"nothing came within {timeout_s:.0f} s",
                                remedy="look at the server's log, or wait until it has started") from error
    except OSError as error:
        raise ServerUnreachable(f"nothing answers at {endpoint}", cause=error.strerror or str(error),
                                remedy="start the server first, or correct --api_server") from error
    except http.client.HTTPException as error:
        raise _no_vllm(endpoint, f"{_NO_HTTP}: {type(error).__name__}") from error
    finally:
        connection.close()
    if response.status in (401, 403):
        raise refused(endpoint, path, response.status, site.access)
    if response.status in _REDIRECTS:
        where = urlsplit(response.headers.get("Location", ""))
        # Without user names and queries, which may hold a secret.
        target = (f"{where.scheme}://" if where.scheme else "") + where.netloc.rpartition("@")[2] + where.path
        raise ServerUnsuitable(
            f"the server at {endpoint} redirects its {path}", cause=f"to {site.access.hidden(target)}; redirects are "
            "not followed: a key and prompts would go to an address that nobody named",
            remedy="name the address that answers itself with --api_server, if you trust it")
    if response.status != 200:
        raise _no_vllm(endpoint, f"its {path} answers HTTP {response.status} {site.access.hidden(_message(answer))}")
    return answer


_NO_HTTP = "it does not speak HTTP"
_REDIRECTS = (301, 302, 303, 307, 308)


def _message(answer: bytes) -> str:
    text = answer[:300].decode(errors="replace")
    found = re.search(r'"message":\s*"((?:[^"\\]|\\.)*)', text)
    return found[1] if found else text.splitlines()[0][:80] if text.strip() else ""


def _no_vllm(endpoint: str, cause: str) -> ServerUnsuitable:
    return ServerUnsuitable(f"what answers at {endpoint} is not a server that can be measured", cause=cause.strip(),
                            remedy="point --api_server at a `vllm serve` process")

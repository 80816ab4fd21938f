"""A server's address, and a single HTTP request to it, for all requests before and beside a run."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError
from cm4vllm.common.files import json_of, opened
from cm4vllm.serving.records import ServerRecord, host_of
from cm4vllm.serving.server_access import Access, refused
from cm4vllm.serving.server_places import require_distinct_addresses

__all__ = [
    "LONG_S",
    "NO_HTTP",
    "Site",
    "ask",
    "base_url",
    "base_urls",
    "choices_of",
    "decoded",
    "events_of",
    "not_measurable",
    "request",
    "said",
    "sites_of",
    "trusted",
    "usage_of",
]

#: Seconds for an answer of a few tokens: a large model that has just started compiles and allocates for its first one.
LONG_S = 120.0
#: Bytes of an answer that are read at most.
_MOST_BYTES = 1 << 26
#: The begin of the cause where what answers is no HTTP.
NO_HTTP = "it does not speak HTTP"
_REDIRECTS = (301, 302, 303, 307, 308)


def base_urls(text: str) -> list[str]:
    """Return the base URLs of several servers, separated by commas.

    Raises UsageError when one is no address, and when two are one place.
    """
    urls = [base_url(part) for part in text.split(",")]
    require_distinct_addresses(urls)
    return urls


def base_url(text: str) -> str:
    """Return a server's base URL: scheme, host, port, and the path that its /v1 is below, where there is one.

    Takes what people have at hand: host:port, a URL, a URL that ends in /v1 or in a path of the API below it,
    unix:///path of a Unix socket. Raises UsageError when `text` is no address.
    """
    url = text.strip()
    if url.startswith("unix:"):
        return _unix_url(text, url)
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not the address of a server", cause=str(error), remedy=_EXAMPLE) from error
    if port == 0 or any(sign.isspace() for sign in parts.netloc):
        raise UsageError(
            f"{text!r} is not the address of a server",
            remedy=_EXAMPLE,
            cause="a server has no port 0, and no name with spaces",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{text!r} is not the address of a server",
            cause="its scheme is neither http, https nor unix",
            remedy=_EXAMPLE,
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "the server's address contains more than host, port and path",
            cause="credentials and queries are not sent, and would be written to records",
            remedy=f"{_EXAMPLE}; a key is given in "
            "an environment variable (VLLM_API_KEY, or the one that --api_key_env names)",
        )
    shown_port = f":{port}" if port is not None else ""
    return f"{parts.scheme}://{_host(parts.hostname)}{shown_port}{_prefix(parts.path)}"


def _unix_url(text: str, url: str) -> str:
    path = url.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/"):
        raise UsageError(
            f"{text!r} is not the address of a Unix socket",
            cause="it needs an absolute path",
            remedy="give it as --api_server=unix:///run/vllm.sock",
        )
    return f"unix://{path}"


def _host(name: str) -> str:
    """Return a host as a URL has it: an IPv6 address in brackets, with its zone."""
    if ":" not in name:
        return name
    address, zone, interface = name.replace("%25", "%").partition("%")
    return f"[{address}{'%25' if zone else ''}{interface}]"


def _prefix(path: str) -> str:
    """Return what a URL's path has before the paths of the API; a server without a prefix has an empty one."""
    path = path.rstrip("/")
    for known in _API_PATHS:
        if path == known or path.endswith(known):
            path = path.removesuffix(known).rstrip("/")
            break
    return quote(path, safe="/%:@!$&'()*+,;=~")


#: Paths of the API that people copy together with the address.
_API_PATHS = ("/v1/chat/completions", "/v1/audio/transcriptions", "/v1/completions", "/v1/models", "/v1")
_EXAMPLE = "give it as --api_server=http://localhost:8000"


class Site(NamedTuple):
    """Access to a server: its base URL, the file of certificates that it is checked against, its key."""

    endpoint: str
    ca_file: str = ""
    access: Access = Access()

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
        tls = trusted(self.ca_file)
        return http.client.HTTPSConnection(host_of(self.endpoint), parts.port, timeout=timeout_s, context=tls)


def trusted(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts the system's certificates and those of `ca_file`. Raises UsageError."""
    tls = ssl.create_default_context()
    if ca_file:
        try:
            with opened(Path(ca_file)):
                tls.load_verify_locations(ca_file)
        except OSError as error:
            raise UsageError(
                f"cannot read the certificates in {ca_file}",
                cause=error.strerror or str(error),
                remedy="give a file of PEM certificates with --api_server_ca",
            ) from error
    return tls


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


def decoded(site: Site, path: str, answer: bytes) -> Mapping[str, Any]:
    """Return an answer that is a JSON object. Raises ServerUnsuitable."""
    try:
        value = json_of(answer)
    except ValueError as error:
        begin = site.access.hidden(answer.decode(errors="replace"))[:60]
        raise not_measurable(site.endpoint, f"its {path} is not JSON: {begin!r}") from error
    if not isinstance(value, dict):
        raise not_measurable(site.endpoint, f"its {path} is not a JSON object")
    return value


def events_of(site: Site, path: str, answer: bytes) -> tuple[list[Mapping[str, Any]], bool]:
    """Return the documents of a stream's events, and whether it ends with [DONE]. Raises ServerUnsuitable."""
    data = [line[5:].strip() for line in answer.splitlines() if line.startswith(b"data:")]
    done = data[-1:] == [b"[DONE]"]
    return [decoded(site, path, event) for event in (data[:-1] if done else data)], done


def choices_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the choices of an answer or of an event; none where it has no list of them."""
    choices = document.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def usage_of(documents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last usage that an answer's documents state; empty where they state none."""
    stated = [document["usage"] for document in documents if isinstance(document.get("usage"), dict)]
    return stated[-1] if stated else {}


def ask(
    site: Site, method: str, path: str, body: Any, timeout_s: float, *, content_type: str = "application/json"
) -> tuple[int, bytes]:
    """Return status and body of a server's answer to a JSON document, or to bytes of another content type.

    Raises ServerUnreachable; ServerUnsuitable where what comes is no HTTP, or a redirect, or asks for a key.
    """
    headers = site.access.headers()
    connection = site.connect(timeout_s)
    with _translated_errors(site.endpoint, path, timeout_s), closing(connection):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, site.target(path), data, {"Content-Type": content_type, **headers})
        response = connection.getresponse()
        answer = response.read(_MOST_BYTES)
        if response.length:
            raise http.client.IncompleteRead(answer, response.length)
    if response.status in (401, 403):
        raise refused(site.endpoint, path, response.status, site.access)
    if response.status in _REDIRECTS:
        raise _redirected(site, path, response.headers.get("Location", ""))
    return response.status, answer


@contextmanager
def _translated_errors(endpoint: str, path: str, timeout_s: float) -> Iterator[None]:
    """Turn the errors of a connection into ServerUnreachable, or ServerUnsuitable where the answer is no HTTP."""
    try:
        yield
    except ssl.SSLError as error:
        raise ServerUnreachable(
            f"no TLS connection to {endpoint}",
            cause=getattr(error, "verify_message", "") or error.reason or str(error),
            remedy="name the file of its certificate's authority with --api_server_ca=FILE, or give a http:// address "
            "if the server has no certificate",
        ) from error
    except TimeoutError as error:
        raise ServerUnreachable(
            f"{endpoint} does not answer {path}",
            cause=f"no answer within {timeout_s:.0f} s",
            remedy="read the server's log, or wait until it has started",
        ) from error
    except OSError as error:
        raise ServerUnreachable(
            f"nothing answers at {endpoint}",
            cause=error.strerror or str(error),
            remedy="start the server first, or correct --api_server",
        ) from error
    except http.client.HTTPException as error:
        raise not_measurable(endpoint, f"{NO_HTTP}: {type(error).__name__}") from error


def _redirected(site: Site, path: str, location: str) -> ServerUnsuitable:
    """Return the error for a redirect; it names the target without user name and query, which may be secret."""
    where = urlsplit(location)
    target = (f"{where.scheme}://" if where.scheme else "") + where.netloc.rpartition("@")[2] + where.path
    return ServerUnsuitable(
        f"the server at {site.endpoint} redirects its {path}",
        cause=f"to {site.access.hidden(target)}; redirects are "
        "not followed: the key and prompts would go to an address that you did not name",
        remedy="give the final address with --api_server, if you trust it",
    )


def request(site: Site, method: str, path: str, body: Any, timeout_s: float) -> bytes:
    """Return the body of a 200 answer. Raises ServerUnreachable, ServerUnsuitable."""
    status, answer = ask(site, method, path, body, timeout_s)
    if status != 200:
        raise not_measurable(site.endpoint, f"its {path} answers HTTP {status} {said(site, answer)}")
    return answer


def said(site: Site, answer: bytes) -> str:
    """Return the words of an answer that is an error, as far as they can be shown."""
    text = answer[:2000].decode(errors="replace")
    match = re.search(r'"(?:message|detail)":\s*"((?:[^"\\]|\\.)*)', text)
    words = match[1] if match else text.splitlines()[0] if text.strip() else ""
    return site.access.hidden(words)[:300]


def not_measurable(endpoint: str, cause: str) -> ServerUnsuitable:
    """Return the error for what answers and is no server of this kind."""
    return ServerUnsuitable(
        f"what answers at {endpoint} is not a server that can be measured",
        cause=cause.strip(),
        remedy="point --api_server at a server of OpenAI's completions API, such as `vllm serve`, "
        "with the path that stands before its /v1",
    )

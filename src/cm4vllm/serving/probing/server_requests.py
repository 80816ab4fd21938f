"""A server's address, and a single HTTP request to it, for all requests before and beside a run.

Two addresses that lead to one place are one server. Answers to a probe are read as the client reads those of a run, and
refused for the same reasons.
"""

import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import combinations
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import psutil

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import ServerUnsuitable, UsageError
from cm4vllm.common.host_addresses import host_of, is_address, is_loopback
from cm4vllm.common.http_requests import LATER, REDIRECTS, Answer, HttpClient
from cm4vllm.common.progress import say
from cm4vllm.records.access import Access
from cm4vllm.records.server import Dialect, Prompts, ServerRecord
from cm4vllm.serving.answers import id_answers
from cm4vllm.serving.answers.admission import admission_limits, higher_limits
from cm4vllm.serving.answers.event_stream import AnswerError
from cm4vllm.serving.answers.stated import AnswerLimits, Stated
from cm4vllm.serving.answers.text_answers import TextAnswer, TextReader, whole_text
from cm4vllm.serving.probing.server_access import (
    Unanswered,
    not_measurable,
    refusal,
    require_plain_http,
    tls_context,
    translated_errors,
)

#: Seconds for an answer of a few tokens: a large model that has just started compiles and allocates for its first one.
LONG_S = 120.0
#: Seconds for which a server that answers "not now" is asked again: a gateway may give one 503 for a moment.
PATIENCE_S = 60.0
#: The same for a page that a server need not have: some gateways answer every path that they do not know with a 503.
OPTIONAL_S = 10.0
#: Statuses of a request whose path, form or parameters a server does not support, and of one that it fails at.
REFUSED = frozenset({400, 404, 405, 410, 415, 422, 501, HTTPStatus.INTERNAL_SERVER_ERROR})
#: Seconds between tries, the last of them from then on; and the number of tries after which waiting is said.
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SAID_AFTER = 3


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
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(
                f"{text!r} is not the address of a Unix socket",
                cause="it needs an absolute path",
                remedy="give it as --api_server=unix:///run/vllm.sock",
            )
        return f"unix://{path}"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
        if port == 0 or any(sign.isspace() for sign in parts.netloc):
            raise ValueError("a server has no port 0, and no name with spaces")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("its scheme is neither http, https nor unix")
    except ValueError as error:
        raise UsageError(f"{text!r} is not the address of a server", cause=str(error), remedy=_EXAMPLE) from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "the server's address contains more than host, port and path",
            cause="credentials and queries are not sent, and would be written to records",
            remedy=f"{_EXAMPLE}; a key is given in "
            "an environment variable (VLLM_API_KEY, or the one that --api_key_env names)",
        )
    address, zone, interface = parts.hostname.replace("%25", "%").partition("%")
    host = f"[{address}{'%25' if zone else ''}{interface}]" if ":" in parts.hostname else parts.hostname
    # What the path has before those of the API; a server without a prefix has none.
    path = parts.path.rstrip("/")
    known = next(filter(path.endswith, _API_PATHS), "")
    prefix = quote(path.removesuffix(known).rstrip("/"), safe="/%:@!$&'()*+,;=~")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{prefix}"


#: Paths of the API that people copy together with the address.
_API_PATHS = ("/v1/chat/completions", "/v1/audio/transcriptions", "/v1/completions", "/v1/models", "/v1")
_EXAMPLE = "give it as --api_server=http://localhost:8000"


class Site(NamedTuple):
    """Access to a server: its base URL, the file of certificates that it is checked against, its key.

    `patience_s` is for how many seconds it is asked again while it answers "not now"; None is PATIENCE_S.
    """

    endpoint: str
    ca_file: str = ""
    access: Access = Access()
    patience_s: float | None = None

    def target(self, path: str) -> str:
        """Return the path of a request to the server's `path`."""
        return path if self.endpoint.startswith("unix:") else urlsplit(self.endpoint).path + path

    def url(self, path: str) -> str:
        """Return the URL of the server's `path`; of a Unix socket, one that goes to it whatever host it names."""
        return f"http://localhost{path}" if self._unix_socket else f"{self.endpoint}{path}"

    def client(self) -> HttpClient:
        """Return a client whose requests go straight to the server. Raises UsageError for unreadable certificates."""
        is_tls = self.endpoint.startswith("https:")
        return HttpClient(unix_socket=self._unix_socket, tls=tls_context(self.ca_file) if is_tls else None)

    @property
    def _unix_socket(self) -> str:
        return urlsplit(self.endpoint).path if self.endpoint.startswith("unix:") else ""


def sites_of(server: ServerRecord) -> list[Site]:
    """Return all servers of a record."""
    return [Site(endpoint, server.ca_file, server.access) for endpoint in server.endpoints]


def json_object(site: Site, path: str, answer: bytes) -> Mapping[str, Any]:
    """Return an answer that is a JSON object. Raises ServerUnsuitable."""
    try:
        value = json_of(answer)
    except ValueError as error:
        begin = site.access.without_secrets(answer.decode(errors="replace"))[:60]
        raise not_measurable(site.endpoint, f"its {path} is not JSON: {begin!r}") from error
    if not isinstance(value, dict):
        raise not_measurable(site.endpoint, f"its {path} is not a JSON object")
    return value


def ask(
    site: Site, method: str, path: str, body: Any, timeout_s: float, *, content_type: str = "application/json"
) -> tuple[int, bytes]:
    """Return status and body of a server's answer to a JSON document, or to bytes of another content type.

    What is answered with "not now" (LATER) is asked again for the site's `patience_s`, an internal error once. A
    request without a body follows redirects on the server itself. Raises ServerUnreachable where nothing answers;
    Unanswered where the server asks for a key, is not ready in that time, redirects elsewhere, or where what comes is
    no HTTP.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = site.access.headers() | ({} if body is None else {"Content-Type": content_type})
    end, asked, again = time.monotonic() + (PATIENCE_S if site.patience_s is None else site.patience_s), 0, True
    with site.client() as client:
        while again:
            with translated_errors(site.endpoint, path, timeout_s, site.ca_file):
                answer = client.answer(method, site.url(path), headers=headers, body=data, total_s=timeout_s)
            asked += 1
            again = _asked_again(site, path, answer, asked, end)
    if answer.status in (401, 403):
        raise refusal(site.endpoint, path, answer.status, site.access)
    if answer.status in LATER:
        raise _not_now(site, path, answer, asked)
    if answer.status in REDIRECTS:
        # Named without user name and query, which may be secret.
        where = urlsplit(answer.headers.get("location", ""))
        target = (f"{where.scheme}://" if where.scheme else "") + where.netloc.rpartition("@")[2] + where.path
        raise Unanswered(
            f"the server at {site.endpoint} redirects its {path}",
            cause=f"to {site.access.without_secrets(target)}; a request with a key or a prompt is not sent to another "
            "address than the one that you named, and one with a prompt follows no redirect at all",
            remedy="give the final address with --api_server, if you trust it",
        )
    if answer.status == HTTPStatus.BAD_REQUEST and body is None:
        require_plain_http(site.endpoint)
    return answer.status, answer.body


def _not_now(site: Site, path: str, answer: Answer, asked: int) -> Unanswered:
    """Return the error for a server that has answered so often that it takes no request now."""
    times, words = "once" if asked == 1 else f"{asked} times, the last time", error_words(site, answer.body)
    cause = f"its {path} answered {times} with HTTP {answer.status} {words}".strip()
    remedy = (
        "wait until it has loaded its model and is free, and run again; the log of the server, or of the gateway in "
        "front of it, says more"
    )
    if limits := admission_limits([words]):
        cause += f"\nits admission control rejects requests ({limits})"
        remedy = f"{higher_limits(limits)}; or wait until it is free, and run again"
    return Unanswered(
        f"the server at {site.endpoint} is not ready, or has too many requests", cause=cause, remedy=remedy
    )


def _asked_again(site: Site, path: str, answer: Answer, asked: int, end: float) -> bool:
    """Wait before the next try, and tell whether there is one: `asked` were made, the last begins before `end`."""
    if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR and asked == 1:
        time.sleep(_PAUSES_S[0])
        return True
    left = end - time.monotonic()
    if answer.status not in LATER or left <= 0:
        return False
    wished = answer.headers.get("retry-after", "")
    pause = max(_PAUSES_S[min(asked, len(_PAUSES_S)) - 1], float(wished) if re.fullmatch(r"[0-9]{1,6}", wished) else 0)
    if asked == _SAID_AFTER:
        say(f"{site.endpoint} answers HTTP {answer.status} to {path}: asked again for {left:.0f} s")
    time.sleep(min(pause, left))
    return True


def request(site: Site, method: str, path: str, body: Any, timeout_s: float) -> bytes:
    """Return the body of a 200 answer. Raises as `ask` does, and ServerUnsuitable for another status."""
    status, answer = ask(site, method, path, body, timeout_s)
    if status != 200:
        raise not_measurable(site.endpoint, f"its {path} answers HTTP {status} {error_words(site, answer)}")
    return answer


def error_words(site: Site, answer: bytes) -> str:
    """Return the words of an answer that is an error, as far as they can be shown."""
    text = answer[:2000].decode(errors="replace")
    match = re.search(r'"(?:message|detail)":\s*"((?:[^"\\]|\\.)*)', text)
    return site.access.without_secrets(match[1] if match else text.splitlines()[0] if text.strip() else "")[:300]


#: The remedy where one server is given at two addresses.
ONCE = "name each server once: two addresses of one server would count as two servers"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def require_distinct_addresses(urls: Sequence[str], *, resolved: bool = False) -> None:
    """Raise UsageError for base URLs of which two lead to one place.

    Names of other machines are compared as they are written, or by their addresses where they are to be `resolved`.
    """
    places = {url: set(_places(url, resolved=resolved)) for url in urls}
    if twice := next((url for url in urls if urls.count(url) > 1), ""):
        raise UsageError(f"{twice} is given twice", remedy=ONCE)
    for first, second in combinations(urls, 2):
        if shared := places[first] & places[second]:
            raise UsageError(
                f"{first} and {second} are one server, given twice", cause=f"both lead to {min(shared)}", remedy=ONCE
            )


def _places(url: str, *, resolved: bool) -> Iterator[str]:
    """Yield the places that a base URL leads to: a socket's file, or addresses with port and path."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        yield os.path.realpath(parts.path)
        return
    host, port = host_of(url), parts.port or _DEFAULT_PORTS[parts.scheme]
    addresses = {host.lower()}
    if resolved or is_address(host) or is_loopback(host):
        with suppress(OSError):
            addresses = {str(known[4][0]) for known in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=0)}
    listeners = _listeners(port) if resolved else set()
    for address in addresses:
        yield f"{_place(address, listeners)} port {port}{parts.path}"


def _place(address: str, listeners: set[str]) -> str:
    """Return an address in one spelling; that of this machine where a server listens at all of its addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    if parsed.is_unspecified:  # a connection to it goes to the loopback address
        parsed = ipaddress.ip_address("127.0.0.1" if parsed.version == 4 else "::1")
    addresses = {address.address.partition("%")[0] for part in psutil.net_if_addrs().values() for address in part}
    own = parsed.is_loopback or str(parsed) in addresses
    listens_there = str(parsed) in listeners or not any(ipaddress.ip_address(at).is_unspecified for at in listeners)
    return str(parsed) if not own or listens_there else "this machine"


def _listeners(port: int) -> set[str]:
    """Return the addresses of this machine at which something listens on a port; none where that is not shown."""
    with suppress(OSError, psutil.Error):
        return {
            known.laddr.ip
            for known in psutil.net_connections("tcp")
            if known.status == psutil.CONN_LISTEN and known.laddr and known.laddr.port == port
        }
    return set()


def words_of(site: Site, error: AnswerError) -> str:
    """Return why an answer cannot be counted, with its numbers."""
    return site.access.without_secrets(f"{error}: {error.detail}" if error.detail else str(error))


def read_ids(site: Site, body: bytes, limits: AnswerLimits, prompt_tokens: int, *, streamed: bool) -> id_answers.Answer:
    """Return an answer that lists token ids. Raises AnswerError; ServerUnsuitable where it came from a cache."""
    reader = id_answers.StreamReader()
    if streamed:
        reader.feed(body)
    answer = reader.finish(prompt_tokens, limits) if streamed else id_answers.whole_answer(body, prompt_tokens, limits)
    _require_uncached(site, answer.stated)
    return answer


def read_text(site: Site, body: bytes, prompts: Prompts, *, streamed: bool) -> tuple[TextAnswer, bool]:
    """Return an answer in text, whatever it counts, and whether its stream ends with [DONE].

    Raises ServerUnsuitable.
    """
    dialect = Dialect(prompts=prompts, done=False)
    reader = TextReader(dialect)
    try:
        if streamed:
            reader.feed(body)
        answer = reader.finish(0, None) if streamed else whole_text(body, 0, None, dialect)
    except AnswerError as error:
        kind = "a streamed answer" if streamed else "an answer"
        raise not_measurable(site.endpoint, f"{kind}: {words_of(site, error)}") from error
    _require_uncached(site, answer.stated)
    return answer, reader.done or not streamed


def _require_uncached(site: Site, stated: Stated) -> None:
    """Raise ServerUnsuitable for an answer to a prompt that was in part read from a cache."""
    if stated.cached_tokens:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} caches prompt prefixes",
            cause=f"its usage says that {stated.cached_tokens:,} prompt tokens came from a cache (cached_tokens); "
            "MLPerf's rules forbid reuse of results between queries (inference_rules, Caching)",
            remedy="start it without: vLLM with --no-enable-prefix-caching, SGLang with --disable-radix-cache",
        )

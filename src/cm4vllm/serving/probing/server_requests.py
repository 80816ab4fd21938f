"""A server's address, and a single HTTP request to it, for all requests before and beside a run."""

import json
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import UsageError
from cm4vllm.common.http_requests import LATER, REDIRECTS, Answer, HttpClient
from cm4vllm.common.progress import say
from cm4vllm.records.access import Access
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.probing.connection_errors import require_plain_http, translated_errors, trusted
from cm4vllm.serving.probing.server_access import Unanswered, not_measurable, refused
from cm4vllm.serving.probing.server_places import require_distinct_addresses

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
        tls = trusted(self.ca_file) if self.endpoint.startswith("https:") else None
        return HttpClient(unix_socket=self._unix_socket, tls=tls)

    @property
    def _unix_socket(self) -> str:
        return urlsplit(self.endpoint).path if self.endpoint.startswith("unix:") else ""


def sites_of(server: ServerRecord) -> list[Site]:
    """Return all servers of a record."""
    return [Site(endpoint, server.ca_file, server.access) for endpoint in server.endpoints]


def decoded(site: Site, path: str, answer: bytes) -> Mapping[str, Any]:
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
    end = time.monotonic() + (PATIENCE_S if site.patience_s is None else site.patience_s)
    with site.client() as client:
        for asked in count(1):
            with translated_errors(site.endpoint, path, timeout_s, site.ca_file):
                answer = client.answer(method, site.url(path), headers=headers, body=data, total_s=timeout_s)
            if not _asked_again(site, path, answer, asked, end):
                break
    if answer.status in (401, 403):
        raise refused(site.endpoint, path, answer.status, site.access)
    if answer.status in LATER:
        raise _not_now(site, path, answer, asked)
    if answer.status in REDIRECTS:
        raise _redirected(site, path, answer.headers.get("location", ""))
    if answer.status == HTTPStatus.BAD_REQUEST and body is None:
        require_plain_http(site.endpoint)
    return answer.status, answer.body


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


def _not_now(site: Site, path: str, answer: Answer, asked: int) -> Unanswered:
    times = "once" if asked == 1 else f"{asked} times, the last time"
    return Unanswered(
        f"the server at {site.endpoint} is not ready, or has too many requests",
        cause=f"its {path} answered {times} with HTTP {answer.status} {said(site, answer.body)}".strip(),
        remedy="wait until it has loaded its model and is free, and run again; the log of the server, or of the "
        "gateway in front of it, says more",
    )


def _redirected(site: Site, path: str, location: str) -> Unanswered:
    """Return the error for a redirect; it names the target without user name and query, which may be secret."""
    where = urlsplit(location)
    target = (f"{where.scheme}://" if where.scheme else "") + where.netloc.rpartition("@")[2] + where.path
    return Unanswered(
        f"the server at {site.endpoint} redirects its {path}",
        cause=f"to {site.access.without_secrets(target)}; a request with a key or a prompt is not sent to another "
        "address than the one that you named, and one with a prompt follows no redirect at all",
        remedy="give the final address with --api_server, if you trust it",
    )


def request(site: Site, method: str, path: str, body: Any, timeout_s: float) -> bytes:
    """Return the body of a 200 answer. Raises as `ask` does, and ServerUnsuitable for another status."""
    status, answer = ask(site, method, path, body, timeout_s)
    if status != 200:
        raise not_measurable(site.endpoint, f"its {path} answers HTTP {status} {said(site, answer)}")
    return answer


def said(site: Site, answer: bytes) -> str:
    """Return the words of an answer that is an error, as far as they can be shown."""
    text = answer[:2000].decode(errors="replace")
    match = re.search(r'"(?:message|detail)":\s*"((?:[^"\\]|\\.)*)', text)
    words = match[1] if match else text.splitlines()[0] if text.strip() else ""
    return site.access.without_secrets(words)[:300]

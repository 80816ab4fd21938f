"""HTTP requests with bounds, for all but the requests that are measured: the bytes of an answer and the time for it.

One deadline holds over all of an answer, from the connection to the last byte: a server that sends a byte now and then
cannot hold a caller. For a download, which may take hours, the time begins again with each piece that came. Answers are
asked for as they are, not compressed. The library's own errors never leave this module.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from cm4vllm.common.host_addresses import host_header, host_of, proxy_of, through_proxy, without_user
from cm4vllm.common.units import size_text

if TYPE_CHECKING:
    import httpcore2


#: Statuses that mean "not now": the same request may succeed later (RFC 9110, 15.5 and 15.6; RFC 6585; RFC 8470).
LATER = frozenset({408, 425, 429, 502, 503, 504})
#: Statuses whose Location may be followed (RFC 9110, 15.4).
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Bytes of an answer that are kept in memory at most. A page /metrics of vLLM has about 100 kB for each engine.
MOST_BYTES = 1 << 24
#: A download that gets fewer bytes than this in its time stands still.
PIECE_BYTES = 1 << 16
_MOST_REDIRECTS = 10
#: Characters of a path that stay as they are; others are written as %XX.
_KEPT = "/%:@!$&'()*+,;=~[]"
_PORTS = {"http": 80, "https": 443}


class AnswerError(ValueError):
    """An answer that cannot be used: it is too long, has no end in time, is compressed, or ends too early."""


class NoHttpError(AnswerError):
    """An answer that is not HTTP."""


class Follow(Enum):
    """The redirects that a request without a body follows; one with a body follows none.

    ORIGIN follows to the same scheme, host and port. ANYWHERE is for files with a known digest: another host gets no
    headers but the range.
    """

    NOWHERE = "nowhere"
    ORIGIN = "origin"
    ANYWHERE = "anywhere"


class Answer(NamedTuple):
    """A whole answer. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class OpenAnswer(NamedTuple):
    """An answer whose body is still to be read: `pieces` gives it, once, as it comes."""

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]


class HttpClient(AbstractContextManager["HttpClient"]):
    """Sends one request at a time and keeps its connections for the next ones; a context manager.

    `unix_socket` is the path of the socket that all requests go to, `tls` what https:// servers are checked against
    (without it no certificate is trusted). With `proxies` those that the environment names are used.
    """

    def __init__(self, *, unix_socket: str = "", tls: ssl.SSLContext | None = None, proxies: bool = False) -> None:
        """Take a Unix socket in place of TCP, TLS settings, and whether the proxies of the environment are used."""
        self._unix_socket = unix_socket
        self._tls = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._proxies = proxies
        self._deadline = _Deadline()
        self._pools: dict[str, httpcore2.ConnectionPool] = {}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next request makes a new one."""
        while self._pools:
            self._pools.popitem()[1].close()

    def answer(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        total_s: float,
        body: bytes | None = None,
        follow: Follow = Follow.ORIGIN,
        most_bytes: int | None = None,
    ) -> Answer:
        """Return a whole answer of at most `most_bytes` (MOST_BYTES), which may take `total_s` seconds.

        Raises TimeoutError where no answer has begun by then, AnswerError where the answer cannot be used, and OSError
        (also ssl.SSLError) for a connection.
        """
        most, whole = MOST_BYTES if most_bytes is None else most_bytes, bytearray()
        with self.opened(method, url, headers=headers, total_s=total_s, body=body, follow=follow) as opened:
            for piece in opened.pieces:
                whole += piece
                if len(whole) > most:
                    raise AnswerError(f"the answer is longer than {size_text(most)}")
        return Answer(opened.status, opened.headers, bytes(whole))

    @contextmanager
    def opened(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        total_s: float,
        body: bytes | None = None,
        follow: Follow = Follow.ORIGIN,
        renewed: bool = False,
    ) -> Iterator[OpenAnswer]:
        """Yield an answer whose body is read piece by piece. Raises as `answer` does, also while it is read.

        With `renewed` the time begins again whenever PIECE_BYTES have come. A body that is compressed though it was
        asked for as it is, is empty with an error's status, else refused.
        """
        self._deadline.at = time.monotonic() + total_s
        response, headers = self._send(method, url, headers, body, follow)
        try:
            encoding = headers.get("content-encoding", "").strip().lower()
            compressed = encoding not in ("", "identity")
            if compressed and 200 <= response.status < 300:
                raise AnswerError(f"the answer is compressed ({encoding[:40]}), and was asked for as it is")
            pieces = iter(()) if compressed else self._pieces(response, total_s, renewed=renewed)
            yield OpenAnswer(response.status, headers, pieces)
        finally:
            response.close()

    def _pieces(self, response: httpcore2.Response, total_s: float, *, renewed: bool) -> Iterator[bytes]:
        chunks, count = response.iter_stream(), 0
        while True:
            try:
                with _translated(""):
                    chunk = next(chunks, b"")
            except TimeoutError as error:
                cause = f"fewer than {size_text(PIECE_BYTES)} came" if renewed else "the answer has no end"
                raise AnswerError(f"{cause} within {total_s:.0f} s") from error
            if not chunk:
                return
            count += len(chunk)
            if renewed and count >= PIECE_BYTES:
                self._deadline.at, count = time.monotonic() + total_s, 0
            yield chunk

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, follow: Follow
    ) -> tuple[httpcore2.Response, dict[str, str]]:
        """Return the answer to a request, after redirects, and its headers."""
        for _ in range(_MOST_REDIRECTS):
            response, given = self._send_once(method, url, headers, body)
            target = urljoin(url, given.get("location", "")) if response.status in REDIRECTS else url
            same = _origin(target) == _origin(url)
            followed = follow is Follow.ANYWHERE or (follow is Follow.ORIGIN and same)
            if target == url or body is not None or not followed:
                return response, given
            response.close()
            url, headers = target, headers if same else {k: v for k, v in headers.items() if k.lower() == "range"}
        raise AnswerError(f"there are more than {_MOST_REDIRECTS} redirects, the last to {urlsplit(url).hostname}")

    def _send_once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[httpcore2.Response, dict[str, str]]:
        import httpcore2  # a tenth of a second, which only those who send a request pay for

        through = through_proxy(url) if self._proxies else ""
        with _translated(through):
            parts = _url_parts(url)
            sent = {
                "Host": host_header(url),
                "Accept-Encoding": "identity",
                **({} if body is None else {"Content-Length": str(len(body))}),
                **headers,
            }
            address = httpcore2.URL(
                scheme=parts.scheme,
                host=host_of(url).encode("idna" if not host_of(url).isascii() else "ascii"),
                port=parts.port or _PORTS[parts.scheme],
                target=quote(parts.path or "/", _KEPT) + (f"?{quote(parts.query, _KEPT + '?')}" if parts.query else ""),
            )
            request = httpcore2.Request(method, address, headers=list(sent.items()), content=body or b"")
            response = self._pool(proxy_of(url) if self._proxies else "").handle_request(request)
        return response, {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}

    def _pool(self, proxy: str) -> httpcore2.ConnectionPool:
        """Return the connections through a proxy, or direct ones. Raises ValueError for a proxy of an unknown kind."""
        import httpcore2

        if proxy not in self._pools:
            parts = urlsplit(proxy)
            auth = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
            self._pools[proxy] = httpcore2.ConnectionPool(
                ssl_context=self._tls,
                proxy=httpcore2.Proxy(without_user(proxy), auth=auth) if proxy else None,
                uds=self._unix_socket or None,
                network_backend=cast("httpcore2.NetworkBackend", _Backend(self._deadline)),
            )
        return self._pools[proxy]


@dataclass
class _Deadline:
    """The end of the time for an answer, in seconds of time.monotonic."""

    at: float = 0.0

    def left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Backend:
    """A backend of httpcore2 whose streams all end with one deadline.

    It has the methods of httpcore2.NetworkBackend and is no subclass, since that would be imported with this module.
    """

    def __init__(self, deadline: _Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any, **options: Any) -> _Stream:
        import httpcore2

        connected = httpcore2.SyncBackend().connect_tcp(host, port, self._deadline.left(), *more, **options)
        return _Stream(connected, self._deadline)

    def connect_unix_socket(self, path: str, timeout: float | None = None, *more: Any, **options: Any) -> _Stream:
        import httpcore2

        with socket.socket(socket.AF_UNIX) as trial:  # httpcore2 leaves a socket open that cannot be connected
            trial.settimeout(self._deadline.left())
            trial.connect(path)
        connected = httpcore2.SyncBackend().connect_unix_socket(path, self._deadline.left(), *more, **options)
        return _Stream(connected, self._deadline)


class _Stream:
    """A connection with the methods of httpcore2.NetworkStream, which takes the time of each from the deadline."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: _Deadline) -> None:
        self._stream, self._deadline = stream, deadline
        self._begun = False
        self.close = stream.close
        self.get_extra_info = stream.get_extra_info

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read; what begins otherwise than HTTP is refused at once: a parser would wait for the end of its line."""
        data = self._stream.read(max_bytes, self._deadline.left())
        if not self._begun and data[:5] != b"HTTP/"[: len(data)]:
            raise NoHttpError(f"it begins with {data[:20]!r}")
        self._begun = True
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write within what is left of the deadline."""
        self._stream.write(buffer, self._deadline.left())

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> _Stream:
        """Return the stream with TLS, agreed on within what is left of the deadline."""
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, self._deadline.left()), self._deadline)


def _url_parts(url: str) -> SplitResult:
    """Return the parts of a URL. Raises AnswerError for one that no request can go to, as a redirect may name."""
    try:
        parts = urlsplit(url)
        if parts.scheme in _PORTS and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise AnswerError(f"{without_user(url)[:200]!r} is not the address of an HTTP server")


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = _url_parts(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


@contextmanager
def _translated(through: str) -> Iterator[None]:
    """Turn the library's errors into this module's and the system's; `through` names the proxy in between."""
    import httpcore2

    try:
        yield
    except (TimeoutError, httpcore2.TimeoutException) as error:
        raise TimeoutError(f"no answer came in time{through}") from error
    except httpcore2.ProxyError as error:
        raise ConnectionRefusedError(f"{error}: refused{through}") from error
    except httpcore2.NetworkError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError) and not through:
            raise cause from None
        words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
        raise ConnectionError(f"{words}{through}") from error
    except httpcore2.RemoteProtocolError as error:
        if "without sending a response" in str(error):
            raise ConnectionResetError(f"the connection was closed without an answer{through}") from error
        raise NoHttpError(str(error)) from error
    except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol, ImportError) as error:
        raise AnswerError(f"{error}{through}") from error

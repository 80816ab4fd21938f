"""Keep-alive HTTP/1.1 connections to servers: a raw asyncio protocol with httptools for the framing.

After its first token, the bytes of a stream are only collected, until the stream ends or the client asks for them.
Where each token comes alone they are read by a poller, together with those of other streams (loadgen.stream_poller).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from cm4vllm.common.host_addresses import host_header, host_of
from cm4vllm.loadgen.client.stream_poller import HTTP_ERRORS, StreamPoller

#: Connections to one server that all clients of a run open in one step, of so many seconds: short queues of servers
#: that listen hold so many, and the system drops what comes beyond that, and sends it again after a second.
OPENED_AT_A_TIME, STEP_S = 16, 0.01
#: Times as many are opened at a time over a network on which a connection takes so many steps, at most.
_MOST_STEPS = 32
#: The headers that are read: the time that a busy server names (RFC 9110, section 10.2.3), and how a body is encoded.
_RETRY_AFTER, _ENCODING = b"retry-after", b"content-encoding"


class ResponseHandler(Protocol):
    """Receives the response to one request."""

    def body_received(self, status: int, data: bytes) -> bool:
        """Bytes of the body arrived. Returns whether further bytes may be collected before they are handed over."""

    def response_ended(self, connection: Connection, status: int, *, cut: bool = False) -> None:
        """The response is complete; the connection can carry the next request if it is still `open`.

        With `cut` it ended with the connection, and its content must show whether it is complete.
        """

    def connection_failed(self, cause: str, *, answered: bool, kept: bool = False) -> None:
        """The connection failed before the response was complete; `answered`: after some of it had arrived.

        `kept`: the server closed a connection that had been idle before nothing of the response had arrived.
        """


class Address:
    """The address of a server: resolved once, so that no connection waits for a name lookup.

    `headers` are sent with each request beside those that the client needs.
    """

    def __init__(
        self,
        endpoint: str,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take the endpoint's URL, the host and port to connect to, TLS settings and headers."""
        parts = urlsplit(endpoint)
        self.endpoint = endpoint
        self.connect_s = 0.0  # of the connection that showed that it can be reached
        self._socket = parts.path if parts.scheme == "unix" else ""
        self._host, self._port, self._tls = host, port, tls
        self._server_name = parts.hostname if tls else None
        self._prefix = "" if self._socket else parts.path
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = (
            f"Host: {host_header(endpoint)}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n{more}Content-Length: "
        ).encode()

    def head(self, path: str, content_type: str = "application/json") -> bytes:
        """Return the request line and headers of a POST, up to the length of its body."""
        return f"POST {self._prefix}{path} HTTP/1.1\r\nContent-Type: {content_type}\r\n".encode() + self._head

    async def connect(self, connection: asyncio.Protocol) -> None:
        """Connect `connection`. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._socket:
            await loop.create_unix_connection(lambda: connection, self._socket)
            return
        await loop.create_connection(
            lambda: connection, self._host, self._port, ssl=self._tls, server_hostname=self._server_name
        )


async def resolve(endpoint: str, ca_file: str = "", headers: Mapping[str, str] = MappingProxyType({})) -> Address:
    """Return an address of `endpoint` (a base URL) that accepts connections. Raises OSError when none does.

    `headers` are those of the address. The certificate of a https:// server is checked against those of the system and
    of `ca_file`.
    """
    parts = urlsplit(endpoint)
    if parts.scheme == "unix":
        addresses = [Address(endpoint, "", 0, headers=headers)]
    else:
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        if tls and ca_file:
            tls.load_verify_locations(ca_file)
        port = parts.port or (443 if tls else 80)
        resolved = await asyncio.get_running_loop().getaddrinfo(host_of(endpoint), port, type=socket.SOCK_STREAM)
        addresses = [Address(endpoint, str(where[0]), port, tls, headers) for *_, where in resolved]
    refused: OSError | None = None
    for address in addresses:
        trial, begin = Connection(lambda _: None), time.monotonic()
        try:
            await asyncio.wait_for(address.connect(trial), timeout=10)
        except OSError as error:
            refused = error
            continue
        trial.close()
        address.connect_s = time.monotonic() - begin
        return address
    raise refused or OSError(f"no address for {endpoint}")


class Connection(asyncio.Protocol):
    """Carries one request at a time; `lost` is called when the connection has ended.

    Without a `poller`, and with TLS, the event loop reads each stream to its end.
    """

    def __init__(self, lost: Callable[[Connection], None], poller: StreamPoller | None = None) -> None:
        """Take what is called when the connection is lost; with a poller, streams are read by it."""
        self.open = False
        self.idle_since = 0.0
        self._lost = lost
        self._poller = poller
        self._descriptor = -1
        self._kept = False  # for this request, from before it
        self._transport: asyncio.Transport
        self._handler: ResponseHandler | None = None
        self._pieces: list[bytes] = []
        self._handed_over = 0
        self._unasked = False
        self._headers: dict[bytes, bytes] = {}
        # Bound before the parser is made: it takes what it finds then, and a list's method costs no Python call.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self.feed = self._parser.feed_data
        self._answered = self._collecting = self._polled = False

    @property
    def pieces(self) -> int:
        """The number of pieces that have arrived so far."""
        return self._handed_over + len(self._pieces)

    @property
    def collected(self) -> int:
        """The number of pieces that have not been handed over."""
        return len(self._pieces)

    @property
    def retry_after_s(self) -> float:
        """The seconds, or those to the date, after which the server asks to be asked again; 0 where it names none."""
        named = self._headers.get(_RETRY_AFTER, b"").decode("latin-1").strip()
        with contextlib.suppress(ValueError):
            return max(0.0, float(named))
        with contextlib.suppress(ValueError, OverflowError):
            return max(0.0, parsedate_to_datetime(named).timestamp() - time.time())
        return 0.0

    @property
    def encoding(self) -> str:
        """The encoding of a body that is not sent as it is; empty for one that is."""
        named = self._headers.get(_ENCODING, b"").decode("latin-1").strip().lower()
        return "" if named == "identity" else named

    def send(self, handler: ResponseHandler, request: bytes) -> None:
        """Send `request`; `handler` receives the response."""
        self._handler = handler
        self._answered = False
        self._kept = bool(self.idle_since)
        self._transport.write(request)

    @property
    def closed_because(self) -> str:
        """The reason why a connection without a request is closed."""
        return "the server sent data without a request" if self._unasked else "the server closed the connection"

    def close(self) -> None:
        """Close the connection; `connection_lost` then reports it to the open request, if there is one."""
        self._stop_polling()
        self.open = False
        self._transport.close()

    def hand_over(self) -> None:
        """Pass the collected pieces to the handler."""
        pieces, handler = self._pieces, self._handler
        if not pieces:
            return
        self._handed_over += len(pieces)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if handler is not None and handler.body_received(self._parser.get_status_code(), data) and not self._collecting:
            self._collecting = True
            if self._poller is not None and self._descriptor >= 0:
                self._polled = True
                self._transport.pause_reading()
                self._poller.add(self._descriptor, self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and send each request without delay (TCP_NODELAY)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self.open = True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            self._descriptor = sock.fileno()

    def data_received(self, data: bytes) -> None:
        """Read bytes of an answer; bytes that no request waits for close the connection."""
        self._answered = True
        if self._handler is None:
            self._close_unasked()
            return
        try:
            self.feed(data)
        except HTTP_ERRORS as error:
            self.ended_by(error)
            return
        if self._pieces and not self._collecting:
            self.hand_over()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to the client and to the open request."""
        self._stop_polling()
        self.open = False
        self._lost(self)
        self._break(exc)

    # stream_poller

    def ended_by(self, error: Exception | None) -> None:
        """The server closed the connection, it broke, or the data is not HTTP."""
        if isinstance(error, httptools.HttpParserCallbackError):
            raise error  # a fault of the client itself: its process ends with a traceback, and no request is lost
        self.close()
        self._break(error)

    # httptools

    def on_message_begin(self) -> None:
        """Prepare for a new answer; one that no request waits for closes the connection."""
        self._headers.clear()
        if self._handler is None:  # behind the end of an answer, in the same read
            self._close_unasked()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that matter: Retry-After and Content-Encoding."""
        if len(name) in (len(_RETRY_AFTER), len(_ENCODING)):
            self._headers[name.lower()] = value

    def on_message_complete(self) -> None:
        """Hand the whole answer to its request; interim answers (1xx) are skipped."""
        if 100 <= self._parser.get_status_code() < 200:
            return  # an interim response such as 103 Early Hints: the final one follows
        self._collecting = True  # nothing follows that is worth polling for
        self.hand_over()
        handler, self._handler = self._handler, None
        self._collecting = False
        if self._stop_polling():
            self._transport.resume_reading()
        if not self._parser.should_keep_alive():
            self.close()
        if handler is not None:
            handler.response_ended(self, self._parser.get_status_code())

    def _close_unasked(self) -> None:
        """Close the connection: data that arrives without a request must not become the response to the next one."""
        self._unasked = True
        self.close()

    def _break(self, error: Exception | None) -> None:
        """End the open request because the connection ended: whole for a body without a length, else failed."""
        # A body without a length ends with the connection (RFC 9112, section 6.3).
        unframed = error is None and self._answered and not self._parser.should_keep_alive()
        if unframed:
            self._collecting = True
            self.hand_over()
            self._collecting = False
        handler, self._handler = self._handler, None
        if handler is None:
            return
        if unframed:
            handler.response_ended(self, self._parser.get_status_code(), cut=True)
        else:
            kept = self._kept and not self._answered and isinstance(error, ConnectionError | None)
            handler.connection_failed(_cause(error), answered=self._answered, kept=kept)

    def _stop_polling(self) -> bool:
        """Stop the poller's reading of this connection; return True if it was reading it."""
        if not self._polled:
            return False
        self._polled = False
        cast(StreamPoller, self._poller).remove(self._descriptor)
        return True


class Server:
    """One server: its connections that are idle, the last used one last, and what is open on the others.

    `opening` is the number of spare connections that are being opened; `openings` are the places in a step that this
    one of several `clients` has.
    """

    __slots__ = ("_head", "address", "avoid_until", "idle", "in_flight", "opening", "openings")

    def __init__(self, address: Address, head: bytes, clients: int = 1) -> None:
        """Take an address and the head of its requests; `clients` processes share the connections opened at a time."""
        self.address = address
        self.idle: deque[Connection] = deque()
        self.in_flight = self.opening = 0
        at_a_time = OPENED_AT_A_TIME * min(_MOST_STEPS, 1 + int(address.connect_s / STEP_S))
        self.openings = asyncio.Semaphore(max(1, at_a_time // clients))
        self.avoid_until = 0.0
        self._head = head

    def request(self, body: bytes | memoryview) -> bytes:
        """Return the bytes of a whole request."""
        return b"".join((self._head, b"%d\r\n\r\n" % len(body), body))

    def reusable(self, oldest: float) -> Connection | None:
        """Return the connection used last, or None when there is none that the server surely keeps open."""
        while self.idle:
            connection = self.idle.pop()
            if connection.open and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    def count_younger(self, oldest: float, most: int) -> int:
        """Return the number of connections that became idle after `oldest`, at most `most`."""
        return sum(
            connection.open and connection.idle_since >= oldest
            for connection in itertools.islice(reversed(self.idle), most)
        )

    def drop_older(self, oldest: float) -> None:
        """Close the connections that are idle since before `oldest`, and forget those that are closed."""
        while self.idle and (self.idle[0].idle_since < oldest or not self.idle[0].open):
            self.idle.popleft().close()


def _cause(error: Exception | None) -> str:
    """Return in words why a connection ended."""
    if error is None:
        return "the server closed the connection"
    if isinstance(error, httptools.HttpParserUpgrade):
        return "the answer is not HTTP/1.1: it asks for another protocol"
    if isinstance(error, httptools.HttpParserError):
        return f"the answer is not HTTP: {error}"
    return f"the connection broke: {type(error).__name__}"

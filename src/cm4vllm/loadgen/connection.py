"""One keep-alive HTTP/1.1 connection to a server: a raw asyncio protocol with httptools for the framing.

What comes of a stream after its first token is only gathered, until it ends or the client looks through it: read in
a lane with that of the others (loadgen.lane), it goes through the parser into a list.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from cm4vllm.loadgen.lane import HTTP_ERRORS, Lane
from cm4vllm.serving.records import host_header, host_of

__all__ = ["Address", "Connection", "Exchange", "resolve"]

class Exchange(Protocol):
    """One request on its way: told by the connection what comes back."""

    def body(self, status: int, data: bytes) -> bool:
        """Bytes of the answer's body came; tells whether what follows can be gathered before it is handed over."""

    def ended(self, connection: Connection, status: int) -> None:
        """The answer is whole; the connection can carry the next request when it is still `open`."""

    def broken(self, cause: str, *, answered: bool) -> None:
        """The connection broke before the answer was whole; `answered` tells whether any of it had come."""


class Address:
    """Where a server listens: resolved once, so that no connection waits for a name lookup.

    `headers` are sent with each request beside those that the client needs.
    """

    def __init__(self, endpoint: str, host: str, port: int, tls: ssl.SSLContext | None = None,
                 headers: Mapping[str, str] = MappingProxyType({})) -> None:
        parts = urlsplit(endpoint)
        self.endpoint = endpoint
        self._socket = parts.path if parts.scheme == "unix" else ""
        self._host, self._port, self._tls = host, port, tls
        self._server_name = parts.hostname if tls else None
        self._prefix = "" if self._socket else parts.path
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = (f"Host: {host_header(endpoint)}\r\nContent-Type: application/json\r\nAccept: */*\r\n{more}"
                      "Content-Length: ").encode()

    def head(self, path: str) -> bytes:
        """Return the request line and headers of a POST of JSON, up to the length of its body."""
        return f"POST {self._prefix}{path} HTTP/1.1\r\n".encode() + self._head

    async def connect(self, connection: asyncio.Protocol) -> None:
        """Connect `connection`. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._socket:
            await loop.create_unix_connection(lambda: connection, self._socket)
            return
        await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._tls,
                                     server_hostname=self._server_name)


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
        found = await asyncio.get_running_loop().getaddrinfo(host_of(endpoint), port, type=socket.SOCK_STREAM)
        addresses = [Address(endpoint, str(where[0]), port, tls, headers) for *_, where in found]
    refused: OSError | None = None
    for address in addresses:
        trial = Connection(lambda _: None)
        try:
            await asyncio.wait_for(address.connect(trial), timeout=10)
        except OSError as error:
            refused = error
            continue
        trial.close()
        return address
    raise refused or OSError(f"no address for {endpoint}")


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; `lost` is called when the connection has ended.

    Without a `lane`, and with TLS, the event loop reads all of each stream.
    """

    def __init__(self, lost: Callable[[Connection], None], lane: Lane | None = None) -> None:
        self.open = False
        self.idle_since = 0.0
        self._lost = lost
        self._lane = lane
        self._descriptor = -1
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._pieces: list[bytes] = []
        self._handed_over = 0
        self._unasked = False
        # Bound before the parser is made: it takes what it finds then, and a list's method costs no Python call.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self.feed = self._parser.feed_data
        self._answered = self._gathers = self._in_lane = False

    @property
    def pieces(self) -> int:
        """The number of pieces that have come so far."""
        return self._handed_over + len(self._pieces)

    @property
    def gathered(self) -> int:
        """The number of pieces that have not been handed over."""
        return len(self._pieces)

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Send `request`, which is of `exchange`: its methods are called with what comes back."""
        self._exchange = exchange
        self._answered = False
        self._transport.write(request)

    @property
    def closed_because(self) -> str:
        """Why a connection without an exchange is closed."""
        return "the server sent what nobody had asked for" if self._unasked else "the server closed the connection"

    def close(self) -> None:
        self._leave_lane()
        self.open = False
        self._transport.close()

    def hand_over(self) -> None:
        """Give what has been gathered to the exchange."""
        pieces, exchange = self._pieces, self._exchange
        if not pieces:
            return
        self._handed_over += len(pieces)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if exchange is not None and exchange.body(self._parser.get_status_code(), data) and not self._gathers:
            self._gathers = True
            if self._lane is not None and self._descriptor >= 0:
                self._in_lane = True
                self._transport.pause_reading()
                self._lane.enter(self._descriptor, self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self.open = True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            self._descriptor = sock.fileno()

    def data_received(self, data: bytes) -> None:
        self._answered = True
        if self._exchange is None:
            self._close_unasked()
            return
        try:
            self.feed(data)
        except HTTP_ERRORS as error:
            self.ended_by(error)
            return
        if self._pieces and not self._gathers:
            self.hand_over()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_lane()
        self.open = False
        self._lost(self)
        self._break(_cause(exc))

    # lane.Reader

    def ended_by(self, error: Exception | None) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):
            raise error  # a fault of the client itself: its process ends with a traceback, and no request is lost
        self.close()
        self._break(_cause(error))

    # httptools

    def on_message_begin(self) -> None:
        if self._exchange is None:  # behind the end of an answer, in the same read
            self._close_unasked()

    def on_message_complete(self) -> None:
        if 100 <= self._parser.get_status_code() < 200:
            return  # an interim answer, as 103 Early Hints: the one that was asked for follows
        self._gathers = True  # nothing follows that is worth a lane
        self.hand_over()
        exchange, self._exchange = self._exchange, None
        self._gathers = False
        if self._leave_lane():
            self._transport.resume_reading()
        if not self._parser.should_keep_alive():
            self.close()
        if exchange is not None:
            exchange.ended(self, self._parser.get_status_code())

    def _close_unasked(self) -> None:
        """Close the connection: what comes while nothing is asked for must not become the next request's answer."""
        self._unasked = True
        self.close()

    def _break(self, cause: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.broken(cause, answered=self._answered)

    def _leave_lane(self) -> bool:
        """Leave the lane, and tell whether the connection was in it."""
        if not self._in_lane:
            return False
        self._in_lane = False
        cast(Lane, self._lane).leave(self._descriptor)
        return True


def _cause(error: Exception | None) -> str:
    if error is None:
        return "the server closed the connection"
    if isinstance(error, httptools.HttpParserUpgrade):
        return "the answer is not HTTP/1.1: it asks for another protocol"
    if isinstance(error, httptools.HttpParserError):
        return f"the answer is not HTTP: {error}"
    return f"the connection broke: {type(error).__name__}"

"""One keep-alive HTTP/1.1 connection to a server: a raw asyncio protocol with httptools for the framing.

What comes of a stream after its first token is only gathered, framing and all, and looked through when it ends or when
much has come: a token then costs a system call and an append.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

__all__ = ["Address", "Connection", "Exchange", "resolve"]

#: Pieces of a stream that are gathered before they are looked through: bounds memory over thousands of streams.
GATHER_PIECES = 16

_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
#: How a chunked body ends, with or without trailers; the last event before it ends in another way.
_END = b"\r\n\r\n"


class Exchange(Protocol):
    """One request on its way: told by the connection what comes back."""

    def body(self, status: int, data: bytes) -> bool:
        """Bytes of the answer's body came; tells whether what follows can be gathered before it is handed over."""

    def ended(self, connection: Connection, status: int) -> None:
        """The answer is whole; the connection can carry the next request when it is still `open`."""

    def broken(self, cause: str, *, answered: bool) -> None:
        """The connection broke before the answer was whole; `answered` tells whether any of it had come."""


class Address:
    """Where a server listens: resolved once, so that no connection waits for a name lookup."""

    def __init__(self, endpoint: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(endpoint)
        self.endpoint = endpoint
        self._socket = parts.path if parts.scheme == "unix" else ""
        self._host, self._port, self._tls = host, port, tls
        self._server_name = parts.hostname if tls else None
        self._head = (f"Host: {parts.netloc or 'localhost'}\r\nContent-Type: application/json\r\n"
                      "Accept: */*\r\nContent-Length: ").encode()

    def head(self, path: str) -> bytes:
        """Return the request line and headers of a POST of JSON, up to the length of its body."""
        return f"POST {path} HTTP/1.1\r\n".encode() + self._head

    async def connect(self, connection: asyncio.Protocol) -> None:
        """Connect `connection`. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._socket:
            await loop.create_unix_connection(lambda: connection, self._socket)
            return
        await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._tls,
                                     server_hostname=self._server_name)


async def resolve(endpoint: str, ca_file: str = "") -> Address:
    """Return an address of `endpoint` (a base URL) that accepts connections. Raises OSError when none does.

    The certificate of a https:// server is checked against those of the system and of `ca_file`.
    """
    parts = urlsplit(endpoint)
    if parts.scheme == "unix":
        addresses = [Address(endpoint, "", 0)]
    else:
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        if tls and ca_file:
            tls.load_verify_locations(ca_file)
        port = parts.port or (443 if tls else 80)
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname or "", port, type=socket.SOCK_STREAM)
        addresses = [Address(endpoint, str(where[0]), port, tls) for *_, where in found]
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

    Only where answers are `streamed` can what comes be gathered.
    """

    def __init__(self, lost: Callable[[Connection], None], *, streamed: bool = False) -> None:
        self.open = False
        self.idle_since = 0.0
        self._looked_through = 0
        self._lost = lost
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._pieces: list[bytes] = []
        # Bound before the parser is made: it takes what it finds then, and a list's method costs no Python call.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._answered = False
        self._streamed = streamed
        self._chunked = self._gathers = False
        self._gathered: list[bytes] | None = None

    @property
    def received(self) -> int:
        """Bytes that have come so far."""
        return self._looked_through + sum(map(len, self._gathered or ()))

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Send `request`, which is of `exchange`: its methods are called with what comes back."""
        self._exchange = exchange
        self._answered = self._gathers = False
        self._transport.write(request)

    def close(self) -> None:
        self.open = False
        self._transport.close()

    def look_through(self) -> None:
        """Take up what was gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._take(b"".join(gathered))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self.open = True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        gathered = self._gathered
        if gathered is not None:
            gathered.append(data)
            # What is shorter than the end may be the rest of it.
            if data.endswith(_END) or len(gathered) == GATHER_PIECES or len(data) < len(_END):
                self.look_through()
            return
        if not self._answered:
            self._answered = True
            if self._streamed:
                # No generated text can pass for a header: the head ends at the first empty line.
                self._chunked = _CHUNKED.search(data, 0, data.find(_END) + 2) is not None
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self.look_through()
        self._lost(self)
        cause = "the server closed the connection" if exc is None else f"the connection broke: {type(exc).__name__}"
        self._break(cause)

    def _take(self, data: bytes) -> None:
        self._looked_through += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self._break(f"the answer is not HTTP: {error}")
            return
        self._hand_over()
        if self._gathers and self._exchange is not None:
            self._gathered = []

    def _hand_over(self) -> None:
        pieces, exchange = self._pieces, self._exchange
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if exchange is not None and exchange.body(self._status, data):
                self._gathers = self._chunked  # only a chunked body is known to end with _END

    # httptools

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self._hand_over()
        exchange, self._exchange = self._exchange, None
        if not self._parser.should_keep_alive():
            self.close()
        if exchange is not None:
            exchange.ended(self, self._status)

    def _break(self, cause: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.broken(cause, answered=self._answered)

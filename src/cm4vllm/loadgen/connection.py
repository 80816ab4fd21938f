"""One keep-alive HTTP/1.1 connection to the server: a raw asyncio protocol with httptools for the framing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

__all__ = ["Address", "Connection", "Exchange", "resolve"]


class Exchange(Protocol):
    """One request on its way: told by the connection what comes back."""

    request: bytes

    def body(self, status: int, data: bytes) -> None:
        """Bytes of the answer's body came."""

    def ended(self, connection: Connection, status: int) -> None:
        """The answer is whole; the connection can carry the next request when it is still `open`."""

    def broken(self, cause: str, *, answered: bool) -> None:
        """The connection broke before the answer was whole; `answered` tells whether any of it had come."""


class Address:
    """Where the server listens: resolved once, so that no connection waits for a name lookup."""

    def __init__(self, host: str, port: int, host_header: str, tls: ssl.SSLContext | None) -> None:
        self.host = host
        self.port = port
        self.host_header = host_header
        self.tls = tls
        self.server_name = host_header.rsplit(":", 1)[0].strip("[]") if tls else None

    def head(self, path: str, body_length: int) -> bytes:
        """Return the request line and headers of a POST of JSON."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: {self.host_header}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\nContent-Length: {body_length}\r\n\r\n"
        ).encode()


async def resolve(endpoint: str) -> Address:
    """Return an address of `endpoint` (a base URL) that accepts connections. Raises OSError when none does."""
    parts = urlsplit(endpoint)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(parts.hostname or "", port, type=socket.SOCK_STREAM)
    refused: OSError | None = None
    for *_, where in found:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(str(where[0]), port), timeout=10)
        except OSError as error:
            refused = error
            continue
        writer.close()
        await writer.wait_closed()
        return Address(str(where[0]), port, parts.netloc.rpartition("@")[2], tls)
    raise refused or OSError(f"no address for {endpoint}")


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; `lost` is called when the connection has ended."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self.open = False
        self.idle_since = 0.0
        self._lost = lost
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._answered = False

    def send(self, exchange: Exchange) -> None:
        """Send the request of `exchange`; its methods are called with what comes back."""
        self._exchange = exchange
        self._answered = False
        self._transport.write(exchange.request)

    def close(self) -> None:
        self.open = False
        self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self.open = True
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self._break(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._lost(self)
        cause = "the server closed the connection" if exc is None else f"the connection broke: {type(exc).__name__}"
        self._break(cause)

    # httptools

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(self._status, data)

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if not self._parser.should_keep_alive():
            self.close()
        if exchange is not None:
            exchange.ended(self, self._status)

    def _break(self, cause: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.broken(cause, answered=self._answered)

"""A server on loopback that runs in a thread while a test is in its block."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that go away."""


class Handler(BaseHTTPRequestHandler):
    """Answers for `server_of`, and writes no log."""

    protocol_version = "HTTP/1.1"
    server_of: Any

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, data: bytes, kind: str, *headers: tuple[str, str]) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(data))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@dataclass(kw_only=True)
class LoopbackServer:
    """Use as a context manager that calls `start`; the port 0 stands for a free one."""

    host: str = "127.0.0.1"
    port: int = 0

    def start(self, handler: type[Handler]) -> Self:
        """Serve with a handler of this kind until the end of the block."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        kind = type("Server", (_Server,), {"address_family": family})
        self.server = kind((self.host, self.port), type("Handler", (handler,), {"server_of": self}))
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

"""The live view as a page: a small HTTP server, on loopback unless another address is given, and nothing from outside.

It serves four files: the page with its script and its style, the view that the script asks for every second, and
status.json. Requests under another name than the one it serves are refused, so that a page of another site cannot read
it through the browser of somebody on this machine.
"""

import errno
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import msgspec

from cm4vllm.campaign.live.page_address import Address, is_own
from cm4vllm.campaign.live.panels import view_of
from cm4vllm.campaign.live.status import StatusRecord
from cm4vllm.common.errors import PortInUse, UsageError

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
#: Seconds that the page stays up at the end of the job, where somebody reads it, so that it shows the end.
_LAST_S = 2.5
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"


class Page(ThreadingHTTPServer):
    """Serves the last status that `show` was given, until `close`. Raises PortInUse, UsageError where it cannot."""

    daemon_threads = True

    def __init__(self, address: Address) -> None:
        self.shown: tuple[bytes, StatusRecord, float] | None = None
        self.read_at: float | None = None
        self.read_again = threading.Event()
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            super().__init__((address.host, address.port), _Handler)
        except OSError as error:
            where = f"the live view cannot be served at {address.url}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    where,
                    cause="another program uses the port",
                    remedy="choose another port with --serve, or 0 for a free one",
                ) from error
            raise UsageError(
                where,
                cause=str(error.strerror),
                remedy="give --serve a port above 1023, and an address of this machine",
            ) from error
        self.address = Address(address.host, self.server_port)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="page", daemon=True)
        self._thread.start()

    def show(self, data: bytes, status: StatusRecord) -> None:
        """Serve this status from now on; `data` is status.json."""
        self.shown = data, status, time.monotonic()

    def close(self) -> None:
        """Stop serving, once somebody who reads the page has seen the last status."""
        if self.read_at is not None and time.monotonic() - self.read_at < _LAST_S:
            self.read_again.clear()
            self.read_again.wait(_LAST_S)
        self.shutdown()
        self.server_close()
        self._thread.join()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer asks for the host's name, which may take long
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Page
    server_version, sys_version = "cm4vllm", ""
    timeout = 30

    def do_GET(self) -> None:  # the name that http.server asks for
        if not self._is_named_rightly():
            self._answer(
                HTTPStatus.FORBIDDEN, b"this page is served on loopback, under its address alone\n", "text/plain"
            )
        elif (file := _FILES.get(self.path)) is not None:
            self._answer(HTTPStatus.OK, files(__package__).joinpath("files", file[0]).read_bytes(), file[1])
        elif self.server.shown is not None and self.path in ("/view.json", "/status.json"):
            data, status, at = self.server.shown
            view = msgspec.json.encode(view_of(status, time.monotonic() - at))
            self._answer(HTTPStatus.OK, data if self.path == "/status.json" else view, "application/json")
            self.server.read_at = time.monotonic()
            self.server.read_again.set()
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the job."""

    def _is_named_rightly(self) -> bool:
        """Return True if a request on loopback asks for loopback, and not for a name that somebody pointed at it."""
        given = self.headers.get("Host", "")
        host = given.rpartition(":")[0] if given.rpartition(":")[2].isdecimal() else given
        return not self.server.address.is_loopback or is_own(host.removeprefix("[").removesuffix("]"))

    def _answer(self, code: HTTPStatus, body: bytes, kind: str) -> None:
        try:
            self.send_response(code)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("Content-Security-Policy", _POLICY),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the reader has gone
            self.close_connection = True

"""Watches a job while it runs: writes status.json about once a second, draws the view, and serves it as a page.

The page comes from a small HTTP server, on loopback unless another address is given, and nothing from outside. It
serves four files: the page with its script and its style, the view that the script asks for every second, and
status.json. Requests under another name than the one it serves are refused, so that a page of another site cannot read
it through the browser of somebody on this machine.
"""

import contextlib
import errno
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.campaign.live.page_address import Address, is_own
from cm4vllm.campaign.live.panels import view_of
from cm4vllm.campaign.live.status import INTERVAL_S, STATUS_FILE, JobState, JobStatus, StatusRecord
from cm4vllm.campaign.live.terminal import Drawing, drawing
from cm4vllm.common.errors import CmError, PortInUse, UsageError
from cm4vllm.common.progress import say, warn
from cm4vllm.common.secrets.redaction import vault

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


class Monitor:
    """Reads `status` every `interval_s` and passes it on, in a thread of its own. No failure here ends a job."""

    def __init__(self, status: JobStatus, out: Path, page: Page | None = None, interval_s: float = INTERVAL_S) -> None:
        self._status = status
        self._out = out
        self._page = page
        self._draw: Drawing | None = None
        self._interval_s = interval_s
        self._over = threading.Event()
        self._passing_on = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def start(self) -> None:
        self._pass_on()
        self._thread.start()

    def stop(self) -> None:
        """Pass on the last status."""
        self._over.set()
        self._thread.join()
        self._pass_on()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw the view on the terminal as long as the block lasts."""
        with drawing() as draw:
            self._draw = draw
            try:
                yield
            finally:
                with self._passing_on:
                    self._draw = None

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self._pass_on()

    def _pass_on(self) -> None:
        with self._passing_on:
            data, status = _without_secrets(self._status.read())
            _write(self._out / STATUS_FILE, data)
            if self._page is not None:
                self._page.show(data, status)
            if self._draw is not None:
                try:
                    self._draw(view_of(status))
                except OSError:  # the terminal has gone, which ends the drawing and not the job
                    self._draw = None


@contextmanager
def watched(status: JobStatus, out: Path, serve: Address | None = None) -> Iterator[Monitor]:
    """Watch a job as long as the block lasts, also on a page at `serve`; the last status says how the block ended.

    Raises PortInUse and UsageError where the page cannot be served.
    """
    page = _serve(serve) if serve is not None else None
    monitor = Monitor(status, out, page)
    monitor.start()
    try:
        yield monitor
    except CmError as error:
        status.state, status.cause = JobState.FAILED, str(error)
        raise
    except BaseException as error:
        status.state, status.cause = JobState.ABORTED, f"{type(error).__name__} {error}".strip()
        raise
    else:
        status.state = JobState.DONE
    finally:
        monitor.stop()
        if page is not None:
            page.close()


def _serve(address: Address) -> Page:
    page = Page(address)
    say(f"live view: {page.address.url}")
    if not address.is_loopback:
        warn(f"whoever reaches {page.address.url} can read the live view: it asks for no password")
    return page


def _without_secrets(status: StatusRecord) -> tuple[bytes, StatusRecord]:
    """Return a status without the secrets of the run, as it is written and as it is shown."""
    fields: dict[str, Any] = vault().cleaned(msgspec.to_builtins(status), by_name=False)
    data = msgspec.json.format(msgspec.json.encode({"schema": StatusRecord.SCHEMA, **fields}), indent=2) + b"\n"
    return data, msgspec.convert(fields, StatusRecord)


def _write(path: Path, data: bytes) -> None:
    """Write the file whole or not at all. It is not synced: it is soon written again, and the disk may be measured.

    A folder that has vanished is not made again, and what cannot be written is left to what the job itself writes.
    """
    aside = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)  # left by a command that was killed; and a link is not written through
        with aside.open("xb") as file:
            file.write(data)
        aside.replace(path)

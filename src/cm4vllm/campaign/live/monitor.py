"""Watches a job while it runs: writes status.json about once a second, draws the view, and serves it as a page."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.campaign.live.page_address import Address
from cm4vllm.campaign.live.page_server import Page
from cm4vllm.campaign.live.panels import view_of
from cm4vllm.campaign.live.status import INTERVAL_S, STATUS_FILE, JobState, JobStatus, StatusRecord
from cm4vllm.campaign.live.terminal import Drawing, drawing
from cm4vllm.common.errors import CmError
from cm4vllm.common.progress import say, warn
from cm4vllm.common.secrets.redaction import vault


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
            data, status = _clean(self._status.read())
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
    page = _served(serve) if serve is not None else None
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


def _served(address: Address) -> Page:
    page = Page(address)
    say(f"live view: {page.address.url}")
    if not address.is_loopback:
        warn(f"whoever reaches {page.address.url} can read the live view: it asks for no password")
    return page


def _clean(status: StatusRecord) -> tuple[bytes, StatusRecord]:
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

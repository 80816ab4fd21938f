"""One file over HTTP: taken up where an earlier try stopped, and put in its place only when its digest is right."""

import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

from cm4vllm.common.errors import DownloadError
from cm4vllm.common.files import digest_of
from cm4vllm.common.host_addresses import through_proxy
from cm4vllm.common.http_requests import LATER, Answer, AnswerError, Follow, HttpClient
from cm4vllm.common.units import size_text

#: Seconds for a short answer, and for each piece of a download.
_TIMEOUT_S = 60.0
#: The number of times that a download is continued after its connection broke.
_ATTEMPTS = 5
PAUSE_S = 2.0
#: The longest list of files that is read; that of a model with a thousand shards takes 100 kB.
_LONGEST_TEXT = 2**24


class RefusedError(Exception):
    """An answer that is an error or a redirect, not the file: its status, and where it redirects to."""

    def __init__(self, address: str, status: int, location: str = "") -> None:
        super().__init__(f"HTTP {status}{through_proxy(address)}")
        self.status, self.location = status, location


def fetch(
    address: str, path: Path, size: int, digest: str, headers: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    """Download one file of `size` bytes to `path`, on from what `path`.part already holds of it.

    `digest` is `<kind>:<hex>`. `headers` go to the address's own scheme, host and port alone. `tell` is called with how
    much has arrived. Raises DownloadError for a wrong digest, for more than `size` bytes, and for a connection that
    stays broken or stands still, RefusedError for a refusal, OSError for the disk.
    """
    part = part_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fill(address, part, size, headers, tell)
        got = digest_of(part, digest.partition(":")[0])
    except OSError:
        # A full disk: what there is of this file would only keep it full. Whole files stay.
        part.unlink(missing_ok=True)
        raise
    if got != digest:
        part.unlink()
        raise DownloadError(
            f"{address.rpartition('/')[2]} has a wrong digest, and was removed",
            cause=f"it is {got}, the publisher names {digest}",
            remedy="run again; if that does not help, a proxy changes the file or the publisher has changed it",
        )
    part.replace(path)


def download_client() -> HttpClient:
    """Return a client that trusts the system's authorities and uses the proxies that the environment names."""
    return HttpClient(tls=ssl.create_default_context(), proxies=True)


def answer_of(
    address: str,
    headers: Mapping[str, str],
    method: str = "GET",
    *,
    follow: Follow = Follow.NOWHERE,
    total_s: float = _TIMEOUT_S,
) -> Answer:
    """Return a short answer, for example a list of files, which may take `total_s` seconds.

    Raises RefusedError for another status than 200, OSError, and AnswerError where the answer cannot be used.
    """
    with download_client() as client:
        answer = client.answer(
            method, address, headers=headers, total_s=total_s, follow=follow, most_bytes=_LONGEST_TEXT
        )
    if answer.status != HTTPStatus.OK:
        raise RefusedError(address, answer.status, answer.headers.get("location", ""))
    return answer


def _fill(address: str, part: Path, size: int, headers: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Append to `part` until it has `size` bytes; a broken connection is taken up again."""
    begin, first = time.monotonic(), bytes_present(part)
    for attempt in range(1, _ATTEMPTS + 1):
        if bytes_present(part) > size:
            part.unlink()
        try:
            _append(
                address,
                part,
                size,
                headers,
                lambda here: tell(
                    f"{address.rpartition('/')[2]}: {size_text(here)} of {size_text(size)}, "
                    f"{size_text((here - first) / (time.monotonic() - begin))}/s"
                ),
            )
        except RefusedError as error:
            if error.status not in LATER and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            cause = str(error)
        except (_BrokenError, AnswerError) as error:
            cause = str(error)
        else:
            cause = "the connection ended early"
        if bytes_present(part) == size:
            return
        if attempt < _ATTEMPTS:
            time.sleep(PAUSE_S)
    raise DownloadError(
        f"{address} could not be downloaded",
        cause=f"{cause} ({size_text(bytes_present(part))} of {size_text(size)} are downloaded)",
        remedy="run again: the download continues where it stopped",
    )


class _BrokenError(Exception):
    """A connection could not be made, or broke."""


@contextmanager
def _network_errors() -> Iterator[None]:
    """Separate the errors of a connection from those of the disk, which are OSErrors too."""
    try:
        yield
    except OSError as error:
        raise _BrokenError(error.strerror or str(error)) from error


def _append(address: str, part: Path, size: int, headers: Mapping[str, str], tell: Callable[[int], None]) -> None:
    here = bytes_present(part)
    if here == size and part.exists():
        return
    asked = {**headers, **({"Range": f"bytes={here}-"} if here else {})}
    with ExitStack() as open_now:
        client = open_now.enter_context(download_client())
        with _network_errors():
            answer = open_now.enter_context(
                client.opened("GET", address, headers=asked, total_s=_TIMEOUT_S, follow=Follow.ANYWHERE, renewed=True)
            )
        if answer.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise RefusedError(address, answer.status)
        if here and answer.status != HTTPStatus.PARTIAL_CONTENT:
            here = 0  # this server sends the whole file again
        file = open_now.enter_context(part.open("r+b" if here else "wb"))
        file.seek(here)
        while True:
            with _network_errors():
                piece = next(answer.pieces, b"")
            if not piece:
                break
            if here + len(piece) > size:
                part.unlink()
                raise DownloadError(
                    f"{address} is longer than its publisher says",
                    cause=f"more than {size_text(size)} were received",
                    remedy="run again; if that does not help, something on the way or the publisher changes it",
                )
            file.write(piece)
            here += len(piece)
            tell(here)
        file.flush()
        os.fsync(file.fileno())


def part_of(path: Path) -> Path:
    """Return the place of a file until it is whole."""
    return path.with_name(f"{path.name}.part")


def bytes_present(path: Path) -> int:
    """Return the bytes that are there of a file."""
    return path.stat().st_size if path.exists() else 0

"""One file over HTTP: taken up where an earlier try stopped, and put in its place only when its digest is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cm4vllm.common.errors import DownloadError
from cm4vllm.common.units import size_text

__all__ = ["digest_of", "fetch", "open_url", "part_of", "present", "short_text"]

_TIMEOUT_S = 60.0
#: The number of times that a download is continued after its connection broke.
_ATTEMPTS = 5
PAUSE_S = 2.0
_CHUNK = 2**20
#: The longest list of files that is read; that of a model with a thousand shards takes 100 kB.
_LONGEST_TEXT = 2**24


def fetch(
    address: str, path: Path, size: int, digest: str, headers: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    """Download one file of `size` bytes to `path`, on from what `path`.part already holds of it.

    `digest` is `<kind>:<hex>`. `headers` go to the address's own host alone, and never from https to http. Raises
    DownloadError for a wrong digest, for more than `size` bytes, and for a connection that stays broken,
    urllib.error.HTTPError for a refusal, OSError for the disk.
    """
    part = part_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fill(address, part, size, headers, tell)
        got = digest_of(part, digest.partition(":")[0])
    except urllib.error.HTTPError:
        raise
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


def open_url(address: str, headers: Mapping[str, str], method: str = "GET", *, follow: bool = False) -> Any:
    """Ask for an address and return the answer, a context manager. With `follow`, redirects are followed."""
    request = urllib.request.Request(address, headers=dict(headers), method=method)  # noqa: S310
    return urllib.request.build_opener(_Redirect(follow)).open(request, timeout=_TIMEOUT_S)


def short_text(answer: Any) -> str:
    """Return the text of a short answer, for example a list of files. Raises ValueError where it is too long."""
    body: bytes = answer.read(_LONGEST_TEXT + 1)
    if len(body) > _LONGEST_TEXT:
        raise ValueError(f"the answer is longer than {size_text(_LONGEST_TEXT)}")
    return body.decode()


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Credentials go to the address that was given, and to no other host, port or protocol."""

    def __init__(self, follow: bool) -> None:
        self._follow = follow

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not self._follow:
            return None
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and _origin(urlsplit(new.full_url)) != _origin(urlsplit(req.full_url)):
            new.headers = {key: value for key, value in new.headers.items() if key == "Range"}
        return new


def _origin(address: SplitResult) -> tuple[str, str | None, int | None]:
    return address.scheme, address.hostname, address.port or {"http": 80, "https": 443}.get(address.scheme)


def digest_of(path: Path, kind: str) -> str:
    """Return the digest of a file as `<kind>:<hex>`, `kind` being md5 or sha256."""
    with path.open("rb") as file:
        made = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{made.hexdigest()}"


def _fill(address: str, part: Path, size: int, headers: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Append to `part` until it has `size` bytes; a broken connection is taken up again."""
    begin, first = time.monotonic(), present(part)
    for attempt in range(1, _ATTEMPTS + 1):
        if present(part) > size:
            part.unlink()
        try:
            _append(
                address,
                part,
                size,
                headers,
                lambda here: tell(
                    f"{size_text(here)} of {size_text(size)}, "
                    f"{size_text((here - first) / (time.monotonic() - begin))}/s"
                ),
            )
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code < http.client.INTERNAL_SERVER_ERROR:
                    raise
            cause = str(error)
        else:
            cause = "the connection ended early"
        if present(part) == size:
            return
        if attempt < _ATTEMPTS:
            time.sleep(PAUSE_S)
    raise DownloadError(
        f"{address} could not be downloaded",
        cause=f"{cause} ({size_text(present(part))} of {size_text(size)} are downloaded)",
        remedy="run again: the download continues where it stopped",
    )


def _append(address: str, part: Path, size: int, headers: Mapping[str, str], tell: Callable[[int], None]) -> None:
    here = present(part)
    if here == size and part.exists():
        return
    with open_url(address, {**headers, **({"Range": f"bytes={here}-"} if here else {})}, follow=True) as answer:
        if here and answer.status != http.client.PARTIAL_CONTENT:
            here = 0  # this server sends the whole file again
        with part.open("r+b" if here else "wb") as file:
            file.seek(here)
            while chunk := answer.read(_CHUNK):
                if here + len(chunk) > size:
                    part.unlink()
                    raise DownloadError(
                        f"{address} is longer than its publisher says",
                        cause=f"more than {size_text(size)} were received",
                        remedy="run again; if that does not help, something on the way or the publisher changes it",
                    )
                file.write(chunk)
                here += len(chunk)
                tell(here)
            file.flush()
            os.fsync(file.fileno())


def part_of(path: Path) -> Path:
    """Return the place of a file until it is whole."""
    return path.with_name(f"{path.name}.part")


def present(path: Path) -> int:
    """Return the bytes that are there of a file."""
    return path.stat().st_size if path.exists() else 0

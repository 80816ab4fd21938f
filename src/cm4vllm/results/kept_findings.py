"""Findings of a large submission, kept while neither its files nor this package change: by digest, not by time.

Only submissions of published rounds are that large: a smaller one is checked about as fast as its files are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

import cm4vllm
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_bytes
from cm4vllm.results.findings import Finding

__all__ = ["CheckedSubmission", "digest_of_submission", "keep", "keeping_folder", "kept"]

#: From this number of files on findings are kept.
_LARGE = 400
_BLOCK = 2**20


class CheckedSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, how many results it has, and all that was found in it. `round` is empty for an unknown one."""

    division: str
    submitter: str
    round: str
    results: int
    findings: tuple[Finding, ...]


class _Kept(msgspec.Struct, frozen=True):
    digest: str
    checked: CheckedSubmission


def keeping_folder() -> Path:
    """Return where findings are kept."""
    return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cm4vllm" / "checks").expanduser()


def digest_of_submission(home: Path, round_name: str) -> str:
    """Return one digest of the names and contents of a submission's files, the asked round and this package.

    Empty for a small submission, whose findings are not kept, and for one that changes or cannot be read.
    """
    entries = list(_entries(home))
    if len(entries) < _LARGE:
        return ""
    digest = hashlib.sha256(f"{round_name}\n{_package()}\n{home}\n".encode())
    try:
        for name, path in entries:
            digest.update(f"{name}\n".encode(errors="surrogateescape"))
            if path is not None:
                digest.update(_content(path))
    except OSError:
        return ""
    return digest.hexdigest()


def kept(folder: Path, home: Path, digest: str) -> CheckedSubmission | None:
    """Return what was kept for a submission of this digest; None where there is nothing."""
    try:
        found = msgspec.json.decode(_file(folder, home).read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return found.checked if found.digest == digest else None


def keep(folder: Path, home: Path, digest: str, checked: CheckedSubmission) -> None:
    """Keep what was found, in place of what was kept for the same submission; nothing where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(_file(folder, home), msgspec.json.encode(_Kept(digest, checked)))
    except (OSError, CmError):
        return


def _file(folder: Path, home: Path) -> Path:
    return folder / f"{hashlib.sha256(str(home).encode(errors='surrogateescape')).hexdigest()[:32]}.json"


def _entries(home: Path) -> Iterator[tuple[str, Path | None]]:
    """Give each file and folder below `home`, in a fixed order; a folder and what is no file without its path."""
    for folder, folders, files in os.walk(home):
        folders.sort()
        yield f"{os.path.relpath(folder, home)}/", None
        for name in sorted(files):
            path = Path(folder, name)
            yield os.path.relpath(path, home), path if path.is_file() else None


def _content(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()


@cache
def _package() -> str:
    """Return the digest of this package: other rules find other things."""
    root = Path(cm4vllm.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return hashlib.sha256(b"".join(_content(path) for path in files)).hexdigest()

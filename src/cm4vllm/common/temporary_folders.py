"""Folders for files that are needed for a short time, on a disk that may be full.

Each is locked while it is used. Those that killed processes have left are removed when the next is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cm4vllm.common.errors import DiskFull, NotWritable

__all__ = ["scratch_folder"]

_ELSEWHERE = "name another folder with the environment variable TMPDIR"
#: The end of the names of these folders: no other folder is ever removed.
_SUFFIX = ".scratch"
#: An empty folder of less than this age, in s, may be one that is about to be locked.
_NEW_S = 60.0


@contextmanager
def scratch_folder(prefix: str = "cm4vllm-") -> Iterator[Path]:
    """Give a folder below the system's folder for temporary files, which is removed at the end of the block.

    Raises NotWritable where no such folder can be written to, DiskFull where it is full; both name TMPDIR.
    """
    try:
        _remove_left(prefix)
        made = tempfile.TemporaryDirectory(prefix=prefix, suffix=_SUFFIX)
    except OSError as error:
        raise NotWritable(
            "no folder for temporary files can be made", cause=error.strerror or str(error), remedy=_ELSEWHERE
        ) from error
    with made as folder, _locked(folder):
        try:
            yield Path(folder)
        except (DiskFull, OSError) as error:
            named = isinstance(error, DiskFull) and folder in error.what
            if not named and (isinstance(error, DiskFull) or not _is_full(folder)):
                raise
            raise DiskFull(
                f"the disk of the folder for temporary files, {Path(folder).parent}, is full",
                cause=str(getattr(error, "what", error)),
                remedy=f"free space there, or {_ELSEWHERE}",
            ) from error


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder: it ends with this process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: what is left there stays
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_left(prefix: str) -> None:
    """Remove the folders with this prefix that belong to the user and that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            state = path.lstat()
            empty_and_new = time.time() - state.st_mtime < _NEW_S and not any(path.iterdir())
            if state.st_uid == os.getuid() and not empty_and_new and _is_free(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_free(path: Path) -> bool:
    """Tell whether no process holds the lock of a folder. Raises OSError for what is no folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_full(folder: str) -> bool:
    """Say whether a page can no longer be written in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * os.sysconf("SC_PAGE_SIZE"))
            file.flush()
    except OSError:
        return True
    return False

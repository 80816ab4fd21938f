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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cm4vllm.common.errors import DiskFull, NotWritable

__all__ = ["remove_unlocked", "scratch_folder"]

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
        left = (path for path in Path(tempfile.gettempdir()).glob(f"{prefix}*{_SUFFIX}") if not _is_new(path))
        remove_unlocked(left, lambda path: shutil.rmtree(path, ignore_errors=True))
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


def remove_unlocked(folders: Iterable[Path], remove: Callable[[Path], object]) -> None:
    """Call `remove` with each folder that belongs to the user and whose lock no process holds; it is locked then."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it is no folder, was removed by somebody else, or is locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)
            finally:
                os.close(lock)


def _is_new(path: Path) -> bool:
    """Tell whether a folder is so new that its process may not have locked it yet; True if it cannot be read."""
    try:
        return time.time() - path.lstat().st_mtime < _NEW_S and not any(path.iterdir())
    except OSError:
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

"""Folders for files that are needed for a short time, on a disk that may be full.

Each is locked while it is used. Those that killed processes have left are removed when the next is made.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cm4vllm.common.errors import DiskFull, NotWritable
from cm4vllm.common.folders.ownership_notes import in_the_making, remove_marked, unmark

_ELSEWHERE = "name another folder with the environment variable TMPDIR"
#: The end of the names of these folders. A folder of that name without our mark belongs to somebody else.
_SUFFIX = ".scratch"


@contextmanager
def scratch_folder(prefix: str = "cm4vllm-") -> Iterator[Path]:
    """Yield a folder below the system's folder for temporary files, which is removed at the end of the block.

    Raises NotWritable where no such folder can be written to, DiskFull where it is full; both name TMPDIR.
    """
    try:
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*{_SUFFIX}"):
            with contextlib.suppress(BlockingIOError):
                remove_marked(left)
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
    """Mark a folder, and hold its lock: it ends with this process, however that ends."""
    with in_the_making(Path(folder)):
        try:
            yield
        finally:
            unmark(Path(folder))


def _is_full(folder: str) -> bool:
    """Return True if a page can no longer be written in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * os.sysconf("SC_PAGE_SIZE"))
            file.flush()
    except OSError:
        return True
    return False

"""The lock by which one command at a time writes to a folder of results."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cm4vllm.common.errors import NotWritable, UsageError, translated_os_errors
from cm4vllm.common.files import opened
from cm4vllm.common.plain_files import opened_in_place


def require_unlocked(lock: Path, folder: Path) -> None:
    """Refuse a folder whose lock another command holds. Writes nothing. Raises UsageError, NotWritable."""
    try:
        with opened(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        raise UsageError(
            f"another run is writing its results to {folder}", remedy="wait for it, or choose another --output_dir"
        ) from error
    except OSError as error:
        raise NotWritable(
            f"cannot write to {folder}",
            cause=f"{lock.name} there: {error.strerror}",
            remedy="choose another --output_dir",
        ) from error


@contextmanager
def only_one(lock: Path, folder: Path) -> Iterator[None]:
    """Keep a second command out of `folder` while this one lasts. Raises UsageError."""
    with translated_os_errors("lock", lock, "--output_dir"):
        file = os.fdopen(opened_in_place(lock, os.O_RDWR | os.O_CREAT), "rb")
    with file:
        for left in range(3, -1, -1):  # a plan holds the lock for a moment, to see whether a run has it
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    require_unlocked(lock, folder)
                    raise
                time.sleep(0.1)
        yield

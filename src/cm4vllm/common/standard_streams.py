"""Standard output and error that cannot be written: a run goes on, and its results do not depend on them.

The reader of a pipe may have gone, which is how `| head` ends; a file may be on a full disk, and a stream may have been
closed before this process began. What could not be written for another reason than a reader that has gone is reported.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

__all__ = ["ensure_streams", "give_up", "lost_output", "report"]

_READER_GONE = (errno.EPIPE, errno.EIO)
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
_lost: list[str] = []


def ensure_streams() -> None:
    """Replace each standard stream that was closed when this process began: another file would take its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Lower numbers are in use by now, so that the null device gets this one where it is free.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, null == descriptor)
            setattr(sys, name, os.fdopen(null, "r" if descriptor == 0 else "w", encoding="utf-8"))
            if descriptor:
                _lost.append(f"{name} is closed")


def give_up(stream: TextIO, error: OSError) -> None:
    """Have what else is written to `stream` go nowhere. Raises `error` where it is none of a stream's own."""
    if error.errno not in (*_READER_GONE, *_NOT_WRITTEN):
        raise error
    if error.errno in _NOT_WRITTEN:
        _lost.append(f"{getattr(stream, 'name', 'output')}: {error.strerror}")
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def report(text: str) -> None:
    """Write `text` to standard error where it can be written.

    What stayed in the buffer would be tried again as Python ends, and turn the exit code into 120.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        with suppress(OSError):
            give_up(sys.stderr, error)


def lost_output() -> str:
    """Return why a standard stream could not be written, a reader that has gone aside; empty if all was written."""
    return "; ".join(dict.fromkeys(_lost))

"""Standard output and error that cannot be written: a run goes on, and its results do not depend on them.

The reader of a pipe may have gone, which is how `| head` ends; a file may be on a full disk, and a stream may have been
closed before this process began. What could not be written for another reason than a reader that has gone is reported.
"""

import errno
import os
import stat
import sys
from contextlib import suppress
from typing import TextIO

_READER_GONE = (errno.EPIPE, errno.ECONNRESET)
_lost: list[str] = []


def ensure_streams() -> None:
    """Open the standard streams that are closed, and make each wait for its reader.

    One that was closed when this process began is replaced: another file would take its number. A pipe that does not
    wait, as the programs of some CI systems give it, would lose what a slow reader has not read yet.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Lower numbers are in use by now, so that the null device gets this one where it is free.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, null == descriptor)
            setattr(sys, name, os.fdopen(null, "r" if descriptor == 0 else "w", encoding="utf-8"))
            if descriptor:
                _lost.append(f"{name} is closed")
        elif descriptor:
            have_wait(getattr(sys, name))


def have_wait(stream: TextIO) -> None:
    """Make a stream wait for its reader, also where a program that got it from this one has changed that since."""
    with suppress(OSError, ValueError):
        if not os.get_blocking(stream.fileno()):
            os.set_blocking(stream.fileno(), True)


def give_up(stream: TextIO, error: OSError) -> None:
    """Discard what else is written to `stream`, because of the error of a write to it."""
    if not _reader_has_gone(stream, error):
        _lost.append(f"{getattr(stream, 'name', 'output')}: {error.strerror or error}")
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _reader_has_gone(stream: TextIO, error: OSError) -> bool:
    """Return True for the end of a pipe's or a socket's reader, or of a terminal: of a disk, EIO is a failure."""
    try:
        is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        is_device = False
    return error.errno in _READER_GONE or (error.errno == errno.EIO and is_device)


def report(text: str) -> None:
    """Write `text` to standard error where it can be written.

    What stayed in the buffer would be tried again as Python ends, and turn the exit code into 120.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        give_up(sys.stderr, error)


def lost_output() -> str:
    """Return why a standard stream could not be written, a reader that has gone aside; empty if all was written."""
    return "; ".join(dict.fromkeys(_lost))

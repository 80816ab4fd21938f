"""Folders that somebody else may have prepared: only plain files and folders in them are read and written.

A link leads to a file elsewhere, which would be read or overwritten; a pipe without a reader holds up whoever opens it.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cm4vllm.common.errors import UsageError, translated_os_errors

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_CAUSE = "results are plain files in plain folders; anything else leads outside the results folder, or never ends"


def require_plain_files(folder: Path) -> None:
    """Refuse a folder that is a link, or in which anything is neither a plain file nor a folder; links in the path to
    it are its user's choice.

    Nothing is followed, opened or written to find out. Raises UsageError naming the path, NotWritable for a folder that
    cannot be listed.
    """
    if folder.is_symlink():
        raise _not_plain(folder)
    todo = [os.fspath(folder)]
    while todo:
        place = todo.pop()
        with translated_os_errors("read", place, "--output_dir"), _folder_entries(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise _not_plain(Path(entry.path))


def _folder_entries(place: str) -> AbstractContextManager[Iterable[os.DirEntry[str]]]:
    """Return the entries of a folder; none for a folder that does not exist, or no longer."""
    try:
        return os.scandir(place)
    except (FileNotFoundError, NotADirectoryError):
        return nullcontext(())


def opened_in_place(path: Path, flags: int) -> int:
    """Open a file that is written where it stands, and return its descriptor.

    Raises UsageError for a link, a pipe, a socket, a device and a file that has a second name, OSError for all else.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_plain(path) from error
        raise
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return handle
    os.close(handle)
    if not stat.S_ISREG(status.st_mode):
        raise _not_plain(path)
    raise UsageError(
        f"{path} is a file with {status.st_nlink} names (hard links)",
        cause="what is written to it would change the file of the other name, too",
        remedy=f"make it a file of its own: cp {path.name} copy && mv copy {path.name}",
    )


def _not_plain(path: Path) -> UsageError:
    """Return the error for a path that is no plain file, with what it is."""
    try:
        kind = _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "not a plain file")
    except OSError:
        kind = "not a plain file"
    return UsageError(f"{path} is {kind}", cause=_CAUSE, remedy="remove it, or choose another folder with --output_dir")

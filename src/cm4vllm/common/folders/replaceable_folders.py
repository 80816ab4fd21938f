"""Folders that a user names for a result: refused where they hold anything but an earlier result of the same kind."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.common.errors import UsageError, translated_os_errors
from cm4vllm.common.folders.ownership_notes import Note, entries, is_as_noted, is_working_folder
from cm4vllm.common.terminal_text import first_of

#: Names of files that a message has at most.
_SHOWN = 4


def _is_nothing(_folder: Path) -> bool:
    return False


@dataclass(frozen=True)
class Kind:
    """A kind of result that a user gives a folder for: its title in messages, and the flag that names the folder.

    `recognised` tells whether a folder without a note is a result of this kind, as versions without notes left them.
    `refused` says why a folder is not replaced though it is one; empty otherwise. `into_working_folder` is for results
    whose files may lie among others: the working folder may be given for them.
    """

    title: str
    flag: str
    recognised: Callable[[Path], bool] = _is_nothing
    refused: Callable[[Path], str] = field(default=lambda _folder: "")
    into_working_folder: bool = False


def require_replaceable(target: Path, kind: Kind) -> None:
    """Refuse a target that would be replaced, and is neither empty nor an earlier result of this kind.

    Nothing is written to find out. Raises UsageError, NotWritable for a folder that cannot be listed.
    """
    remedy = f"name a new folder, an empty one or one with an earlier result with {kind.flag}"
    if why := _protected(target):
        if kind.into_working_folder and is_working_folder(target):
            return
        raise UsageError(f"{target} is not replaced by {kind.title}", cause=why, remedy=remedy)
    place = linked_folder(target)
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        kind_of_file = "a link that leads to no folder" if place.is_symlink() else "a file, not a folder"
        raise UsageError(f"{target} is not replaced by {kind.title}", cause=f"it is {kind_of_file}", remedy=remedy)
    with translated_os_errors("read", place, kind.flag):
        there = sorted(entries(place))
    if not there:
        return
    note = Note.of(place)
    known = (
        note.marks(place)
        or kind.recognised(place)
        or any(is_as_noted(place / name, note.files.get(name)) for name in there)
    )
    if known and not (why := kind.refused(place)):
        return
    files = [name for name in there if not name.endswith("/")] or there
    raise UsageError(
        f"{target} is not replaced by {kind.title}",
        cause=why or f"it is no earlier result of this kind, and holds {first_of(files, _SHOWN)}",
        remedy=f"{remedy}; or move these files to another place first",
    )


def _protected(target: Path) -> str:
    """Return why a folder is never replaced, whatever is in it; empty for any other."""
    place = Path(os.path.realpath(target))
    here = Path(os.path.realpath("."))
    if place == here:
        return "it is the working folder"
    if place in here.parents:
        return "the working folder is in it"
    if place == Path(os.path.realpath(Path("~").expanduser())):
        return "it is a home folder"
    return "a file system is mounted there" if os.path.ismount(place) else ""


def linked_folder(target: Path) -> Path:
    """Return the folder that a link leads to, which its user means; any other path as it is."""
    return Path(os.path.realpath(target)) if target.is_symlink() and target.is_dir() else target

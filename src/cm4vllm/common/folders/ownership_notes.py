"""Notes of what belongs to cm4vllm: the files of a finished result, and a folder that a command is making.

Beside a result NAME lies its note, `.NAME.cm4vllm.json`. The note of a finished result lists its files, each with its
size and the time of its last change: a file that fits is ours, anything else belongs to the user. The note of a folder
that is being made, its mark, states the folder's inode and time of birth: another folder under the same name is not
that one, also where the file system gives it the same inode. While the command runs, it holds the folder's lock. A name
alone, an age or a place shows nothing. A folder that a user names for a result is refused where it holds anything but
an earlier result of the same kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.errors import UsageError, translated_os_errors
from cm4vllm.common.files import write_json
from cm4vllm.common.terminal_text import first_of

#: Size in bytes and time of the last change in ns, of each file by its path in the folder. Folders end with a slash,
#: and have no figures.
Files = dict[str, list[int]]
#: Linux's statx(2): the flag that follows no link, the bit of the time of birth, and its place in the answer.
_AT_FDCWD, _NO_FOLLOW, _BIRTH, _BIRTH_AT = -100, 0x100, 0x800, 80


@dataclass(frozen=True)
class Note:
    """The note beside a place: the files of a finished result, or the identity of a folder in the making."""

    files: Files = field(default_factory=dict)
    made: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, place: Path) -> Note:
        """Read the note beside a place; an empty one where there is none, or one of another user's."""
        for path in _note_paths(place):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    value = object_of(path)
                    files, made = value.get("files"), value.get("made")
                    if isinstance(files, dict) or isinstance(made, list):
                        return cls(files if isinstance(files, dict) else {}, made if isinstance(made, list) else [])
        return cls()

    def marks(self, folder: Path) -> bool:
        """Return True if this is the mark of a folder that a command is making, or was making when it was killed."""
        return bool(self.made) and self.made == identity(folder)


def identity(folder: Path) -> list[int]:
    """Return the inode of a folder and its time of birth in ns, 0 on a file system without one; empty without a folder.

    Of folders that had the same name one after the other, both together differ.
    """
    try:
        inode = folder.lstat().st_ino
    except OSError:
        return []
    answer = ctypes.create_string_buffer(256)
    with contextlib.suppress(AttributeError):  # a C library without statx
        asked = (_AT_FDCWD, os.fsencode(folder), _NO_FOLLOW, _BIRTH, answer)
        if ctypes.CDLL(None).statx(*asked) == 0 and struct.unpack_from("I", answer)[0] & _BIRTH:
            seconds, rest = struct.unpack_from("qI", answer, _BIRTH_AT)
            return [inode, seconds * 10**9 + rest]
    return [inode, 0]


def path_beside(target: Path, ending: str, beginning: str = "") -> Path:
    """Return the place of that name beside a target: in it where it is the working folder, which has no other place."""
    folder = target if is_working_folder(target) else target.parent
    return folder / f"{beginning}{target.name}{ending}"


def is_working_folder(target: Path) -> bool:
    """Return True if a path leads to the working folder."""
    with contextlib.suppress(OSError):
        return target.samefile(Path.cwd())
    return False


def _note_paths(place: Path) -> tuple[Path, Path]:
    """Return where the note of a place may lie: beside it, or in it where it was the working folder."""
    name = f".{place.name}.cm4vllm.json"
    return place.parent / name, place / name


def _write_note(place: Path, note: Mapping[str, object]) -> None:
    write_json(_note_paths(place)[is_working_folder(place)], note)


def entries(folder: Path) -> Files:
    """Return what is in a folder, as notes list it; no link is followed. Raises OSError."""
    listed: Files = {}
    todo = [""]
    while todo:
        place = todo.pop()
        with os.scandir(folder / place) as listing:
            for entry in listing:
                name = place + entry.name
                if entry.is_dir(follow_symlinks=False):
                    listed[f"{name}/"] = []
                    todo.append(f"{name}/")
                else:
                    listed[name] = _figures(Path(entry.path))
    return listed


def foreign(folder: Path) -> list[str]:
    """Return what is in a folder and is not as its note lists it, by its path in the folder. Raises OSError."""
    noted = Note.of(folder).files
    return [name for name, figures in entries(folder).items() if noted.get(name) != figures]


def _figures(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def is_as_noted(path: Path, noted: object) -> bool:
    """Return True if a file is the one that was noted; a folder never is one."""
    if not noted:
        return False
    try:
        return _figures(path) == noted
    except OSError:
        return False


def note_all(place: Path, files: Files) -> None:
    """Write the note of a finished result, or of a file, whose name is empty then. Raises DiskFull, NotWritable."""
    with translated_os_errors("finish", place):
        _write_note(place, {"files": files})


def note_files(folder: Path, names: Iterable[str]) -> None:
    """Note files that were added to a result, or written again; nothing is noted where the folder has no note.

    The time of a record that is written again would show it as the user's own otherwise.
    """
    if files := Note.of(folder).files:
        with contextlib.suppress(OSError):
            added = {name: _figures(folder / name) for name in names}
            _write_note(folder, {"files": files | added})


def note_finished(folder: Path) -> None:
    """Note all that is in a folder as the files of a finished result. Raises DiskFull, NotWritable."""
    with translated_os_errors("finish", folder):
        note_all(folder, entries(folder))


def note_written(path: Path) -> None:
    """Note that a file is ours as it is now: the next command may replace it."""
    note_all(path, {"": _figures(path)})


def mark(folder: Path) -> None:
    """Note that a command makes a folder, as long as it holds the folder's lock."""
    _write_note(folder, {"made": identity(folder)})


def unmark(folder: Path) -> None:
    """Remove the note beside a folder, or beside one that is gone."""
    if Note.of(folder) != Note():
        for path in _note_paths(folder):
            with contextlib.suppress(OSError):
                path.unlink()


@contextmanager
def in_the_making(folder: Path) -> Iterator[None]:
    """Mark a folder, and hold its lock, which ends with this process, however that ends. Raises OSError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark(folder)
        yield
    finally:
        os.close(lock)


def remove_marked(folder: Path, remove: Callable[[Path], object] = shutil.rmtree) -> bool:
    """Call `remove` with a folder that a killed command was making; tell whether nothing is at its place then.

    One without its mark stays. Only for folders with random names in the system's folder for temporary files: any other
    may hold files of the user by then. Raises BlockingIOError for one whose command runs: it holds the folder's lock.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.getuid() and Note.of(folder).marks(folder):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
                unmark(folder)
        finally:
            os.close(lock)
    except BlockingIOError:
        raise
    except OSError:  # no folder, removed meanwhile, or on a file system without locks
        pass
    return not os.path.lexists(folder)


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
    if why := _protection_reason(target):
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


def _protection_reason(target: Path) -> str:
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

"""Replacement and removal: only of what an earlier command of cm4vllm noted as its own.

Beside a result NAME lies its note, `.NAME.cm4vllm.json`. The note of a finished result lists its files, each with its
size and the time of its last change: a file that fits is ours, anything else belongs to the user. It stays, and is
moved to a new name, kept-NAME, which is said. The note of a folder that is being made states its inode: all of that one
folder belongs to the command that holds its lock, and to the next command once none does. A name alone, an age or a
place shows nothing.

A folder that is replaced is renamed to kept-NAME first, and its noted files are removed from there. The working folder
is never renamed: what is made for it lies in it, and is moved into it file by file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.errors import NotWritable, UsageError, translated_os_errors
from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.progress import warn
from cm4vllm.common.terminal_text import first_of

__all__ = [
    "Kind",
    "beside",
    "discard",
    "foreign",
    "forget",
    "make_way",
    "mark",
    "move_result",
    "note_files",
    "note_finished",
    "note_written",
    "recover",
    "remove_marked",
    "require_replaceable",
    "staged_file",
    "staged_folder",
    "unmark",
    "write_noted",
]

#: Size in bytes and time of the last change in ns, of each file by its path in the folder. Folders end with a slash,
#: and have no figures.
Files = dict[str, list[int]]
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


@dataclass(frozen=True)
class _Note:
    """The note beside a place: the files of a finished result, or the inode of a folder in the making."""

    files: Files = field(default_factory=dict)
    inode: int = 0

    @classmethod
    def of(cls, place: Path) -> _Note:
        """Read the note beside a place; an empty one where there is none, or one of another user's."""
        for path in _note_paths(place):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    value = object_of(path)
                    files, inode = value.get("files"), value.get("inode")
                    if isinstance(files, dict) or isinstance(inode, int):
                        return cls(files if isinstance(files, dict) else {}, inode if isinstance(inode, int) else 0)
        return cls()


def beside(target: Path, ending: str, beginning: str = "") -> Path:
    """Return the place of that name beside a target: in it where it is the working folder, which has no other place."""
    folder = target if _is_working_folder(target) else target.parent
    return folder / f"{beginning}{target.name}{ending}"


def _note_paths(place: Path) -> tuple[Path, Path]:
    """Return where the note of a place may lie: beside it, or in it where it was the working folder."""
    name = f".{place.name}.cm4vllm.json"
    return place.parent / name, place / name


def _write_note(place: Path, note: Mapping[str, object]) -> None:
    write_json(_note_paths(place)[_is_working_folder(place)], note)


def _is_working_folder(target: Path) -> bool:
    with contextlib.suppress(OSError):
        return target.samefile(Path.cwd())
    return False


def require_replaceable(target: Path, kind: Kind) -> None:
    """Refuse a target that would be replaced, and is neither empty nor an earlier result of this kind.

    Nothing is written to find out. Raises UsageError, NotWritable for a folder that cannot be listed.
    """
    remedy = f"name a new folder, an empty one or one with an earlier result with {kind.flag}"
    if why := _protected(target):
        if kind.into_working_folder and _is_working_folder(target):
            return
        raise UsageError(f"{target} is not replaced by {kind.title}", cause=why, remedy=remedy)
    place = _real(target)
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        kind_of_file = "a link that leads to no folder" if place.is_symlink() else "a file, not a folder"
        raise UsageError(f"{target} is not replaced by {kind.title}", cause=f"it is {kind_of_file}", remedy=remedy)
    with translated_os_errors("read", place, kind.flag):
        foreign = sorted(_entries(place))
    if not foreign:
        return
    note = _Note.of(place)
    begun = note.inode == _inode(place)  # by a command that was ended
    known = begun or kind.recognised(place) or any(_is_as_noted(place / name, note.files.get(name)) for name in foreign)
    if known and not (why := kind.refused(place)):
        return
    files = [name for name in foreign if not name.endswith("/")] or foreign
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


def _real(target: Path) -> Path:
    """Return the folder that a link leads to, which its user means; any other path as it is."""
    return Path(os.path.realpath(target)) if target.is_symlink() and target.is_dir() else target


def _entries(folder: Path) -> Files:
    """Return what is in a folder, as notes list it; no link is followed. Raises OSError."""
    listed: Files = {}
    todo = [""]
    while todo:
        place = todo.pop()
        with os.scandir(folder / place) as entries:
            for entry in entries:
                name = place + entry.name
                if entry.is_dir(follow_symlinks=False):
                    listed[f"{name}/"] = []
                    todo.append(f"{name}/")
                else:
                    listed[name] = _figures(Path(entry.path))
    return listed


def _figures(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def _is_as_noted(path: Path, noted: object) -> bool:
    """Return True if a file is the one that was noted; a folder never is one."""
    if not noted:
        return False
    try:
        return _figures(path) == noted
    except OSError:
        return False


def note_files(folder: Path, names: Iterable[str]) -> None:
    """Note files that were added to a result, or written again; nothing is noted where the folder has no note.

    The time of a record that is written again would show it as the user's own otherwise.
    """
    if files := _Note.of(folder).files:
        with contextlib.suppress(OSError):
            added = {name: _figures(folder / name) for name in names}
            _write_note(folder, {"files": files | added})


def _note_all(place: Path, files: Files) -> None:
    with translated_os_errors("finish", place):
        _write_note(place, {"files": files})


def note_finished(folder: Path) -> None:
    """Note all that is in a folder as the files of a finished result; `mark` was called when it was begun."""
    with translated_os_errors("finish", folder):
        _note_all(folder, _entries(folder))


def mark(folder: Path) -> None:
    """Note that all of a folder belongs to the command that makes it, as long as it holds the folder's lock."""
    _write_note(folder, {"inode": folder.stat().st_ino})


def unmark(folder: Path) -> None:
    """Remove the note beside a folder, or beside one that is gone."""
    if _Note.of(folder) != _Note():
        for path in _note_paths(folder):
            with contextlib.suppress(OSError):
                path.unlink()


def remove_marked(folder: Path, remove: Callable[[Path], object] = shutil.rmtree) -> bool:
    """Call `remove` with a folder that a killed command was making; tell whether nothing is there then.

    One without a note stays. Raises BlockingIOError for one whose command runs: it holds the folder's lock.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(lock)
            if status.st_uid == os.getuid() and status.st_ino == _Note.of(folder).inode:
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


def discard(folder: Path) -> None:
    """Remove a result, a folder or a file, as far as its note lists it.

    All else that is there is kept under a new name, which is said.

    Raises NotWritable, also for a folder that a running command makes.
    """
    with translated_os_errors("replace", folder):
        recover(folder)
        try:
            gone = remove_marked(folder)
        except BlockingIOError as error:
            raise _held(folder, folder) from error
        if not gone and folder.is_file() and _is_as_noted(folder, _Note.of(folder).files.get("")):
            folder.unlink()
            unmark(folder)
        elif not gone:
            _removed_from(_set_aside(folder), folder)


def _set_aside(target: Path) -> Path:
    """Rename what is at a place to a name that is free, with its note, and return the new place."""
    names = (beside(target, "", f"kept{number or ''}-") for number in count())
    aside = next(place for place in names if not os.path.lexists(place))
    if files := _Note.of(target).files:
        _note_all(aside, files)
    target.rename(aside)
    unmark(target)
    return aside


def _removed_from(aside: Path, target: Path, carried: Mapping[str, list[int]] = MappingProxyType({})) -> None:
    """Remove the noted files of a result that was set aside, and say so where others are left.

    `carried` are files of others, which are as they are in `target`, too.
    """
    noted = {**_Note.of(aside).files, **carried}
    with contextlib.suppress(OSError):  # what this user may not remove stays there
        for name in sorted(_entries(aside) if noted else {}, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):
                if name.endswith("/") and name in noted:
                    (aside / name).rmdir()
                elif _is_as_noted(aside / name, noted.get(name)):
                    (aside / name).unlink()
        aside.rmdir()
    unmark(aside)
    if os.path.lexists(aside):
        left = sorted(_entries(aside)) if aside.is_dir() and not aside.is_symlink() else []
        files = [name for name in left if not name.endswith("/")] or left
        of_it = f" ({first_of(files, _SHOWN)})" if files else ""
        warn(f"what was in {target} and is not known as a part of an earlier result{of_it} is now in {aside}")


def recover(target: Path) -> None:
    """Finish what a killed command was about when it replaced `target`: it had set the earlier result aside."""
    for number in count():
        aside = beside(target, "", f"kept{number or ''}-")
        if not os.path.lexists(aside):
            return
        if files := _Note.of(aside).files:
            if os.path.lexists(target):
                _removed_from(aside, target)
            else:
                aside.rename(target)
                _note_all(target, files)
                unmark(aside)


def make_way(target: Path) -> None:
    """Move what is at a place to a new name, which is said, unless its note says that an earlier command wrote it."""
    if os.path.lexists(target) and not _is_as_noted(target, _Note.of(target).files.get("")):
        with translated_os_errors("write", target):
            aside = _set_aside(target)
        warn(f"{target} was not written by cm4vllm, or was changed since: it is now {aside.name}")


def write_noted(path: Path, text: str) -> None:
    """Write a file that its user has named, and note it.

    What is there is replaced where an earlier command noted it, and kept under a new name, which is said, otherwise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    make_way(path)
    write_text(path, text)
    note_written(path)


def forget(path: Path) -> None:
    """Remove a file that `write_noted` wrote, if it is as it was written; any other stays."""
    if _is_as_noted(path, _Note.of(path).files.get("")):
        path.unlink()
        unmark(path)


def note_written(path: Path) -> None:
    """Note that a file is ours as it is now: the next command may replace it."""
    _note_all(path, {"": _figures(path)})


@contextmanager
def staged_file(path: Path) -> Iterator[Path]:
    """Yield the place of a file that becomes `path` when the block ends well, as `write_noted` writes it.

    Nothing is left of it otherwise. Raises NotWritable where another command is making the same file.
    """
    with translated_os_errors("prepare", path):
        staging, lock = _begun(path)
    try:
        yield staging / path.name
        make_way(path)
        (staging / path.name).rename(path)
        note_written(path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        unmark(staging)
        os.close(lock)


def foreign(folder: Path) -> list[str]:
    """Return what is in a folder and is not as its note lists it, by its path in the folder. Raises OSError."""
    noted = _Note.of(folder).files
    return [name for name, figures in _entries(folder).items() if noted.get(name) != figures]


def move_result(source: Path, target: Path) -> None:
    """Move a result to another name, replacing the earlier one there, as `staged_folder` does. Raises NotWritable."""
    files = _Note.of(source).files or _entries(source)
    with translated_os_errors("finish", target):
        _put_in_place(source, target, files)


@contextmanager
def staged_folder(
    target: Path,
    kind: Kind | None = None,
    *,
    ends_well: tuple[type[BaseException], ...] = (),
    carried: Collection[str] = (),
) -> Iterator[Path]:
    """Yield a folder beside `target` to fill; it becomes `target` when the block ends well.

    An earlier result at `target` is replaced; what else is there is kept under a new name, which is said. With `kind`
    the block does not begin where `require_replaceable` refuses. When the block fails, the filled folder is kept as
    `<target>.failed` for diagnosis and `target` stays as it was; an exception of `ends_well` is no failure. `carried`
    names the files of others that the block copies from `target` with their times: they stay their owners'. Raises
    NotWritable where another command is making the same.
    """
    if kind is not None:
        require_replaceable(target, kind)
    target = _real(target)
    with translated_os_errors("prepare", target):
        recover(target)
        staging, lock = _begun(target)
    try:
        made = _inode(staging)
        try:
            yield staging
        except ends_well:
            _finish(staging, target, made, carried)
            raise
        except BaseException as error:
            _keep_failed(staging, target, made, error)
            raise
        _finish(staging, target, made, carried)
    finally:
        os.close(lock)


def _begun(target: Path) -> tuple[Path, int]:
    """Make the folder that is filled, and lock it; return it and the lock. Raises OSError, NotWritable."""
    for number in count():
        staging = beside(target, f".partial{number or ''}")
        try:
            if remove_marked(staging):
                break
        except BlockingIOError as error:
            raise _held(target, staging) from error
    staging.mkdir(parents=True)
    lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks: what is left there stays
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    mark(staging)
    return staging, lock


def _finish(staging: Path, target: Path, made: int, carried: Collection[str]) -> None:
    if _inode(staging) != made:
        raise _vanished(target, staging)
    with translated_os_errors("finish", target):
        files = _entries(staging)
        theirs = {name: files.pop(name) for name in carried if name in files}
        _put_in_place(staging, target, files, theirs)
        _free_of_failed(target)


def _keep_failed(staging: Path, target: Path, made: int, error: BaseException) -> None:
    """Keep the folder of a block that failed. Raises an error with its cause for a folder that cannot be written."""
    vanished = _inode(staging) != made  # or was made again, by what writes its last words
    with contextlib.suppress(OSError, NotWritable):  # whatever failed first is what is reported
        failed = _free_of_failed(target)
        files = _entries(staging)
        staging.rename(failed)
        unmark(staging)
        _note_all(failed, files)
    if isinstance(error, OSError) and str(error.filename).startswith(f"{staging}{os.sep}"):
        if isinstance(error, FileNotFoundError) and vanished:
            raise _vanished(target, staging) from error
        if not isinstance(error, FileNotFoundError):
            with translated_os_errors("fill", target):
                raise error


def _free_of_failed(target: Path) -> Path:
    """Remove the folder of an earlier failure, and return its place, or the next one where the user has a folder."""
    for number in count():
        failed = beside(target, f".failed{number or ''}")
        if _Note.of(failed).files:
            discard(failed)
        if not os.path.lexists(failed):
            break
    return failed


def _put_in_place(
    staging: Path, target: Path, files: Files, carried: Mapping[str, list[int]] = MappingProxyType({})
) -> None:
    """Rename a filled folder to `target`, in place of what is there. Raises OSError.

    `files` are noted as ours, `carried` are files of others that are in both.
    """
    if _is_working_folder(target):
        _put_into(staging, target, files)
        return
    aside = _set_aside(target) if os.path.lexists(target) else None
    staging.rename(target)
    unmark(staging)
    _note_all(target, files)
    if aside is not None:
        _removed_from(aside, target, carried)


def _put_into(staging: Path, folder: Path, files: Files) -> None:
    """Move all of a filled folder into the working folder, in place of an earlier result's files. Raises OSError."""
    for name, noted in sorted(_Note.of(folder).files.items(), reverse=True):
        place = folder / name
        if place.parent.resolve().is_relative_to(folder.resolve()) and _is_as_noted(place, noted):
            place.unlink()
    for path in sorted(staging.iterdir()):
        make_way(folder / path.name)
        path.rename(folder / path.name)
    staging.rmdir()
    unmark(staging)
    _note_all(folder, files)


def _inode(folder: Path) -> int:
    """Return the inode of a folder, which differs between folders that had the same name; 0 if it is missing."""
    try:
        return folder.stat().st_ino
    except OSError:
        return 0


def _held(target: Path, making: Path) -> NotWritable:
    return NotWritable(
        f"cannot prepare {target}",
        cause=f"another command is making it, in {making}",
        remedy="wait for the end of that command, or choose another folder",
    )


def _vanished(target: Path, staging: Path) -> NotWritable:
    return NotWritable(
        f"cannot finish {target}",
        cause=f"{staging} was removed while it was being written",
        remedy="run it again, and check that no other program deletes files there during the run",
    )

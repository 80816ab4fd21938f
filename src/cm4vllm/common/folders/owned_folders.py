"""Replacement and removal: only of what an earlier command of cm4vllm noted as its own (ownership_notes.py).

All else that is found at a place belongs to the user. It stays, and is moved to a new name, kept-NAME, which is said.
So is all that a killed command left of a folder in the making, which has no list of files: some may be the user's.

A folder that is replaced is renamed to kept-NAME first, and its noted files are removed from there. The working folder
is never renamed: what is made for it lies in it, and is moved into it file by file.
"""

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType

from cm4vllm.common.errors import CmError, NotWritable, translated_os_errors
from cm4vllm.common.files import bytes_of, write_text
from cm4vllm.common.folders.ownership_notes import (
    Files,
    Kind,
    Note,
    entries,
    identity,
    in_the_making,
    is_as_noted,
    is_working_folder,
    linked_folder,
    note_all,
    note_files,
    note_finished,
    note_written,
    path_beside,
    require_replaceable,
    unmark,
)
from cm4vllm.common.progress import warn
from cm4vllm.common.terminal_text import first_of

#: Names of files that a message has at most.
_SHOWN = 4


def discard(folder: Path) -> None:
    """Remove a result, a folder or a file, as far as its note lists it.

    All else that is there is kept under a new name, which is said: what a killed command left as a whole.

    Raises NotWritable, also for a folder that a running command makes.
    """
    with translated_os_errors("replace", folder):
        recover(folder)
        _require_ended(folder, folder)
        if folder.is_file() and is_as_noted(folder, Note.of(folder).files.get("")):
            folder.unlink()
            unmark(folder)
        elif os.path.lexists(folder):
            _removed_from(_set_aside(folder), folder)


def _require_ended(making: Path, target: Path) -> None:
    """Raise NotWritable where a running command makes a folder: it holds the folder's lock."""
    if not Note.of(making).marks(making):
        return
    lock = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # on a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise NotWritable(
                    f"cannot prepare {target}",
                    cause=f"another command is making it, in {making}",
                    remedy="wait for the end of that command, or choose another folder",
                ) from error
    finally:
        os.close(lock)


def _set_aside(target: Path) -> Path:
    """Rename what is at a place to a name that is free, with its note, and return the new place."""
    names = (path_beside(target, "", f"kept{number or ''}-") for number in count())
    aside = next(place for place in names if not os.path.lexists(place))
    if files := Note.of(target).files:
        note_all(aside, files)
    target.rename(aside)
    unmark(target)
    return aside


def _removed_from(aside: Path, target: Path, carried: Mapping[str, list[int]] = MappingProxyType({})) -> None:
    """Remove the noted files of a result that was set aside, and say so where others are left.

    `carried` are files of others, which are as they are in `target`, too.
    """
    noted = {**Note.of(aside).files, **carried}
    with contextlib.suppress(OSError):  # what this user may not remove stays there
        for name in sorted(entries(aside) if noted else {}, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):
                if name.endswith("/") and name in noted:
                    (aside / name).rmdir()
                elif is_as_noted(aside / name, noted.get(name)):
                    (aside / name).unlink()
        aside.rmdir()
    unmark(aside)
    if os.path.lexists(aside):
        left = sorted(entries(aside)) if aside.is_dir() and not aside.is_symlink() else []
        files = [name for name in left if not name.endswith("/")] or left
        of_it = f" ({first_of(files, _SHOWN)})" if files else ""
        warn(f"what was in {target} and is not known as a part of an earlier result{of_it} is now in {aside}")


def recover(target: Path) -> None:
    """Complete the replacement of `target` that a killed command began: it had set the earlier result aside."""
    for number in count():
        aside = path_beside(target, "", f"kept{number or ''}-")
        if not os.path.lexists(aside):
            return
        if files := Note.of(aside).files:
            if os.path.lexists(target):
                _removed_from(aside, target)
            else:
                aside.rename(target)
                note_all(target, files)
                unmark(aside)


def make_way(target: Path) -> None:
    """Rename what is at a path and print its new name, unless its note lists it as written by an earlier command."""
    if os.path.lexists(target) and not is_as_noted(target, Note.of(target).files.get("")):
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
    if is_as_noted(path, Note.of(path).files.get("")):
        path.unlink()
        unmark(path)


def write_result_file(folder: Path, name: str, text: str) -> None:
    """Write a file that is added to a result, or made again, and note it with the result.

    What is there is replaced where the result's note lists it, and kept under a new name, which is said, otherwise.
    """
    path = folder / name
    if path.is_file() and not path.is_symlink() and bytes_of(path) == text.encode(errors="backslashreplace"):
        return
    if not is_as_noted(path, Note.of(folder).files.get(name)):
        make_way(path)
    write_text(path, text)
    note_files(folder, [name])


@contextmanager
def staged_file(path: Path) -> Iterator[Path]:
    """Yield the place of a file that becomes `path` when the block ends well, as `write_noted` writes it.

    Nothing is left of it otherwise. Raises NotWritable where another command is making the same file.
    """
    with _folder_in_the_making(_free(path, ".partial", path.name), path) as staging:
        try:
            yield staging / path.name
            make_way(path)
            (staging / path.name).rename(path)
            note_written(path)
        finally:
            (staging / path.name).unlink(missing_ok=True)
            unmark(staging)
            if os.path.lexists(staging):
                _removed_from(_set_aside(staging), staging)


@contextmanager
def begun_folder(folder: Path) -> Iterator[None]:
    """Make a folder that the block fills at its place; what an earlier command left there is discarded.

    All that is in it when the block ends, or fails, is noted as ours. Raises NotWritable where another command is
    making it.
    """
    discard(folder)
    with _folder_in_the_making(folder, folder):
        try:
            yield
        finally:
            with contextlib.suppress(CmError):  # whatever failed first is what is reported
                note_finished(folder)


def move_result(source: Path, target: Path) -> None:
    """Move a result to another name, in place of the earlier one there, as `staged_folder` does. Raises NotWritable."""
    files = Note.of(source).files or entries(source)
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
    target = linked_folder(target)
    with translated_os_errors("prepare", target):
        recover(target)
    with _folder_in_the_making(_free(target, ".partial"), target) as staging:
        made = identity(staging)
        try:
            yield staging
        except ends_well:
            _finish(staging, target, made, carried)
            raise
        except BaseException as error:
            _keep_failed(staging, target, made, error)
            raise
        _finish(staging, target, made, carried)


@contextmanager
def _folder_in_the_making(folder: Path, target: Path) -> Iterator[Path]:
    """Make a folder in which `target` is made, and mark it for the block."""
    with contextlib.ExitStack() as stack:
        with translated_os_errors("prepare", target):
            folder.mkdir(parents=True)
            stack.enter_context(in_the_making(folder))
        yield folder


def _free(target: Path, ending: str, only: str = "") -> Path:
    """Return the place beside a target without what an earlier command left there, or the next, where it is the user's.

    `only` is the name of the one file that a command writes there; without it, what a killed command left is kept.
    Raises NotWritable where another command is making the target.
    """
    for number in count():
        place = path_beside(target, f"{ending}{number or ''}")
        note = Note.of(place)
        if note.files or note.marks(place):
            _require_ended(place, target)
            if only:
                (place / only).unlink(missing_ok=True)
            discard(place)
        if not os.path.lexists(place):
            break
    return place


def _finish(staging: Path, target: Path, made: list[int], carried: Collection[str]) -> None:
    """Put a finished folder in its place. Raises NotWritable if it is not the one that was begun."""
    if identity(staging) != made:
        raise _vanished_error(target, staging)
    with translated_os_errors("finish", target):
        files = entries(staging)
        _put_in_place(staging, target, files, {name: files.pop(name) for name in carried if name in files})
        _free(target, ".failed")


def _keep_failed(staging: Path, target: Path, made: list[int], error: BaseException) -> None:
    """Keep the folder of a block that failed. Raises an error with its cause for a folder that cannot be written."""
    vanished = identity(staging) != made  # or was made again, by what writes its last words
    with contextlib.suppress(OSError, NotWritable):  # whatever failed first is what is reported
        failed = _free(target, ".failed")
        files = entries(staging)
        staging.rename(failed)
        unmark(staging)
        note_all(failed, files)
    if isinstance(error, OSError) and str(error.filename).startswith(f"{staging}{os.sep}"):
        if isinstance(error, FileNotFoundError) and vanished:
            raise _vanished_error(target, staging) from error
        if not isinstance(error, FileNotFoundError):
            with translated_os_errors("fill", target):
                raise error


def _put_in_place(
    staging: Path, target: Path, files: Files, carried: Mapping[str, list[int]] = MappingProxyType({})
) -> None:
    """Rename a filled folder to `target`, in place of what is there. Raises OSError.

    `files` are noted as ours, `carried` are files of others that are in both.
    """
    if is_working_folder(target):
        _put_into(staging, target, files)
        return
    aside = _set_aside(target) if os.path.lexists(target) else None
    staging.rename(target)
    unmark(staging)
    note_all(target, files)
    if aside is not None:
        _removed_from(aside, target, carried)


def _put_into(staging: Path, folder: Path, files: Files) -> None:
    """Move all of a filled folder into the working folder, in place of an earlier result's files. Raises OSError."""
    for name, noted in sorted(Note.of(folder).files.items(), reverse=True):
        place = folder / name
        if place.parent.resolve().is_relative_to(folder.resolve()):
            if name.endswith("/"):
                with contextlib.suppress(OSError):  # it holds what was not noted
                    place.rmdir()
            elif is_as_noted(place, noted):
                place.unlink()
    for path in sorted(staging.iterdir()):
        make_way(folder / path.name)
        path.rename(folder / path.name)
    staging.rmdir()
    unmark(staging)
    note_all(folder, files)


def _vanished_error(target: Path, staging: Path) -> NotWritable:
    """Return the error for a folder that was removed while it was being written."""
    return NotWritable(
        f"cannot finish {target}",
        cause=f"{staging} was removed while it was being written",
        remedy="run it again, and check that no other program deletes files there during the run",
    )

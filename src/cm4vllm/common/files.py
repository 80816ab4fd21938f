"""Files that appear whole or not at all, digests and free space.

`hashlib`, `mmap`, `pathlib`, `shutil` and `tempfile` are imported where they are used: to load them takes longer than
all else that `cm` does where the cache answers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cm4vllm.common.errors import DiskFull, NotWritable, UsageError, translated_os_errors

if TYPE_CHECKING:
    import mmap
    from pathlib import Path


#: The most bytes of a file that is read whole, where its reader names no other number: of a page, a record, a source.
MOST_BYTES = 64 * 2**20


def typed_path(text: str | os.PathLike[str]) -> Path:
    """Return a path that a user typed, with the home folder in the place of ~. Raises UsageError for no valid path."""
    from pathlib import Path

    if "\0" in os.fspath(text):
        raise UsageError(f"{os.fspath(text)!r} is not a path", cause="no path has a NUL character")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{text} is not a path",
            cause=f"the home folder of {Path(text).parts[0]} is not known",
            remedy="give the whole path",
        ) from error


def typed_paths(text: str) -> list[Path]:
    """Return the paths of a list separated by commas, absolute. Raises UsageError where one is no path."""
    return [typed_path(part.strip()).absolute() for part in text.split(",") if part.strip()]


def given_path(text: str) -> Path:
    """Return the path that somebody gave to a cached recipe, which works in a folder of its own.

    Raises UsageError for a relative one: it would mean another file there, and the entry serve for all of its name.
    """
    path = typed_path(text)
    if not path.is_absolute():
        raise UsageError(
            f"{text} is a relative path",
            cause="a cached recipe runs in its own folder",
            remedy=f"give the whole path, as /folder/{path.name}",
        )
    return path


def write_bytes(path: Path, data: bytes | mmap.mmap) -> None:
    """Write `data` to `path`: aside first, then synced and renamed, so that no reader sees half of it."""
    import tempfile

    with translated_os_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files for the owner alone; results are read by others too.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise


def write_text(path: Path, text: str) -> None:
    r"""Write `text` to `path` as UTF-8, whole or not at all; a byte of a name that is no UTF-8 is spelled \udce9."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Write the names of the files in a folder to its disk, whatever fails then. Raises DiskFull, NotWritable."""
    with translated_os_errors("write", folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_files(folder: Path) -> None:
    """Write the files in a folder to its disk, whatever fails then. Raises DiskFull, NotWritable."""
    with translated_os_errors("write", folder):
        for path in folder.iterdir():
            if path.is_file():
                with open_file(path) as file:
                    os.fsync(file.fileno())
    sync_folder(folder)


def open_file(path: Path, buffer: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedReader:
    """Open a file to read its bytes, as many at once as `buffer` says.

    Raises OSError, also for a pipe or a device, which might never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(code, "Is a directory" if stat.S_ISDIR(kind) else "it is a pipe, a socket or a device", str(path))
    return io.BufferedReader(io.FileIO(handle), buffer)


def bytes_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file, which may have `most` of them: one with holes may be larger than all memory.

    Raises OSError, also for a pipe or a device, which might never end.
    """
    with open_file(path) as file:
        long = os.fstat(file.fileno()).st_size > most
        data = b"" if long else file.read()
    if long or len(data) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", str(path))
    return data


def text_of(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of the bytes that `bytes_of` reads, in UTF-8; invalid ones become U+FFFD. Raises OSError."""
    return bytes_of(path, most).decode(errors="replace")


def beginning_of(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file, all of a shorter one. Raises OSError as `bytes_of`."""
    with open_file(path) as file:
        return file.read(most)


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Yield the bytes of a file of any length: only those that are read come into memory. Raises OSError."""
    import mmap

    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON with a final newline, whole or not at all."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return a value as indented JSON with a final newline."""
    return json.dumps(value, indent=2) + "\n"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file `path`, which is made where it is missing; another process waits. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    import hashlib

    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(folder: Path, *, without: str) -> dict[str, str]:
    """Return the SHA-256 of each file below `folder`, by its path from there; the file named `without` is left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: sha256_of(path) for name, path in named.items() if name != without}


def altered_files(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Return the names of those files that are missing below `folder`, or have another SHA-256 than the given one."""
    return [
        name for name, digest in digests.items() if not (folder / name).is_file() or sha256_of(folder / name) != digest
    ]


def sha256_of_tree(folder: Path) -> str:
    """Return one SHA-256 for the names and contents of all files under `folder`, in hexadecimal."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n".encode())
    return digest.hexdigest()


def working_folder() -> str:
    """Return the working directory. Raises UsageError when it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the working directory was removed",
            cause="the current folder of the shell no longer exists",
            remedy="change to a folder that exists, for example: cd ~",
        ) from None


def user_cache(name: str) -> Path:
    """Return cm4vllm's folder of that name in the user's cache, which may be removed at any time."""
    from pathlib import Path

    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "cm4vllm" / name


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Return the bytes that the file system of `folder` has free for an ordinary user."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def require_space(folder: str | os.PathLike[str], needed_bytes: int, purpose: str, elsewhere: str = "") -> None:
    """Raise DiskFull unless the file system of `folder` has `needed_bytes` free for `purpose`.

    `elsewhere` is what the user sets to have another folder.
    """
    probe = os.path.abspath(folder)
    while not os.path.exists(probe):
        probe = os.path.dirname(probe)
    free = free_bytes(probe)
    if free < needed_bytes:
        raise DiskFull(
            f"not enough disk space for {purpose} in {folder}",
            cause=f"{free / 2**20:.0f} MiB free, {needed_bytes / 2**20:.0f} MiB needed",
            remedy="free space there, or choose a folder on another disk" + (f" with {elsewhere}" if elsewhere else ""),
        )


def writable_folder(folder: Path, elsewhere: str = "--output_dir") -> Path:
    """Make `folder` if needed and prove that files can be written in it; return it as an absolute path.

    `elsewhere` is what the user sets to have another folder.
    """
    import tempfile

    folder = typed_path(folder).absolute()
    with translated_os_errors("write to", folder, elsewhere):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
    return folder


def require_writable(folder: Path, setting: str = "--output_dir") -> None:
    """Raise NotWritable where `folder` cannot be made or written to; nothing is written to find out.

    `setting` is what the user sets to have another folder.
    """
    folder = typed_path(folder).absolute()
    elsewhere = f"choose another folder with {setting}"
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # its name is too long, or links lead around in a circle
        raise NotWritable(f"cannot write to {folder}", cause=str(error.strerror), remedy=elsewhere) from error
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        kind = "a link that leads to no folder" if there.is_symlink() else "a file, not a folder"
        raise NotWritable(f"cannot write to {folder}", cause=f"{there} is {kind}", remedy=elsewhere)
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        raise NotWritable(
            f"cannot write to {folder}", cause=f"the file system of {there} is mounted read-only", remedy=elsewhere
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise NotWritable(
            f"cannot write to {folder}",
            cause=f"no permission to write to {there}",
            remedy=f"{elsewhere}, or change its permissions",
        )
    if not os.statvfs(there).f_blocks:  # as in /proc, where no folder or file can be made
        raise NotWritable(
            f"cannot write to {folder}", cause=f"{there} is on a file system that cannot store files", remedy=elsewhere
        )


def digest_of(path: Path, kind: str) -> str:
    """Return the digest of a file as `<kind>:<hex>`, `kind` being md5 or sha256."""
    import hashlib

    with path.open("rb") as file:
        made = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{made.hexdigest()}"

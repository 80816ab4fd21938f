"""Sockets and shared memory of supervised programs: what vLLM and the client of MLPerf Endpoints leave when killed.

Each program has a folder of its own for its sockets, and in it a link to all that its processes use in shared memory:
segments and named semaphores that they have mapped, folders in which they have files or sockets open, each with its
inode. Its supervisor holds the folder's lock, and removes all of it when the last process has ended. A supervisor that
is killed loses the lock: the next start or stop of a program finds the folder by its mark, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import multiprocessing
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import NotWritable
from cm4vllm.common.folders.ownership_notes import mark, remove_marked, unmark

#: The environment key that says where vLLM's processes put their sockets; each is named by a uuid.
BASE = "VLLM_RPC_BASE_PATH"
#: Not a prefix of the names of folders for temporary files: those have no lock, and would be removed.
_PREFIX = "cm4vllm-ipc-"
_ANYWHERE = Path("/tmp")  # noqa: S108 - a private folder is made there, as tempfile does
#: The longest path that unix(7) allows a socket, less what follows the folder in which ours are made.
_LONGEST_PARENT = 107 - len(f"/{_PREFIX}12345678/01234567-89ab-cdef-0123-456789abcdef")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the C library and the client put it
#: The beginning of the name of a link to shared memory; its inode follows.
_NOTED = "used-"
#: Python's names of the segments of multiprocessing.shared_memory, and of the semaphores of spawned processes.
_FILES = ("psm_*", "sem.mp-*")
#: The client's names of its folders (commands/benchmark/execute.py, async_utils/transport/zmq/context.py).
_FOLDERS = ("benchmark_*", "zmq_*")
#: A mapped file of /dev/shm in /proc/pid/maps: its inode. A semaphore's file has another name there than its own.
_MAPPED = re.compile(r" (\d+) +/dev/shm/\S+(?: \(deleted\))?$", re.MULTILINE)
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class IpcFiles:
    """The folder of a server that runs, locked as long as this process lives and `remove` was not called."""

    folder: Path
    _lock: int

    @classmethod
    def begin(cls) -> IpcFiles:
        """Make a folder for a server. Raises OSError."""
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parents()[0]))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark(folder)
        return cls(folder, lock)

    def temporary(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which the server's temporary files are removed with this folder.

        vLLM leaves one at each start (vllm/utils/network_utils.py, get_file_store_init_method). Two things stay in the
        usual folder: compiled code, which the next server uses again, and Ray's sockets, whose paths have a limit. So
        does all where the sockets of this server are in another folder.
        """
        usual = tempfile.gettempdir()
        if str(self.folder.parent) != usual or env.get("TMPDIR", usual) != usual:
            return {}
        own = self.folder / "tmp"
        own.mkdir(exist_ok=True)
        # The folder that torch itself chooses (torch/_inductor/runtime/cache_dir_utils.py).
        kept = {"RAY_TMPDIR": usual, "TORCHINDUCTOR_CACHE_DIR": f"{usual}/torchinductor_{_user()}"}
        return {"TMPDIR": str(own), **{name: folder for name, folder in kept.items() if name not in env}}

    def empty_folder(self) -> Path:
        """Return a folder without files, which is removed with this one."""
        own = self.folder / "empty"
        own.mkdir(exist_ok=True)
        return own

    def note_memory(self, processes: Iterable[int]) -> None:
        """Note the shared memory that these processes use."""
        for used in _shared_memory_of(processes):
            with contextlib.suppress(OSError):  # noted already, or removed meanwhile
                (self.folder / f"{_NOTED}{used.lstat().st_ino}").symlink_to(used)

    def remove(self) -> None:
        """Remove the folder, and the shared memory that was noted."""
        _remove(self.folder)
        unmark(self.folder)
        os.close(self._lock)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user of no name, as in a container
        return str(os.getuid())


def remove_abandoned() -> None:
    """Remove what servers left whose supervisor is gone: no process holds their folder's lock."""
    for parent in set(_parents()):
        for folder in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(BlockingIOError):
                remove_marked(folder, _remove)


def _remove(folder: Path) -> None:
    """Remove a program's folder and the shared memory that is noted in it, unless another's has its name by now."""
    for link in folder.glob(f"{_NOTED}*"):
        with contextlib.suppress(OSError):
            used = link.readlink()
            if str(used.lstat().st_ino) != link.name.removeprefix(_NOTED):
                continue
            if used.is_dir():
                shutil.rmtree(used, ignore_errors=True)
            else:
                used.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _shared_memory_of(processes: Iterable[int]) -> Iterator[Path]:
    """Yield the shared memory that these processes use: files that they have mapped, folders of open files."""
    inodes, opened = set[int](), set[str]()
    for pid in processes:
        with contextlib.suppress(OSError):  # it has ended
            inodes.update(map(int, _MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"))))
            opened.update(str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    opened |= _paths_of({socket[1] for path in opened if (socket := _SOCKET.fullmatch(path))})
    for file in (file for name in _FILES for file in _SHARED_MEMORY.glob(name)) if inodes else ():
        with contextlib.suppress(OSError):  # removed meanwhile
            if file.stat().st_ino in inodes:
                yield file
    for folder in (folder for name in _FOLDERS for folder in _SHARED_MEMORY.glob(name)):
        if any(path.startswith(f"{folder}/") for path in opened):
            yield folder


def _paths_of(sockets: Set[str]) -> set[str]:
    """Return the paths of Unix sockets, which are given by their inodes (proc(5), /proc/net/unix)."""
    paths = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            *_, inode, path = (*line.split(maxsplit=7), "")[:8]
            if inode in sockets:
                paths.add(path)
    return paths


def require_shared_memory() -> None:
    """Raise NotWritable where no process can make a lock in shared memory: vLLM ends at its first one."""
    try:
        multiprocessing.get_context("fork").Lock()  # any other kind starts a process that tracks it
    except OSError as error:
        raise NotWritable(
            "vLLM cannot run on this machine: its processes need shared memory",
            cause=f"nothing can be made in /dev/shm: {error.strerror}",
            remedy="mount it, as root: mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm (a container: docker run "
            "--shm-size=1g); or measure a server on another machine: --api_server=http://HOST:PORT",
        ) from error


def _parents() -> list[Path]:
    """Return the folders: first the one for the next server."""
    usual = Path(os.environ.get(BASE) or tempfile.gettempdir())
    return [usual, _ANYWHERE] if len(os.fsencode(usual)) <= _LONGEST_PARENT else [_ANYWHERE]

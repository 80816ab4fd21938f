"""Removal of a reference client's folders in shared memory, after its supervisor was killed before it noted them.

The client keeps its event log and its sockets below /dev/shm while it runs (commands/benchmark/execute.py,
zmq/context.py). The supervisor removes those that it has noted (serving.ipc_files).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

__all__ = ["remove_leftovers"]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the client puts them
_NAMES = ("benchmark_*", "zmq_*")
#: A client that ends copies its event log out of a folder that no process has open any more: in seconds.
_OLD_S = 600.0


def remove_leftovers(shared_memory: Path = _SHARED_MEMORY) -> list[Path]:
    """Remove the folders of ended clients, and return them. New folders and folders in use are kept."""
    leftovers = [
        folder
        for pattern in _NAMES
        for folder in shared_memory.glob(pattern)
        if not folder.is_symlink() and _is_old_folder_of_ours(folder)
    ]
    used = _used_paths() if leftovers else set()
    left = [folder for folder in leftovers if not any(path.startswith(f"{folder}/") for path in used)]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return left


def _is_old_folder_of_ours(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:  # removed meanwhile
        return False
    return path.is_dir() and status.st_uid == os.getuid() and time.time() - status.st_mtime > _OLD_S


def _used_paths() -> set[str]:
    """Return the paths of all Unix sockets, and of the files that the processes of this user have open."""
    paths = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            paths.add(line.split(maxsplit=7)[-1])
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # another user's process, or one that has ended
            for link in folder.iterdir():
                with contextlib.suppress(OSError):
                    paths.add(str(link.readlink()))
    return paths

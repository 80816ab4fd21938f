"""Limits of this machine for a program: open files, local ports, shared memory, memory. Read from the kernel."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.kernel_files import text
from cm4vllm.hardware.memory import free_memory


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """The limits of each process and of the machine; None where there is none, or the kernel does not show it.

    `open_files` is the hard limit (ulimit -Hn), to which a run raises the soft one. `local_ports` bounds the TCP
    connections to one server. The bytes are those that are free: in /dev/shm, and of the memory.
    """

    open_files: int | None = None
    local_ports: int | None = None
    shared_memory_bytes: int | None = None
    memory_bytes: int | None = None


def machine_limits(root: Path = Path("/")) -> MachineLimits:
    """Return the limits of this process, and the machine's limits as read below `root`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineLimits(
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        local_ports=local_ports(root),
        shared_memory_bytes=_free(root / "dev/shm"),
        memory_bytes=free_memory(root),
    )


def local_ports(root: Path = Path("/")) -> int | None:
    """Return how many local ports the system gives to connections; None where the kernel does not show it."""
    words = text(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    if len(words) != 2 or not all(map(str.isdecimal, words)):
        return None
    return max(0, int(words[1]) - int(words[0]) + 1)


def _free(folder: Path) -> int | None:
    """Return the free bytes of the file system of a folder, None where it cannot be asked."""
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return None
    return filesystem.f_bavail * filesystem.f_frsize

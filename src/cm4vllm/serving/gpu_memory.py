"""The memory of NVIDIA's GPUs before and after a server, from the driver's NVML: freed, or who still holds it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.progress import warn
from cm4vllm.hardware.gpus import nvml

#: Memory that a driver keeps for itself, or that another program takes in the meantime, is not the server's.
SLACK_BYTES = 512 * 2**20
#: The driver frees the memory of a killed process within this time.
FREED_S = 10.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class GpuMemory:
    """One GPU: the bytes in use, and the processes that hold some, as far as this machine shows them."""

    name: str
    used_bytes: int
    processes: tuple[int, ...]


def gpu_memory() -> dict[str, GpuMemory]:
    """Return the memory in use of each GPU that states it, by its UUID; nothing where no driver answers."""
    with nvml.opened() as library:
        shown = nvml.devices(library) if library is not None else []
        return {
            device.uuid: GpuMemory(device.name, int(info.used), tuple(sorted(nvml.pids_on(device))))
            for device in shown
            if (info := device.ask("nvmlDeviceGetMemoryInfo")) is not None
        }


def wait_until_freed(
    before: Mapping[str, GpuMemory],
    read: Callable[[], Mapping[str, GpuMemory]] = gpu_memory,
    timeout_s: float = FREED_S,
) -> bool:
    """Wait until each GPU has no more memory in use than before the server; tell who holds what is not freed."""
    deadline = time.monotonic() + timeout_s
    while True:
        held = {
            uuid: now
            for uuid, now in (read() if before else {}).items()
            if uuid in before and now.used_bytes > before[uuid].used_bytes + SLACK_BYTES
        }
        if not held:
            return True
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_S)
    for uuid, now in held.items():
        more = (now.used_bytes - before[uuid].used_bytes) / 2**30
        holders = ", ".join(f"{_name(pid)} ({pid})" for pid in now.processes if pid not in before[uuid].processes)
        warn(
            f"{now.name} {uuid} has {more:.1f} GiB more in use than before the server started"
            + (f": held by {holders}" if holders else "; the driver does not show by whom")
        )
    return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "a process of another container"

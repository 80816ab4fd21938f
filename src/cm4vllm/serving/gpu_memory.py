"""The memory of GPUs before and after a server, as the driver states it: freed, or who still holds it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cm4vllm.common.progress import warn
from cm4vllm.hardware.gpus.gpu import opened_drivers
from cm4vllm.hardware.gpus.vendor import GpuUse

#: Memory that a driver keeps for itself, or that another program takes in the meantime, is not the server's.
SLACK_BYTES = 512 * 2**20
#: The driver frees the memory of a killed process within this time.
FREED_S = 10.0
_LOOK_S = 0.2


def gpu_memory() -> dict[str, GpuUse]:
    """Return the use of each GPU whose memory is stated, by its UUID; nothing where no driver answers."""
    with opened_drivers() as drivers:
        uses = (vendor.use(library) for vendor, library in drivers)
        return {uuid: use for used in uses for uuid, use in used.items() if use.used_bytes is not None}


def wait_until_freed(
    before: Mapping[str, GpuUse], read: Callable[[], Mapping[str, GpuUse]] = gpu_memory, timeout_s: float = FREED_S
) -> bool:
    """Wait until each GPU has no more memory in use than before the server; tell who holds what is not freed."""
    deadline = time.monotonic() + timeout_s
    while True:
        held = {
            uuid: now
            for uuid, now in (read() if before else {}).items()
            if uuid in before and _more_bytes(before[uuid], now) > SLACK_BYTES
        }
        if not held:
            return True
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_S)
    for uuid, now in held.items():
        more = _more_bytes(before[uuid], now) / 2**30
        holders = ", ".join(f"{_name(pid)} ({pid})" for pid in sorted(now.processes - before[uuid].processes))
        warn(
            f"{now.name} {uuid} has {more:.1f} GiB more in use than before the server started"
            + (f": held by {holders}" if holders else "; the driver does not show by whom")
        )
    return False


def _more_bytes(before: GpuUse, now: GpuUse) -> int:
    return (now.used_bytes or 0) - (before.used_bytes or 0)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "a process of another container"

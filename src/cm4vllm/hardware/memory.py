"""The machine's memory: installed, usable, and what this program may use of it."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.hardware.dmi import memory_has_ecc, memory_modules
from cm4vllm.hardware.kernel_files import fields, number, text
from cm4vllm.hardware.records import MemoryFacts

__all__ = ["detect_memory", "free_memory"]

#: A control group's limit, what it uses of it, and the part of that which the kernel takes back when it is wanted:
#: version 2, then version 1 (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def detect_memory(root: Path = Path("/")) -> MemoryFacts:
    """Return the memory under `root`: by the firmware's modules, else the kernel's blocks, else what it can use."""
    modules = memory_modules(root)
    usable = _meminfo("MemTotal", root)
    installed = sum(module.size_bytes for module in modules)
    blocks = _blocks(root)
    total, source = (
        (installed, "memory modules (DMI)")
        if installed
        else (blocks, "memory blocks (/sys)")
        if blocks
        else (usable, "MemTotal, less than what is installed")
    )
    limit = _limit(root)
    return MemoryFacts(
        total_bytes=total,
        source=source,
        usable_bytes=usable,
        modules=modules,
        limit_bytes=limit if limit is not None and limit < usable else None,
        ecc=_ecc(root),
    )


def free_memory(root: Path = Path("/")) -> int:
    """Return the memory that a program may still take: what the machine has free, and its container's limit leaves."""
    free = _meminfo("MemAvailable", root)
    for folder, most, used, reclaimable in _GROUPS:
        if (limit := number(root / folder / most)) is not None:
            pages = dict(line.split()[:2] for line in text(root / folder / "memory.stat").splitlines())
            taken = (number(root / folder / used) or 0) - int(pages.get(reclaimable, 0))
            free = min(free, max(0, limit - taken))
    return free


def _blocks(root: Path) -> int:
    folder = root / "sys/devices/system/memory"
    try:
        size = int(text(folder / "block_size_bytes"), 16)
    except ValueError:
        return 0
    return size * sum(1 for block in folder.glob("memory*/state") if text(block) == "online")


def _meminfo(name: str, root: Path) -> int:
    """Return a value of the kernel's table of the memory under `root`, in bytes; this machine's if it is missing."""
    for folder in (root, Path("/")):
        words = fields(text(folder / "proc/meminfo")).get(name, "").split()
        if words and words[0].isdigit():
            return int(words[0]) * 1024
    return 0


def _limit(root: Path) -> int | None:
    """Return the limit of the control group that this program sees as its root, as in a container."""
    limits = (number(root / folder / most) for folder, most, *_ in _GROUPS)
    return next((limit for limit in limits if limit is not None), None)


def _ecc(root: Path) -> bool | None:
    # A memory controller of the EDAC subsystem corrects errors: its driver does not load otherwise.
    if any((root / "sys/devices/system/edac/mc").glob("mc[0-9]*")):
        return True
    return memory_has_ecc(root)

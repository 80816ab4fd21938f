"""The machine's memory: installed, usable, and what this program may use of it."""

from collections.abc import Iterator
from pathlib import Path

from cm4vllm.common.kernel_files import fields, matching, number, text
from cm4vllm.common.processors import control_groups
from cm4vllm.hardware.cpu import nodes_with_processors
from cm4vllm.hardware.dmi import memory_has_ecc, memory_modules
from cm4vllm.records.machine import MemoryFacts

#: A control group's limit, what it uses of it, and the part of that which the kernel takes back when it is wanted:
#: version 2, then version 1 (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def detect_memory(root: Path = Path("/")) -> MemoryFacts:
    """Return the memory under `root`: by the firmware's modules, else the kernel's blocks, else what it can use.

    That of NUMA nodes without processors, as a GPU's that the kernel manages, is apart and counts nowhere.
    """
    modules = memory_modules(root)
    of_nodes = _of_nodes_apart("MemTotal", root)
    usable = max(0, _meminfo("MemTotal", root) - of_nodes)
    installed = sum(module.size_bytes for module in modules)
    blocks, apart = _blocks(root)
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
        apart_bytes=apart or of_nodes,
    )


def free_memory(root: Path = Path("/")) -> int:
    """Return the memory that a program may still take: what the machine has free, and its control groups leave."""
    free = max(0, _meminfo("MemAvailable", root) - _of_nodes_apart("MemFree", root))
    for group, limit, (_, used, reclaimable) in _limits(root):
        pages = dict(line.split()[:2] for line in text(group / "memory.stat").splitlines() if " " in line)
        taken = (number(group / used) or 0) - int(pages.get(reclaimable, 0))
        free = min(free, max(0, limit - taken))
    return free


def _blocks(root: Path) -> tuple[int, int]:
    """Return the bytes of the memory blocks of NUMA nodes with processors, and of those without."""
    folder = root / "sys/devices/system/memory"
    try:
        size = int(text(folder / "block_size_bytes"), 16)
    except ValueError:
        return 0, 0
    online = {state.parent.name for state in matching(folder, "memory*/state") if text(state) == "online"}
    apart = {block.name for node in _nodes_apart(root) for block in matching(node, "memory[0-9]*")}
    return size * len(online - apart), size * len(online & apart)


def _nodes_apart(root: Path) -> list[Path]:
    """Return the NUMA nodes without processors; none where no node has any, as nothing is known then."""
    own = nodes_with_processors(root)
    return [node for node in matching(root / "sys/devices/system/node", "node[0-9]*") if own and node not in own]


def _of_nodes_apart(name: str, root: Path) -> int:
    """Return the bytes of a value of NUMA nodes without processors: lines as `Node 1 MemFree: 96 kB`."""
    words = [
        line.split()
        for node in _nodes_apart(root)
        for line in text(node / "meminfo").splitlines()
        if f" {name}:" in line
    ]
    return sum(int(line[3]) * 1024 for line in words if len(line) > 3 and line[3].isdecimal())


def _meminfo(name: str, root: Path) -> int:
    """Return a value of the kernel's table of the memory under `root`, in bytes; this machine's if it is missing."""
    for folder in (root, Path("/")):
        words = fields(text(folder / "proc/meminfo")).get(name, "").split()
        if words and words[0].isdecimal():
            return int(words[0]) * 1024
    return 0


def _limit(root: Path) -> int | None:
    """Return the smallest limit of this program's control group and its parents."""
    return min((limit for _, limit, _ in _limits(root)), default=None)


def _limits(root: Path) -> Iterator[tuple[Path, int, tuple[str, str, str]]]:
    for group in control_groups("memory", root):
        for names in _FILES:
            if (limit := number(group / names[0])) is not None:
                yield group, limit, names


def _ecc(root: Path) -> bool | None:
    # A memory controller of the EDAC subsystem corrects errors: its driver does not load otherwise.
    if matching(root / "sys/devices/system/edac/mc", "mc[0-9]*"):
        return True
    return memory_has_ecc(root)

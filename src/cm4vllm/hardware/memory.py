"""The machine's memory: installed, usable, and what this program may use of it.

Its modules are read from the firmware's table of installed hardware (SMBIOS), which only root can read. Layout: DMTF
DSP0134, System Management BIOS Reference Specification, section 6.1 (structures) and 7.18 (memory device, type 17).
Serial numbers and asset tags lie in its strings; none of its strings is read.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.common.kernel_files import content, fields, matching, number, text
from cm4vllm.common.processors import control_groups
from cm4vllm.hardware.cpu import nodes_with_processors
from cm4vllm.records.machine import MemoryFacts, MemoryModule

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
    modules = [_module(data) for data in _devices(root)]
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
    limit = min((limit for _, limit, _ in _limits(root)), default=None)
    return MemoryFacts(
        total_bytes=total,
        source=source,
        usable_bytes=usable,
        modules=modules,
        limit_bytes=limit if limit is not None and limit < usable else None,
        # A memory controller of the EDAC subsystem corrects errors: its driver does not load otherwise.
        ecc=True if matching(root / "sys/devices/system/edac/mc", "mc[0-9]*") else _modules_have_ecc(root),
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


def _limits(root: Path) -> Iterator[tuple[Path, int, tuple[str, str, str]]]:
    """Yield the limits of this program's control group and its parents, each with the group and its files."""
    for group in control_groups("memory", root):
        for names in _FILES:
            if (limit := number(group / names[0])) is not None:
                yield group, limit, names


_MEMORY_DEVICE = 17
_KINDS = {
    0x18: "DDR3",
    0x1A: "DDR4",
    0x1E: "LPDDR4",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
}
_UNKNOWN = (0, 0xFFFF)


def _modules_have_ecc(root: Path) -> bool | None:
    """Return True if modules are wider than their data, which is what carries ECC; None where it is not known."""
    widths = [struct.unpack_from("<HH", data, 0x08) for data in _devices(root)]
    known = [(total, width) for total, width in widths if total not in _UNKNOWN and width not in _UNKNOWN]
    return all(total > width for total, width in known) if known else None


def _devices(root: Path) -> list[bytes]:
    """Return the structures of installed memory modules; none where the table is missing, unreadable or broken."""
    structures = _structures(content(root / "sys/firmware/dmi/tables/DMI"))
    return [data for kind, data in structures if kind == _MEMORY_DEVICE and len(data) >= 0x15 and _size_bytes(data)]


def _structures(table: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and bytes of each structure of a DMI table."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0:
            return
        yield kind, table[at : at + length]
        at = end + 2


def _size_bytes(data: bytes) -> int:
    """Return the size of a memory module in bytes, 0 where it is unknown or the slot is empty."""
    size = int(struct.unpack_from("<H", data, 0x0C)[0])
    if size in _UNKNOWN:
        return 0
    if size == 0x7FFF:
        return int(struct.unpack_from("<I", data, 0x1C)[0] & 0x7FFFFFFF) * 2**20 if len(data) >= 0x20 else 0
    return (size & 0x7FFF) * (2**10 if size & 0x8000 else 2**20)


def _module(data: bytes) -> MemoryModule:
    """Return the memory module that a structure of type 17 describes."""
    # The configured speed, at which the module runs, before the one that it could run at.
    speeds = [struct.unpack_from("<H", data, at)[0] for at in (0x20, 0x15) if len(data) >= at + 2]
    return MemoryModule(
        size_bytes=_size_bytes(data),
        kind=_KINDS.get(data[0x12], ""),
        mega_transfers=next((int(speed) for speed in speeds if speed not in _UNKNOWN), None),
    )

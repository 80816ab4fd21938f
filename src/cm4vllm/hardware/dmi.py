"""Memory modules, read from the firmware's table of installed hardware (SMBIOS), which only root can read.

Layout: DMTF DSP0134, System Management BIOS Reference Specification, section 6.1 (structures) and 7.18 (memory device,
type 17). Serial numbers and asset tags lie in its strings; none of its strings is read.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.common.kernel_files import content
from cm4vllm.records.machine import MemoryModule

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


def memory_modules(root: Path = Path("/")) -> list[MemoryModule]:
    """Return the memory modules that are installed; none where the table is missing, unreadable or broken."""
    return [_module(data) for data in _devices(root) if _size_bytes(data)]


def memory_has_ecc(root: Path = Path("/")) -> bool | None:
    """Return True if modules are wider than their data, which is what carries ECC; None where it is not known."""
    widths = [
        (struct.unpack_from("<H", data, 0x08)[0], struct.unpack_from("<H", data, 0x0A)[0])
        for data in _devices(root)
        if _size_bytes(data)
    ]
    known = [(total, width) for total, width in widths if total not in _UNKNOWN and width not in _UNKNOWN]
    return all(total > width for total, width in known) if known else None


def _devices(root: Path) -> list[bytes]:
    table = content(root / "sys/firmware/dmi/tables/DMI")
    return [data for kind, data in _structures(table) if kind == _MEMORY_DEVICE and len(data) >= 0x15]


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

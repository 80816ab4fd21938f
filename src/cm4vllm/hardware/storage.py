"""The machine's fixed disks, from /sys/block."""

import shutil
from pathlib import Path

from cm4vllm.common.kernel_files import matching, number, text
from cm4vllm.hardware.host import is_virtual
from cm4vllm.records.machine import DiskFacts

VIRTUAL_DISK = "virtual disk"
_SECTOR_BYTES = 512  # the unit of /sys/block/*/size, whatever the disk's own (Documentation/ABI/stable/sysfs-block)
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd", "zd", "mtd")


def detect_disks(root: Path = Path("/")) -> list[DiskFacts]:
    """Return the fixed disks under `root`; none where none is shown, as in many containers."""
    virtual = bool(is_virtual(root))
    disks = [
        disk
        for disk in matching(root / "sys/block", "*")
        if not disk.name.startswith(_NOT_DISKS) and text(disk / "removable") != "1"
    ]
    return [
        DiskFacts(
            size_bytes=size * _SECTOR_BYTES,
            kind=_kind(disk, virtual=virtual),
            model=" ".join(text(disk / "device/model").split()),
        )
        for disk in disks
        if (size := number(disk / "size"))
    ]


def root_bytes(root: Path = Path("/")) -> int:
    """Return the size of the file system that `root` lies on; 0 where the kernel does not state it."""
    try:
        return shutil.disk_usage(root).total
    except OSError:
        return 0


def _kind(disk: Path, *, virtual: bool) -> str:
    """Return the kind of a disk: HDD, SSD, NVMe SSD, or virtual."""
    # A hypervisor's "rotational" flag does not describe the physical disk.
    if disk.name.startswith(("vd", "xvd")) or (virtual and not disk.name.startswith("nvme")):
        return VIRTUAL_DISK
    if disk.name.startswith("nvme"):
        return f"NVMe {VIRTUAL_DISK}" if virtual else "NVMe SSD"
    return "HDD" if text(disk / "queue/rotational") == "1" else "SSD"

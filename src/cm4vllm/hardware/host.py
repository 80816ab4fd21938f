"""The host: operating system, memory, disks, and whether all of them are virtual."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import psutil

from cm4vllm.hardware.os_release import read_os_release
from cm4vllm.hardware.records import HostFacts

__all__ = ["VIRTUAL_DISK", "detect_host", "is_virtual"]

VIRTUAL_DISK = "virtual disk"
_SECTOR_BYTES = 512  # the unit of /sys/block/*/size, whatever the disk's own (Documentation/ABI/stable/sysfs-block)
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd", "zd")
_VIRTUAL_VENDORS = ("qemu", "kvm", "vmware", "virtualbox", "innotek", "xen", "bochs", "parallels", "openstack", "bhyve",
                    "google compute engine", "virtual machine", "hvm domu")


def detect_host(root: Path = Path("/")) -> HostFacts:
    """Return the facts of the host whose /proc, /sys and /etc are under `root`."""
    release = read_os_release(root)
    virtual = is_virtual(root)
    disk_bytes, disk_type = _disks(root, virtual=bool(virtual))
    return HostFacts(
        os_name=release.get("NAME") or platform.system(),
        os_version=release.get("VERSION") or release.get("VERSION_ID") or platform.mac_ver()[0],
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        virtualised=virtual,
        memory_bytes=_memory_bytes(root),
        disk_bytes=disk_bytes,
        disk_type=disk_type,
    )


def is_virtual(root: Path = Path("/")) -> bool | None:
    """Say whether this is a virtual machine, by the hypervisor flag or the firmware; None where neither tells."""
    if (root / "sys/hypervisor/type").exists():
        return True
    cpuinfo = _text(root / "proc/cpuinfo")
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    if flags:
        return " hypervisor" in flags
    dmi = root / "sys/class/dmi/id"
    names = " ".join(_text(dmi / name) for name in ("sys_vendor", "product_name", "bios_vendor")).lower()
    if not names.strip():
        return None
    if "amazon ec2" in names:
        return ".metal" not in names
    return any(vendor in names for vendor in _VIRTUAL_VENDORS)


def _memory_bytes(root: Path) -> int:
    """Return the memory installed, by the kernel's memory blocks where it shows them, else what it can use of it."""
    blocks = root / "sys/devices/system/memory"
    try:
        size = int(_text(blocks / "block_size_bytes"), 16)
    except ValueError:
        size = 0
    online = sum(1 for block in blocks.glob("memory*/state") if _text(block) == "online")
    if size and online:
        return size * online
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return int(psutil.virtual_memory().total)


def _disks(root: Path, *, virtual: bool) -> tuple[int, str]:
    """Return the bytes of all fixed disks and their kinds; the root file system's size where no disk is shown."""
    total, kinds = 0, []
    for disk in sorted((root / "sys/block").glob("*")):
        size = _text(disk / "size")
        if disk.name.startswith(_NOT_DISKS) or not size.isdigit() or size == "0" or _text(disk / "removable") == "1":
            continue
        total += int(size) * _SECTOR_BYTES
        kinds.append(_disk_kind(disk, virtual=virtual))
    if total:
        return total, ", ".join(dict.fromkeys(kinds))
    return shutil.disk_usage(root).total, ""


def _disk_kind(disk: Path, *, virtual: bool) -> str:
    # A hypervisor's "rotational" says nothing of the disk behind it.
    if virtual or disk.name.startswith(("vd", "xvd")):
        return VIRTUAL_DISK
    if disk.name.startswith("nvme"):
        return "NVMe SSD"
    return "HDD" if _text(disk / "queue/rotational") == "1" else "SSD"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

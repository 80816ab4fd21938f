"""The host: its operating system, its name in the firmware, and the hypervisor below it."""

import platform
from pathlib import Path

from cm4vllm.common.kernel_files import exists, text
from cm4vllm.hardware.os_release import read_os_release
from cm4vllm.records.machine import HostFacts

_HYPERVISORS = {
    "qemu": "QEMU",
    "kvm": "KVM",
    "vmware": "VMware",
    "virtualbox": "VirtualBox",
    "innotek": "VirtualBox",
    "xen": "Xen",
    "hvm domu": "Xen",
    "bochs": "Bochs",
    "parallels": "Parallels",
    "openstack": "OpenStack",
    "bhyve": "bhyve",
    "google compute engine": "Google Compute Engine",
    "virtual machine": "Hyper-V",
    "cloud hypervisor": "Cloud Hypervisor",
    "firecracker": "Firecracker",
    "amazon ec2": "Amazon EC2",
}
#: The texts of firmware into which no name was written.
_NO_NAMES = (
    "to be filled",
    "default string",
    "system product name",
    "system manufacturer",
    "not specified",
    "none",
    "o.e.m",
)


def detect_host(root: Path = Path("/")) -> HostFacts:
    """Return the facts of the host whose /proc, /sys and /etc are under `root`."""
    release = read_os_release(root)
    virtual = is_virtual(root)
    return HostFacts(
        os_name=release.get("NAME") or platform.system(),
        os_version=release.get("VERSION") or release.get("VERSION_ID") or platform.mac_ver()[0],
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        virtualised=virtual,
        hypervisor=_hypervisor(root) if virtual else "",
        container=_in_container(root),
        product=_product(root),
    )


def is_virtual(root: Path = Path("/")) -> bool | None:
    """Return True if this is a virtual machine, by the hypervisor flag or the firmware; None if neither says."""
    if text(root / "sys/hypervisor/type"):
        return True
    flags = next((line for line in text(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    if flags:
        return "hypervisor" in flags.split()
    if text(root / "proc/device-tree/hypervisor/compatible"):
        return True
    names = _firmware(root)
    if not names:
        return None
    return ".metal" not in names if "amazon ec2" in names else any(word in names for word in _HYPERVISORS)


def _firmware(root: Path) -> str:
    dmi = root / "sys/class/dmi/id"
    return " ".join(text(dmi / name) for name in ("sys_vendor", "product_name", "bios_vendor")).lower().strip()


def _hypervisor(root: Path) -> str:
    names = f"{text(root / 'sys/hypervisor/type')} {text(root / 'proc/device-tree/hypervisor/compatible')}"
    names = f"{names} {_firmware(root)}".lower()
    return next((name for word, name in _HYPERVISORS.items() if word in names), "")


def _product(root: Path) -> str:
    dmi = root / "sys/class/dmi/id"
    words = [text(dmi / "sys_vendor"), text(dmi / "product_name") or text(root / "proc/device-tree/model")]
    return " ".join(word for word in words if word and not word.lower().startswith(_NO_NAMES))


def _in_container(root: Path) -> bool:
    if any(exists(root / name) for name in (".dockerenv", "run/.containerenv")):
        return True
    marks = ("docker", "kubepods", "containerd", "libpod", "lxc")
    return any(mark in text(root / "proc/1/cgroup") for mark in marks)

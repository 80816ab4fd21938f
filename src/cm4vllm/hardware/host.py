"""The host: operating system, name in the firmware, hypervisor below it, fixed disks and network cards.

No addresses, and no names of network interfaces: some are made of MAC addresses (enx001122334455).
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from cm4vllm.common.kernel_files import exists, matching, number, target, text
from cm4vllm.common.programs.processes import run
from cm4vllm.records.machine import DiskFacts, HostFacts, NetworkCard

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
#: The folder of the firmware's names, and those that may name a hypervisor.
_DMI, _FIRMWARE = "sys/class/dmi/id", ("sys_vendor", "product_name", "bios_vendor")
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
        os_version=release.get("VERSION") or release.get("VERSION_ID") or "",
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
    if flags := next((line for line in text(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), ""):
        return "hypervisor" in flags.split()
    if text(root / "proc/device-tree/hypervisor/compatible"):
        return True
    names = " ".join(text(root / _DMI / name) for name in _FIRMWARE).lower().strip()
    known = ".metal" not in names if "amazon ec2" in names else any(word in names for word in _HYPERVISORS)
    return known if names else None


def _hypervisor(root: Path) -> str:
    files = ("sys/hypervisor/type", "proc/device-tree/hypervisor/compatible", *(f"{_DMI}/{name}" for name in _FIRMWARE))
    names = " ".join(text(root / file) for file in files).lower()
    return next((name for word, name in _HYPERVISORS.items() if word in names), "")


def _product(root: Path) -> str:
    words = [
        text(root / _DMI / "sys_vendor"),
        text(root / _DMI / "product_name") or text(root / "proc/device-tree/model"),
    ]
    return " ".join(word for word in words if word and not word.lower().startswith(_NO_NAMES))


def _in_container(root: Path) -> bool:
    marks = ("docker", "kubepods", "containerd", "libpod", "lxc")
    files = (".dockerenv", "run/.containerenv")
    return any(exists(root / name) for name in files) or any(mark in text(root / "proc/1/cgroup") for mark in marks)


_PACKAGE_MANAGERS = (
    (("debian", "ubuntu"), "apt"),
    (("rhel", "fedora", "centos", "amzn"), "dnf"),
    (("sles", "suse", "opensuse"), "zypper"),
    (("arch",), "pacman"),
    (("alpine",), "apk"),
    (("macos",), "brew"),
)
#: The commands of each package manager that install a package and renew its lists, as cm4mlops' detect-os gives them.
_COMMANDS = {
    "apt": ("DEBIAN_FRONTEND=noninteractive apt-get install -y", "apt-get update -y"),
    "dnf": ("dnf install -y", "dnf update -y"),
    "zypper": ("zypper install -y", "zypper update -y"),
    "pacman": ("pacman -Sy --noconfirm", "pacman -Syu"),
    "apk": ("apk add", "apk update"),
    "brew": ("brew install", "brew update"),
}


def read_os_release(root: Path = Path("/")) -> dict[str, str]:
    """Return the fields of os-release under `root` (man 5 os-release); an empty dict if the file is missing."""
    lines = (text(root / "etc/os-release") or text(root / "usr/lib/os-release")).splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def os_env(root: Path = Path("/")) -> dict[str, str]:
    """Return the operating system under the public names, as it is published: without the host's name."""
    family = platform.system().lower()
    macos = {"ID": "macos", "VERSION_ID": platform.mac_ver()[0]} if family == "darwin" else {}
    release = read_os_release(root) or macos
    flavor, like = release.get("ID", family).lower(), release.get("ID_LIKE", "").lower()
    name, version = platform.libc_ver()
    names = {flavor, *like.split()}
    return {
        "CM_HOST_OS_TYPE": family,
        "CM_HOST_OS_BITS": "64" if platform.machine().endswith("64") else "32",
        "CM_HOST_OS_FLAVOR": flavor,
        "CM_HOST_OS_FLAVOR_LIKE": like,
        "CM_HOST_OS_VERSION": release.get("VERSION_ID", "").lower(),
        "CM_HOST_OS_KERNEL_VERSION": platform.release(),
        "CM_HOST_OS_MACHINE": platform.machine(),
        "CM_HOST_OS_PACKAGE_MANAGER": next((manager for of, manager in _PACKAGE_MANAGERS if names & set(of)), ""),
        "CM_HOST_PLATFORM_FLAVOR": platform.machine(),
        "CM_HOST_PYTHON_BITS": "64" if sys.maxsize > 2**32 else "32",
        **({f"CM_HOST_OS_{name.upper()}_VERSION": version} if name and version else {}),
    }


def public_env(root: Path = Path("/")) -> tuple[dict[str, str | list[str]], dict[str, str]]:
    """Return the environment keys and the state of the recipe detect-os: those of the recipe of cm4mlops.

    Recipes of other repositories read them. They hold the host's name, which `os_env` does not: no record takes it
    from here.
    """
    known = os_env(root)
    # What a distribution is like is empty where it is derived from no other.
    env: dict[str, str | list[str]] = {
        key: value for key, value in known.items() if value or key == "CM_HOST_OS_FLAVOR_LIKE"
    }
    if commands := _COMMANDS.get(known["CM_HOST_OS_PACKAGE_MANAGER"]):
        env["CM_HOST_OS_PACKAGE_MANAGER_INSTALL_CMD"], env["CM_HOST_OS_PACKAGE_MANAGER_UPDATE_CMD"] = commands
    if folders := _library_folders():
        env["+CM_HOST_OS_DEFAULT_LIBRARY_PATH"] = folders
    if exists(Path("/.dockerenv")):
        env["CM_RUN_INSIDE_DOCKER"] = "yes"
    env["CM_HOST_SYSTEM_NAME"] = platform.node()
    kernel = os.uname()
    return env, {"os_uname_machine": kernel.machine, "os_uname_all": " ".join(kernel)}


def _library_folders() -> list[str]:
    """Return the folders that the linker searches for libraries; none without a linker of GNU."""
    try:
        said = run(["ld", "--verbose"], timeout_s=10).output
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(dict.fromkeys(re.findall(r'SEARCH_DIR\("=?([^"]+)"\)', said)))


def os_line(root: Path = Path("/")) -> str:
    """Return the operating system in one line for a person."""
    release = read_os_release(root)
    name = f"{release.get('NAME', platform.system())} {release.get('VERSION', '')}".strip()
    return f"{release.get('PRETTY_NAME') or name}, {platform.system()} {platform.release()}, {platform.machine()}"


VIRTUAL_DISK = "virtual disk"
_SECTOR_BYTES = 512  # the unit of /sys/block/*/size, whatever the disk's own (Documentation/ABI/stable/sysfs-block)
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd", "zd", "mtd")


def detect_disks(root: Path = Path("/")) -> list[DiskFacts]:
    """Return the fixed disks under `root`; none where none is shown, as in many containers."""
    virtual = bool(is_virtual(root))
    return [
        DiskFacts(
            size_bytes=size * _SECTOR_BYTES,
            kind=_kind(disk, virtual=virtual),
            model=" ".join(text(disk / "device/model").split()),
        )
        for disk in matching(root / "sys/block", "*")
        if not disk.name.startswith(_NOT_DISKS)
        if text(disk / "removable") != "1" and (size := number(disk / "size"))
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


#: ARPHRD_INFINIBAND of linux/if_arp.h.
_INFINIBAND = "32"
_VIRTUAL_DRIVERS = ("virtio", "vmxnet", "xen", "hv_netvsc", "ena", "gve", "mana", "vif")


def detect_network(root: Path = Path("/")) -> list[NetworkCard]:
    """Return the network cards under `root`: what has a device behind it, ports of one card taken together.

    Virtual functions of a physical card are its parts and do not count; in a virtual machine every card is virtual.
    """
    virtual = bool(is_virtual(root))
    ports: dict[str, list[Path]] = defaultdict(list)
    for port in matching(root / "sys/class/net", "*"):
        device = port / "device"
        if exists(device) and (virtual or not exists(device / "physfn")):
            ports[re.sub(r"\.\d$", "", target(device).as_posix())].append(port)
    return [_card(group, virtual=virtual) for group in ports.values()]


def _card(ports: list[Path], *, virtual: bool) -> NetworkCard:
    """Return the network card of these ports: kind, driver, rate in Mbit/s."""
    driver = target(ports[0] / "device/driver").name if exists(ports[0] / "device/driver") else ""
    own = "InfiniBand" if any(text(port / "type") == _INFINIBAND for port in ports) else "Ethernet"
    rates = [rate for port in ports for rate in (number(port / "speed"), *_infiniband_rates(port)) if rate]
    return NetworkCard(
        kind="virtual" if virtual or driver.startswith(_VIRTUAL_DRIVERS) else own,
        driver=driver,
        ports=len(ports),
        megabits=max(rates, default=None),
    )


def _infiniband_rates(port: Path) -> list[int]:
    """Return the rates of the port's InfiniBand device in Mbit/s; the kernel writes '400 Gb/sec (4X NDR)'."""
    texts = map(text, matching(port / "device/infiniband", "*/ports/*/rate"))
    return [round(float(rate[1]) * 1000) for rate in map(re.compile(r"(\d+(?:\.\d+)?) Gb/sec").match, texts) if rate]

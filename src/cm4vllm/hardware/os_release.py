"""The operating system, from os-release and the kernel. Standard library only: detect-os needs no package."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from cm4vllm.common.kernel_files import text

__all__ = ["os_env", "os_line", "read_os_release"]

_PACKAGE_MANAGERS = (
    (("debian", "ubuntu"), "apt"),
    (("rhel", "fedora", "centos", "amzn"), "dnf"),
    (("sles", "suse", "opensuse"), "zypper"),
    (("arch",), "pacman"),
    (("alpine",), "apk"),
)


def read_os_release(root: Path = Path("/")) -> dict[str, str]:
    """Return the fields of os-release under `root` (man 5 os-release); an empty dict if the file is missing."""
    for name in ("etc/os-release", "usr/lib/os-release"):
        lines = text(root / name).splitlines()
        if not lines:
            continue
        pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
        return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
    return {}


def os_env(root: Path = Path("/")) -> dict[str, str]:
    """Return what the recipe detect-os gives, under the public names. The host's name is left out on purpose."""
    release = read_os_release(root)
    family = platform.system().lower()
    flavor = release.get("ID", "macos" if family == "darwin" else family).lower()
    like = release.get("ID_LIKE", "").lower()
    version = release.get("VERSION_ID") or (platform.mac_ver()[0] if family == "darwin" else "")
    return {
        "CM_HOST_OS_TYPE": family,
        "CM_HOST_OS_BITS": "64" if platform.machine().endswith("64") else "32",
        "CM_HOST_OS_FLAVOR": flavor,
        "CM_HOST_OS_FLAVOR_LIKE": like,
        "CM_HOST_OS_VERSION": version.lower(),
        "CM_HOST_OS_KERNEL_VERSION": platform.release(),
        "CM_HOST_OS_MACHINE": platform.machine(),
        "CM_HOST_OS_PACKAGE_MANAGER": _package_manager(family, {flavor, *like.split()}),
        "CM_HOST_PLATFORM_FLAVOR": platform.machine(),
        "CM_HOST_PYTHON_BITS": "64" if sys.maxsize > 2**32 else "32",
    }


def os_line(root: Path = Path("/")) -> str:
    """Return the operating system in one line for a person."""
    release = read_os_release(root)
    name = f"{release.get('NAME', platform.system())} {release.get('VERSION', '')}".strip()
    return f"{release.get('PRETTY_NAME') or name}, {platform.system()} {platform.release()}, {platform.machine()}"


def _package_manager(family: str, flavors: set[str]) -> str:
    if family == "darwin":
        return "brew"
    return next((manager for names, manager in _PACKAGE_MANAGERS if flavors & set(names)), "")

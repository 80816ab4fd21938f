"""The operating system, from os-release and the kernel. No package is needed."""

import platform
import re
import subprocess
import sys
from pathlib import Path

from cm4vllm.common.kernel_files import exists, text
from cm4vllm.common.programs.processes import run

_PACKAGE_MANAGERS = (
    (("debian", "ubuntu"), "apt"),
    (("rhel", "fedora", "centos", "amzn"), "dnf"),
    (("sles", "suse", "opensuse"), "zypper"),
    (("arch",), "pacman"),
    (("alpine",), "apk"),
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
    for name in ("etc/os-release", "usr/lib/os-release"):
        lines = text(root / name).splitlines()
        if not lines:
            continue
        pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
        return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
    return {}


def os_env(root: Path = Path("/")) -> dict[str, str]:
    """Return the operating system under the public names, as it is published: without the host's name."""
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
        **_libc(),
    }


def public_env(root: Path = Path("/")) -> tuple[dict[str, str | list[str]], dict[str, str]]:
    """Return the environment keys and the state of the recipe detect-os: those of the recipe of cm4mlops.

    Recipes of other repositories read them. They hold the host's name, which `os_env` does not: no record takes it
    from here.
    """
    known = os_env(root)
    env: dict[str, str | list[str]] = {key: value for key, value in known.items() if value or key in _MAY_BE_EMPTY}
    for name, command in zip(
        ("INSTALL", "UPDATE"), _COMMANDS.get(known["CM_HOST_OS_PACKAGE_MANAGER"], ()), strict=False
    ):
        env[f"CM_HOST_OS_PACKAGE_MANAGER_{name}_CMD"] = command
    if folders := _library_folders():
        env["+CM_HOST_OS_DEFAULT_LIBRARY_PATH"] = folders
    if exists(Path("/.dockerenv")):
        env["CM_RUN_INSIDE_DOCKER"] = "yes"
    env["CM_HOST_SYSTEM_NAME"] = platform.node()
    kernel = platform.uname()
    every = f"{kernel.system} {kernel.node} {kernel.release} {kernel.version} {kernel.machine}"
    return env, {"os_uname_machine": kernel.machine, "os_uname_all": every}


#: Empty where a distribution is derived from no other.
_MAY_BE_EMPTY = ("CM_HOST_OS_FLAVOR_LIKE",)


def _libc() -> dict[str, str]:
    name, version = platform.libc_ver()
    return {f"CM_HOST_OS_{name.upper()}_VERSION": version} if name and version else {}


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


def _package_manager(family: str, flavors: set[str]) -> str:
    if family == "darwin":
        return "brew"
    return next((manager for names, manager in _PACKAGE_MANAGERS if flavors & set(names)), "")

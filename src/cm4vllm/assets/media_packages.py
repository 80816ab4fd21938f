"""Packages that benchmarks of media need beside vLLM's environment and ours, in a folder of their own."""

import sys
from pathlib import Path

from cm4vllm.common.files import require_space
from cm4vllm.common.programs.environments import checked, install_pinned
from cm4vllm.common.progress import step

#: The size of the largest folder (250 MiB), and of its packages while they are unpacked.
_SPACE_BYTES = 600 * 2**20


def install(folder: Path, lock: Path, names: str, python: str = "") -> Path:
    """Install what `lock` pins for `python`, ours without, with hashes, into `folder`/packages; return that folder.

    `names` says what they are. Raises InstallError, DiskFull.
    """
    require_space(folder, _SPACE_BYTES, names)
    packages = folder / "packages"
    with step(names):
        done = install_pinned(Path(python or sys.executable), lock, folder / "pip.log", [f"--target={packages}"])
        checked(done, f"{names} cannot be installed")
    return packages

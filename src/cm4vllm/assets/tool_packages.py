"""Packages that stand apart from vLLM's environment and ours: llm-compressor, and what benchmarks of media need."""

import sys
from pathlib import Path

from cm4vllm.common.files import require_space
from cm4vllm.common.programs.environments import install_pinned, install_torch, make_environment, require_success
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import step

#: Room of llm-compressor's environment on the disk (1.2 GiB), and while its packages are unpacked.
_COMPRESSOR_BYTES = 3 * 2**30
#: The size of the largest folder of packages (250 MiB), and of its packages while they are unpacked.
_FOLDER_BYTES = 600 * 2**20


def install_compressor(folder: Path, lock: Path) -> tuple[Path, str]:
    """Install llm-compressor into `folder`/venv as `lock` pins it, with hashes; return its Python and its version.

    Raises InstallError, DiskFull.
    """
    require_space(folder, _COMPRESSOR_BYTES, "llm-compressor and what it needs")
    with step("environment for llm-compressor"):
        python = make_environment(folder / "venv")
        install_torch(python, lock, folder / "pip-torch.log")
        require_success(install_pinned(python, lock, folder / "pip.log"), "llm-compressor cannot be installed")
        proof = run(
            [python, "-P", "-c", "import llmcompressor; print('version', llmcompressor.__version__)"],
            log=folder / "proof.log",
            env={"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""},
        )
    require_success(proof, "the installed llm-compressor cannot be imported")
    return python, next(line.split()[1] for line in proof.output.splitlines() if line.startswith("version "))


def install_packages(folder: Path, lock: Path, names: str, python: str = "") -> Path:
    """Install what `lock` pins for `python`, ours without, with hashes, into `folder`/packages; return that folder.

    `names` says what they are. Raises InstallError, DiskFull.
    """
    require_space(folder, _FOLDER_BYTES, names)
    packages = folder / "packages"
    with step(names):
        done = install_pinned(Path(python or sys.executable), lock, folder / "pip.log", [f"--target={packages}"])
        require_success(done, f"{names} cannot be installed")
    return packages

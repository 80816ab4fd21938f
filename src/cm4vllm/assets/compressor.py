"""llm-compressor in an environment of its own."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.common.environments import checked, install_torch, make_environment, pip
from cm4vllm.common.files import require_space
from cm4vllm.common.processes import run
from cm4vllm.common.progress import step

__all__ = ["install"]

#: What the environment takes when it is there (1.2 GiB), and while its packages are unpacked.
_SPACE_BYTES = 3 * 2**30


def install(folder: Path, lock: Path) -> tuple[Path, str]:
    """Install llm-compressor into `folder`/venv as `lock` pins it; return its Python and its version.

    Raises InstallError, DiskFull.
    """
    require_space(folder, _SPACE_BYTES, "llm-compressor and what it needs")
    with step("environment for llm-compressor"):
        python = make_environment(folder / "venv")
        torch = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
        install_torch(python, torch, folder / "pip-torch.log")
        checked(pip(python, ["--no-deps", "-r", str(lock)], folder / "pip.log"), "llm-compressor cannot be installed")
        told = run(
            [python, "-P", "-c", "import llmcompressor; print('version', llmcompressor.__version__)"],
            log=folder / "proof.log",
            env={"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""},
        )
    checked(told, "the installed llm-compressor cannot be imported")
    return python, next(line.split()[1] for line in told.output.splitlines() if line.startswith("version "))

"""llm-compressor in an environment of its own."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.common.files import require_space
from cm4vllm.common.programs.environments import checked, install_pinned, install_torch, make_environment
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import step

#: Room of the environment on the disk (1.2 GiB), and while its packages are unpacked.
_SPACE_BYTES = 3 * 2**30


def install(folder: Path, lock: Path) -> tuple[Path, str]:
    """Install llm-compressor into `folder`/venv as `lock` pins it, with hashes; return its Python and its version.

    Raises InstallError, DiskFull.
    """
    require_space(folder, _SPACE_BYTES, "llm-compressor and what it needs")
    with step("environment for llm-compressor"):
        python = make_environment(folder / "venv")
        install_torch(python, lock, folder / "pip-torch.log")
        checked(install_pinned(python, lock, folder / "pip.log"), "llm-compressor cannot be installed")
        proof = run(
            [python, "-P", "-c", "import llmcompressor; print('version', llmcompressor.__version__)"],
            log=folder / "proof.log",
            env={"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""},
        )
    checked(proof, "the installed llm-compressor cannot be imported")
    return python, next(line.split()[1] for line in proof.output.splitlines() if line.startswith("version "))

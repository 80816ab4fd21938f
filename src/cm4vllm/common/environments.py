"""Python environments of their own for programs whose packages must not meet ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cm4vllm.common.errors import InstallError
from cm4vllm.common.processes import Completed, run

__all__ = ["install_torch", "make_environment", "pip_install"]

#: Where the PyTorch project keeps its CPU builds; PyPI has only those for GPUs.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def make_environment(folder: Path) -> Path:
    """Make an empty virtual environment in `folder` and return its Python. Raises InstallError."""
    # Without a pip of its own: ours installs into it, and ensurepip alone would take as long as PyTorch.
    checked(run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder]),
            "a virtual environment cannot be made")
    return folder / "bin" / "python"


def pip_install(python: Path, words: Sequence[str], log: Path) -> Completed:
    """Install into the environment of `python` what `words` name; what pip prints goes to `log`."""
    # Not compiled: of thousands of modules few are ever imported.
    return run([sys.executable, "-m", "pip", f"--python={python}", "install", "--disable-pip-version-check",
                "--no-input", "--no-compile", "--progress-bar=off", *words], log=log, env={"PYTHONPATH": ""})


def install_torch(python: Path, torch: str, log: Path) -> None:
    """Install PyTorch's CPU build from where the user's own pip looks, else from the PyTorch project's index."""
    if not pip_install(python, ["--no-deps", torch], log).ok:
        checked(pip_install(python, ["--no-deps", torch, "--extra-index-url", TORCH_CPU_INDEX], log),
                f"{torch} cannot be installed")


def checked(done: Completed, what: str) -> Completed:
    """Return a command that ended well. Raises InstallError with its last lines for one that did not."""
    if not done.ok:
        raise InstallError(what, cause=done.tail(12),
                           remedy="the lines above are pip's; an index or proxy of your own is set with `pip config`")
    return done

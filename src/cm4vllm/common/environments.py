"""Python environments of their own for programs whose packages must not meet ours."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cm4vllm.common.errors import InstallError
from cm4vllm.common.processes import Completed, run

__all__ = ["TORCH_CPU_INDEX", "checked", "install_torch", "make_environment", "pip", "site_packages"]

#: Where the PyTorch project keeps its CPU builds; PyPI has only those for GPUs.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def make_environment(folder: Path, python: Path | str = sys.executable) -> Path:
    """Make an empty virtual environment of `python` in `folder` and return its Python. Raises InstallError."""
    # Without a pip of its own: ours installs into it, and ensurepip alone would take as long as PyTorch.
    checked(run([python, "-m", "venv", "--clear", "--without-pip", folder]), "a virtual environment cannot be made")
    return folder / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Return the folder of a virtual environment's packages."""
    return next((environment / "lib").glob("python3*/site-packages"))


def pip(
    python: Path,
    words: Sequence[str],
    log: Path | None = None,
    action: Literal["install", "uninstall", "freeze"] = "install",
) -> Completed:
    """Have our pip work on the environment of `python`; what it prints goes to `log` too."""
    # Not compiled: of thousands of modules few are ever imported.
    more = {"install": ["--no-compile", "--progress-bar=off"], "uninstall": ["--yes"], "freeze": []}[action]
    return run(
        [
            sys.executable,
            "-m",
            "pip",
            f"--python={python}",
            action,
            "--disable-pip-version-check",
            "--no-input",
            *more,
            *words,
        ],
        log=log,
        env={"PYTHONPATH": ""},
    )


def install_torch(python: Path, torch: str, log: Path, index_words: Sequence[str] = (), own_index: str = "") -> None:
    """Install PyTorch's CPU build from where the user's own pip looks, else from the PyTorch project's index.

    `index_words` are pip's options for an index of the user's own, `own_index` is how they are given. Raises
    InstallError.
    """
    words = ["--no-deps", torch, *index_words]
    if not pip(python, words, log).ok:
        checked(
            pip(python, [*words, "--extra-index-url", TORCH_CPU_INDEX], log), f"{torch} cannot be installed", own_index
        )


def checked(done: Completed, what: str, own_index: str = "") -> Completed:
    """Return a command that ended well. Raises InstallError with pip's own words, or the last lines of another command.

    `own_index` is the flag by which the user gives an index of their own, where there is one beside pip's settings.
    """
    if done.ok:
        return done
    said = [line[:600] for line in done.output.splitlines() if line.startswith("ERROR:")][-4:]
    given = " or ".join(filter(None, (own_index, "`pip config`")))
    hint = f"these are pip's words; an index of your own is given with {given}\n" if said else ""
    raise InstallError(
        what, cause="\n".join(said) or done.tail(12), remedy=f"{hint}the command: {shlex.join(done.argv)}"
    )

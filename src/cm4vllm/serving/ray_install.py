"""Ray beside a vLLM: an environment of its own that sees all of the vLLM's packages, which stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

from cm4vllm.common.errors import InstallError
from cm4vllm.common.files import require_space, write_text
from cm4vllm.common.processes import Completed, run
from cm4vllm.common.progress import step

__all__ = ["RAY_RELEASE", "install_ray"]

#: All machines of a cluster need the same one; vLLM 0.32 asks for 2.48 or newer.
RAY_RELEASE = "2.60.0"

#: Measured: 285 MB unpacked, and the downloads beside them.
SPACE_BYTES = 10**9


def install_ray(python: Path, folder: Path, release: str = RAY_RELEASE) -> tuple[Path, str]:
    """Make an environment over that of `python` (a vLLM's) in `folder`/venv; return its Python and Ray's release.

    Ray's own dependencies are held at the versions that the vLLM has, so that both import the same.
    Raises InstallError.
    """
    require_space(folder, SPACE_BYTES, "Ray")
    venv = folder / "venv"
    with step(f"Ray {release}"):
        frozen = _checked(run([sys.executable, "-m", "pip", f"--python={python}", "freeze"], env={"PYTHONPATH": ""}),
                          "the packages of the vLLM cannot be listed")
        constraints = folder / "vllm-packages.txt"
        write_text(constraints, "".join(f"{line}\n" for line in frozen.splitlines() if "==" in line))
        site = _checked(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
                        "the vLLM's Python does not run").strip()
        _checked(run([python, "-m", "venv", "--clear", "--without-pip", venv]), "an environment cannot be made")
        own = venv / "bin" / "python"
        place = _checked(run([own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
                         "the new environment's Python does not run").strip()
        _checked(run([sys.executable, "-m", "pip", f"--python={own}", "install", "--disable-pip-version-check",
                      "--no-input", "--no-compile", "--progress-bar=off", "-c", constraints, f"ray=={release}"],
                     log=folder / "pip-ray.log", env={"PYTHONPATH": ""}), f"Ray {release} cannot be installed")
        write_text(Path(place) / "vllm-environment.pth", f"{site}\n")
        found = _checked(run([own, "-c", "import ray, vllm; print(ray.__version__)"], env={"PYTHONPATH": ""}),
                         "Ray and vLLM cannot be imported together")
    return own, found.splitlines()[-1]


def _checked(done: Completed, what: str) -> str:
    if not done.ok:
        raise InstallError(what, cause=done.tail(12), remedy="the lines above are the tool's own")
    return done.output

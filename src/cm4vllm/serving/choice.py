"""Which vLLM: for the accelerator that was detected, or one that is installed already."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

from cm4vllm.common.errors import InstallError
from cm4vllm.common.processes import run
from cm4vllm.common.progress import say
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Key

__all__ = ["Choice", "SystemVllm", "choose", "system_vllm"]

#: The device of ROCm's kernel driver; amdsmi, which tells more, is not always there.
_KFD = Path("/dev/kfd")


class Choice(Record, frozen=True, kw_only=True):
    """What was asked for, and what was detected. `variant` is empty where nobody asked."""

    variant: Annotated[str, Key("CM_VLLM_VARIANT")] = ""
    cuda_devices: Annotated[int, Key("CM_CUDA_NUM_DEVICES")] = 0
    vendor: Annotated[str, Key("CM_HOST_GPU_VENDOR")] = ""
    system_python: Annotated[str, Key("CM_VLLM_SYSTEM_PYTHON")] = ""


class SystemVllm(Record, frozen=True, kw_only=True):
    """A vLLM that is installed already: the Python that has it, and its version."""

    python: str
    version: str


def choose(choice: Choice) -> dict[str, str]:
    """Return what the recipe sets: nothing for a build that was asked for by its name."""
    if choice.variant == "system":
        found = system_vllm(choice.system_python)
        return {"CM_VLLM_CHOSEN_VARIANT": "system", "CM_VLLM_SYSTEM_PYTHON": found.python,
                "CM_VLLM_SYSTEM_VERSION": found.version}
    return {} if choice.variant else {"CM_VLLM_CHOSEN_VARIANT": _detected(choice)}


def _detected(choice: Choice) -> str:
    if choice.cuda_devices:
        variant, why = "cuda", f"{choice.cuda_devices} NVIDIA GPUs were detected"
    elif choice.vendor == "AMD" or _KFD.exists():
        variant, why = "rocm", "an AMD GPU was detected"
    else:
        variant, why = "cpu", "no GPU was detected"
    say(f"vLLM for {variant}: {why}")
    return variant


def system_vllm(given: str = "") -> SystemVllm:
    """Return the vLLM of the Python `given`, else that of the `vllm` command, else that of the running Python.

    Raises InstallError where none has a vLLM.
    """
    asked = [given] if given else [*_python_of_command(), sys.executable]
    for python in asked:
        version = _version(python)
        if version:
            return SystemVllm(python=python, version=version)
    raise InstallError("no vLLM is installed", cause=f"asked: {', '.join(asked)}",
                       remedy="name the Python that has one: --vllm_python=/path/to/bin/python; or leave _system out")


def _python_of_command() -> list[str]:
    """Return the interpreter in the first line of the `vllm` command."""
    command = shutil.which("vllm")
    if command is None:
        return []
    with Path(command).open("rb") as file:
        first = file.readline().decode(errors="replace").strip()
    return [first.removeprefix("#!")] if first.startswith("#!/") else []


def _version(python: str) -> str:
    """Return the version of vLLM in a Python's environment, empty where there is none."""
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    try:
        done = run([python, "-P", "-c", code], env={"PYTHONPATH": ""})
    except OSError:
        return ""
    return done.output.strip() if done.ok else ""

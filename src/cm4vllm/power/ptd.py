"""The program PTDaemon: SPEC's own, which the user gives, or the simulated one."""

import sys
from pathlib import Path
from typing import Annotated

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import given_path
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.power.samples import SIMULATED


class PtdInputs(Settings, frozen=True, kw_only=True):
    """The path of SPEC's program, or the simulated one."""

    simulated: Annotated[bool, Key("CM_MLPERF_PTD_SIMULATED")] = False
    path: Annotated[str, Key("CM_MLPERF_PTD_GIVEN")] = ""


def ptd_path(inputs: PtdInputs, folder: Path) -> Path:
    """Return the program that stands for PTDaemon. Raises UsageError where none is given."""
    if inputs.simulated:
        return simulated_program(folder)
    if not inputs.path or not given_path(inputs.path).is_file():
        raise UsageError(
            f"no PTDaemon at {inputs.path}" if inputs.path else "no PTDaemon was given",
            cause="SPEC's licence does not allow to distribute the program; MLCommons gives it to members who signed",
            remedy="give its path with --ptd_path=FILE",
        )
    return given_path(inputs.path)


def simulated_program(folder: Path) -> Path:
    """Write the program that starts the simulated PTDaemon; return its path."""
    path = folder / f"{SIMULATED}-ptd"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m cm4vllm.power.simulated_ptd "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path

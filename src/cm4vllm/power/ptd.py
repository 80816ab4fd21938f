"""The program PTDaemon: SPEC's own, which the user gives, or the simulated one."""

import sys
from collections.abc import Mapping
from pathlib import Path

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import given_path
from cm4vllm.records.power.samples import SIMULATED


def ptd_path(env: Mapping[str, str], folder: Path) -> Path:
    """Return the program that stands for PTDaemon. Raises UsageError where none is given."""
    if env.get("CM_MLPERF_PTD_SIMULATED"):
        return simulated_program(folder)
    given = env.get("CM_MLPERF_PTD_GIVEN", "")
    if not given or not given_path(given).is_file():
        raise UsageError(
            f"no PTDaemon at {given}" if given else "no PTDaemon was given",
            cause="SPEC's licence does not allow to distribute the program; MLCommons gives it to members who signed",
            remedy="give its path with --ptd_path=FILE",
        )
    return given_path(given)


def simulated_program(folder: Path) -> Path:
    """Write the program that starts the simulated PTDaemon; return its path."""
    path = folder / f"{SIMULATED}-ptd"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m cm4vllm.power.simulated_ptd "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path

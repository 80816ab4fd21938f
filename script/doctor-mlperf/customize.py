"""Prints which benchmarks this machine can run, and what is missing with the command that mends it."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.doctor.machine_page import MachineSettings, installation, report_machine

    cm = i["automation"].cmind
    installed = installation(cm, Path(i["automation"].path).parents[1])
    i["state"]["machine"] = report_machine(MachineSettings.of(i["env"]), Path(cm.repos_path), installed)
    return {"return": 0}

"""Prints which benchmarks this machine can run, and what is missing with the command that mends it."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.doctor_page import MachineSettings, Missing, report_machine
    from cm4vllm.engine.tools.doctor import diagnose

    cm = i["automation"].cmind
    symptoms = diagnose(cm, Path(i["automation"].path).parents[1])
    installation = [Missing(symptom.subject, symptom.text, symptom.remedy) for symptom in symptoms if symptom.remedy]
    i["state"]["machine"] = report_machine(MachineSettings.of(i["env"]), Path(cm.repos_path), installation)
    return {"return": 0}

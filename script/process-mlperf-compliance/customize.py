"""Verifies the run of a compliance test."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.compliance.verification import VerificationInputs

    VerificationInputs.of(i["env"]).require_run_of_user()
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.compliance.verification import VerificationInputs, require_passed, verify_run
    from cm4vllm.records.compliance import COMPLIANCE_FILE

    inputs = VerificationInputs.of(i["env"])
    folder = inputs.folder
    require_passed(verify_run(folder, speech_packages=inputs.speech_packages))
    i["env"]["CM_MLPERF_COMPLIANCE_RECORD"] = str(folder / COMPLIANCE_FILE)
    return {"return": 0}

"""Verifies the run of a compliance test."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.compliance.verification import FOLDER, compliance_folder

    env = i["env"]
    if env.get(FOLDER) and not env.get("CM_MLPERF_RESULTS_DIR"):  # a job verifies runs that it makes
        compliance_folder(env)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.compliance.verification import compliance_folder, require_passed, verify_run
    from cm4vllm.records.compliance import COMPLIANCE_FILE

    folder = compliance_folder(i["env"])
    require_passed(verify_run(folder, speech_packages=i["env"].get("CM_SPEECH_PACKAGES", "")))
    i["env"]["CM_MLPERF_COMPLIANCE_RECORD"] = str(folder / COMPLIANCE_FILE)
    return {"return": 0}

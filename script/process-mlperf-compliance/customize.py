"""Verifies the run of a compliance test."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cm4vllm.common.errors import UsageError
    from cm4vllm.compliance.records import COMPLIANCE_FILE
    from cm4vllm.compliance.verification import require_passed, verify_run

    env = i["env"]
    if not env.get("CM_MLPERF_COMPLIANCE_RESULTS_DIR"):
        raise UsageError("no run of a compliance test is named", remedy="--test_dir=FOLDER of such a run")
    folder = Path(env["CM_MLPERF_COMPLIANCE_RESULTS_DIR"]).absolute()
    require_passed(verify_run(folder))
    env["CM_MLPERF_COMPLIANCE_RECORD"] = str(folder / COMPLIANCE_FILE)
    return {"return": 0}

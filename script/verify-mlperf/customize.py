"""Compares two capsules and their results."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from cm4vllm.report.comparison_texts import report_verification
    from cm4vllm.results.comparing.verification import accuracy_tolerance, refuse_differences
    from cm4vllm.submission.capsule.capsules_at_path import capsule_at

    env = i["env"]
    tolerance = accuracy_tolerance(env)
    paths = [Path(env[key]).absolute() for key in ("CM_MLPERF_CAPSULE", "CM_MLPERF_OTHER_CAPSULE")]
    capsules = [(path, capsule_at(path, env.get("CM_MLPERF_CAPSULE_OF", ""))) for path in paths]
    rows = report_verification(capsules, tolerance)
    i["state"]["compared"] = msgspec.to_builtins(rows)
    refuse_differences(rows)
    return {"return": 0}

"""Checks a submission tree and prints everything that is wrong in it."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.results.check_command.finding_filters import Filters
    from cm4vllm.results.check_command.tree_check import report_checks

    env = i["env"]
    tree, weights = (env.get(f"CM_MLPERF_RESULTS_{name}", "") for name in ("TREE", "WEIGHTS"))
    i["state"].update(
        report_checks(
            Path(tree).absolute(),
            round_name=env.get("CM_MLPERF_RESULTS_ROUND", ""),
            weights=Path(weights).absolute() if weights else None,
            weights_of=env.get("CM_MLPERF_RESULTS_WEIGHTS_OF", ""),
            filters=Filters.parse(
                submitters=env.get("CM_MLPERF_RESULTS_SUBMITTER", ""),
                codes=env.get("CM_MLPERF_RESULTS_CODE", ""),
                severities=env.get("CM_MLPERF_RESULTS_SEVERITY", ""),
            ),
        )
    )
    return {"return": 0}

"""Runs the official checkers, unchanged, on a submission tree."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.rules import round_terms
    from cm4vllm.submission.checker import check_submission
    from cm4vllm.submission.records import CHECKER_FILE
    from cm4vllm.submission.source import open_source

    env = i["env"]
    tree = Path(env.get("CM_MLPERF_INFERENCE_SUBMISSION_DIR", "")).absolute()
    source = open_source(Path(env["CM_MLPERF_INFERENCE_SOURCE"]))
    check_submission(tree, env.get("CM_MLPERF_SUBMITTER", ""), round_terms(env["CM_MLPERF_ROUND"]).name, source)
    env["CM_MLPERF_SUBMISSION_CHECKER_RECORD"] = str(tree.parent / CHECKER_FILE)
    return {"return": 0}

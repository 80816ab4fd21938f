"""Runs the official checkers, unchanged, on a submission tree."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.tree_inputs import TREE, tree_inputs

    env = i["env"]
    if env.get(TREE) and not env.get("CM_MLPERF_RESULTS_DIR"):  # else the tree of these results is built first
        tree_inputs(env)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.records.checker import CHECKER_FILE
    from cm4vllm.submission.checker.official_checker import check_submission
    from cm4vllm.submission.checker.source import open_source
    from cm4vllm.submission.tree_inputs import tree_inputs

    inputs = tree_inputs(i["env"])
    source = open_source(Path(i["env"]["CM_MLPERF_INFERENCE_SOURCE"]))
    check_submission(inputs.tree, inputs.submitter, inputs.round, source)
    i["env"]["CM_MLPERF_SUBMISSION_CHECKER_RECORD"] = str(inputs.tree.parent / CHECKER_FILE)
    return {"return": 0}

"""Runs the official checkers, unchanged, on a submission tree."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.tree_inputs import TreeSettings, tree_inputs

    settings = TreeSettings.of(i["env"])
    if settings.exists_before:
        tree_inputs(settings)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.records.checker import CHECKER_FILE
    from cm4vllm.rules import RulesInputs
    from cm4vllm.submission.checker.official_checker import check_submission
    from cm4vllm.submission.checker.source import SourceInputs
    from cm4vllm.submission.tree_inputs import TreeSettings, tree_inputs

    env = i["env"]
    inputs = tree_inputs(TreeSettings.of(env))
    rules = RulesInputs.of(env).chosen()
    check_submission(inputs.tree, inputs.submitter, inputs.round, SourceInputs.of(env).provided, rules)
    env["CM_MLPERF_SUBMISSION_CHECKER_RECORD"] = str(inputs.tree.parent / CHECKER_FILE)
    return {"return": 0}

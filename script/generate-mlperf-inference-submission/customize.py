"""Builds a submission tree from campaigns' records, adds them to one, or removes results from it."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.tree_inputs import TreeSettings, place_of_tree

    i["env"]["CM_MLPERF_INFERENCE_SUBMISSION_DIR"] = place_of_tree(TreeSettings.of(i["env"]))
    return {"return": 0}


def plan(i: dict[str, Any]) -> dict[str, Any]:
    return {"return": 0, "env": {}}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.report.tree_texts import build_asked_tree
    from cm4vllm.submission.campaign_software import scripts_that_ran
    from cm4vllm.submission.result_removal import remove_results
    from cm4vllm.submission.tree_inputs import TreeSettings

    settings = TreeSettings.of(i["env"])
    if settings.remove:
        tree = Path(settings.tree).absolute()
        say(f"removed from {tree}: {', '.join(remove_results(tree, settings.remove, settings.submitter))}")
        return {"return": 0}
    scripts = scripts_that_ran(i["run_state"]["version_info"], "app-mlperf-inference-vllm")
    i["env"]["CM_MLPERF_INFERENCE_SUBMISSION_DIR"] = str(build_asked_tree(settings, scripts))
    return {"return": 0}

"""Builds a submission tree from campaigns' records, adds them to one, or removes results from it."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.tree_inputs import submission_inputs

    i["env"].update(submission_inputs(i["env"]))
    return {"return": 0}


def plan(i: dict[str, Any]) -> dict[str, Any]:
    return {"return": 0, "env": {}}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.files import typed_path, write_json
    from cm4vllm.common.folders.owned_folders import write_noted
    from cm4vllm.common.progress import say
    from cm4vllm.records.software import SCRIPTS_FILE
    from cm4vllm.report.tree_texts import tree_asked
    from cm4vllm.submission.campaign_software import scripts_that_ran
    from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE
    from cm4vllm.submission.result_removal import remove_results
    from cm4vllm.submission.tree import build_tree
    from cm4vllm.submission.tree_inputs import results_folders

    env = i["env"]
    submitter, tree = env.get("CM_MLPERF_SUBMITTER", ""), Path(env["CM_MLPERF_INFERENCE_SUBMISSION_DIR"]).absolute()
    if removed := env.get("CM_MLPERF_SUBMISSION_REMOVE", ""):
        names = remove_results(tree, removed, submitter)
        say(f"removed from {tree}: {', '.join(names)}")
        return {"return": 0}
    folders = results_folders(env.get("CM_MLPERF_RESULTS_DIR", ""))
    if scripts := scripts_that_ran(i["run_state"]["version_info"], "app-mlperf-inference-vllm"):
        write_json(folders[0] / "system" / SCRIPTS_FILE, scripts)
    text = env.get("CM_MLPERF_SUBMISSION_INTRODUCTION", "")
    introduction = typed_path(text).read_text(encoding="utf-8") if text else ""
    asked = [
        tree_asked(
            out,
            submitter=submitter,
            division=env.get("CM_MLPERF_SUBMISSION_DIVISION", ""),
            model=env.get("CM_ML_MODEL_NAME", ""),
            introduction=introduction,
        )
        for out in folders
    ]
    for results in asked:
        write_noted(results.out / CAPSULE_FILE, results.capsule)
    tree = build_tree(*asked, tree=tree, add=env.get("CM_MLPERF_SUBMISSION_ADD", "") == "yes")
    say(f"submission tree: {tree}")
    env["CM_MLPERF_INFERENCE_SUBMISSION_DIR"] = str(tree)
    return {"return": 0}

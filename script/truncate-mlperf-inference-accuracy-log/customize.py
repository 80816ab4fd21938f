"""Cuts the accuracy logs of a submission and writes their digests."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.tree_inputs import TREE, tree_folder

    env = i["env"]
    if env.get(TREE) and not env.get("CM_MLPERF_RESULTS_DIR"):  # else the tree of these results is built first
        tree_folder(env)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.submission.log_truncation import truncate_tree
    from cm4vllm.submission.tree_inputs import tree_folder

    env = i["env"]
    cut = truncate_tree(tree_folder(env), env.get("CM_MLPERF_SUBMITTER", ""))
    say(f"accuracy logs: {len(cut)} truncated, their digests in accuracy.txt")
    return {"return": 0}

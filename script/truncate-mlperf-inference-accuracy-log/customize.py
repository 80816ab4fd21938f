"""Cuts the accuracy logs of a submission and writes their digests."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.tree_inputs import TreeSettings, tree_folder

    settings = TreeSettings.of(i["env"])
    if settings.exists_before:
        tree_folder(settings)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.submission.log_truncation import truncate_tree
    from cm4vllm.submission.tree_inputs import TreeSettings, tree_folder

    settings = TreeSettings.of(i["env"])
    cut = truncate_tree(tree_folder(settings), settings.submitter)
    say(f"accuracy logs: {len(cut)} truncated, their digests in accuracy.txt")
    return {"return": 0}

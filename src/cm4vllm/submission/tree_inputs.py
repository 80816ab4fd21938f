"""The inputs of the recipes that work on a tree: its folder, and the submitter and round, by default from the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import round_terms
from cm4vllm.submission.tree_writer import GENERATE

__all__ = ["TREE", "TreeInputs", "tree_folder", "tree_inputs"]

#: The key of the tree's folder.
TREE = "CM_MLPERF_INFERENCE_SUBMISSION_DIR"
_CHECK = "run,mlperf,inference,submission,checker"


@dataclass(frozen=True)
class TreeInputs:
    """A tree, and the submitter and round of the submission in it that the official checkers are asked about."""

    tree: Path
    submitter: str
    round: str


def tree_folder(env: Mapping[str, Any]) -> Path:
    """Return the folder of the tree. Raises SubmissionError where it does not exist."""
    tree = Path(env[TREE]).absolute()
    if not tree.is_dir():
        raise SubmissionError(f"no submission in {tree}", remedy=f"build it first: --tags={GENERATE}")
    return tree


def tree_inputs(env: Mapping[str, Any]) -> TreeInputs:
    """Return the tree with its submitter and round; what is not given is read from the tree.

    Raises what tree_folder does, and UsageError where the tree has several submitters, or logs of no known round.
    """
    tree = tree_folder(env)
    submitter, round_name = str(env.get("CM_MLPERF_SUBMITTER") or ""), str(env.get("CM_MLPERF_ROUND") or "")
    if submitter and round_name:
        return TreeInputs(tree, submitter, round_terms(round_name).name)
    submissions = [submission for submission in read_tree(tree) if submitter in ("", submission.submitter)]
    names = sorted({submission.submitter for submission in submissions})
    rounds = sorted({submission.round for submission in submissions if submission.round})
    if len(names) != 1:
        cause = f"it has those of {', '.join(names)}" if names else f"it has none of {submitter}"
        raise UsageError(
            f"no single submission is meant in {tree}", cause=cause, remedy=f"name it: --tags={_CHECK} --submitter=NAME"
        )
    if not round_name and len(rounds) != 1:
        cause = f"its logs are those of {', '.join(rounds)}" if rounds else "its logs have the seeds of no known round"
        raise UsageError(
            f"the round of {tree} is not known", cause=cause, remedy=f"name it: --tags={_CHECK} --src_version=v6.1"
        )
    return TreeInputs(tree, names[0], round_terms(round_name or rounds[0]).name)

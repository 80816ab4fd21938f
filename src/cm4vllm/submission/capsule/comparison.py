"""Comparisons of capsules: of the results at several paths, and of a capsule's environment with the one here."""

from collections.abc import Sequence
from pathlib import Path

from cm4vllm.common.errors import UsageError
from cm4vllm.results.comparing.comparison import Comparison, compare
from cm4vllm.submission.capsule.capsules_at_path import capsules_at

#: Results side by side at most: a page and a terminal have so much room.
MOST = 6


def compare_paths(paths: Sequence[Path]) -> Comparison:
    """Compare the results below these folders, each a campaign's, a tree's, that of a system or model, or a capsule.

    Raises UsageError where there are fewer than two or more than MOST, or nothing that two of them have; and what
    capsules_at raises.
    """
    capsules = [(path, capsule) for path in paths for capsule in capsules_at(path)]
    if len(capsules) < 2:
        raise UsageError(
            "there is one result alone, and nothing to compare it with",
            cause=", ".join(map(str, paths)),
            remedy="give a second folder or capsule with --input=A,B",
        )
    if len(capsules) > MOST:
        raise UsageError(
            f"{len(capsules)} results side by side are too many to read",
            cause=", ".join(capsule.title for _, capsule in capsules[:MOST]) + ", ...",
            remedy=f"give the folders of at most {MOST} systems or models, as TREE/open/NAME/results/SYSTEM",
        )
    comparison = compare(capsules)
    if not comparison.blocks:
        raise UsageError(
            "there is nothing to compare",
            cause="; ".join(
                f"{side.path} has {', '.join(' '.join(key) for key in side.results)}" for side in comparison.sides
            ),
            remedy="give results of the same benchmark in the same scenario",
        )
    return comparison

"""Merges results into a tree: those of one submitter and one round, and of each system one description."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from cm4vllm.common.errors import SubmissionError
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import Division, TreeLayout
from cm4vllm.submission.tree_writer import GENERATE, read_object, refuse_other

__all__ = ["Added", "require_same_submission"]


class Added(Protocol):
    """Results that are to go into a tree."""

    @property
    def submitter(self) -> str: ...
    @property
    def round(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def description(self) -> Mapping[str, str]: ...
    @property
    def layout(self) -> TreeLayout: ...


def require_same_submission(results: Iterable[Added], tree: Path | None = None) -> None:
    """Raise SubmissionError where results are of another submitter or round than each other, or than the tree.

    The same holds for another description of the same system in another division.
    """
    given = list(results)
    submitters = {one.submitter: "the results" for one in given}
    rounds = {one.round: "the results" for one in given}
    if tree is not None and tree.is_dir():
        for there in read_tree(tree):
            submitters.setdefault(there.submitter, "the tree")
            if there.round:
                rounds.setdefault(there.round, "the tree")
        for one in given:
            _require_same_system(tree, one)
    for what, found in (("submitter", submitters), ("round", rounds)):
        if len(found) > 1:
            raise SubmissionError(
                f"a submission is of one {what}",
                cause=", ".join(f"{name} in {where}" for name, where in found.items()),
                remedy=f"make a tree for each {what}: --tags={GENERATE} --submission_dir=DIR",
            )


def _require_same_system(tree: Path, one: Added) -> None:
    for division in Division:
        path = tree / division / one.submitter / "systems" / f"{one.system}.json"
        if path.is_file():
            there = read_object(path)
            refuse_other(
                path.relative_to(tree).as_posix(), {**there, "division": ""}, {**one.description, "division": ""}
            )

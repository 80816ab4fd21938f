"""Merges results into a tree of one submitter and one round, with one description of each system."""

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
    submitters = {added.submitter: "the results" for added in given}
    rounds = {added.round: "the results" for added in given}
    if tree is not None and tree.is_dir():
        for there in read_tree(tree):
            submitters.setdefault(there.submitter, "the tree")
            if there.round:
                rounds.setdefault(there.round, "the tree")
        for added in given:
            _require_same_system(tree, added)
    for title, by_name in (("submitter", submitters), ("round", rounds)):
        if len(by_name) > 1:
            raise SubmissionError(
                f"a submission is of one {title}",
                cause=", ".join(f"{name} in {where}" for name, where in by_name.items()),
                remedy=f"make a tree for each {title}: --tags={GENERATE} --submission_dir=DIR",
            )


def _require_same_system(tree: Path, added: Added) -> None:
    for division in Division:
        path = tree / division / added.submitter / "systems" / f"{added.system}.json"
        if path.is_file():
            there = read_object(path)
            refuse_other(
                path.relative_to(tree).as_posix(), {**there, "division": ""}, {**added.description, "division": ""}
            )

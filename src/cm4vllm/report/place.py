"""The place of a result among published ones: those of the same benchmark in the same scenario, per accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cm4vllm.report.wording import rate
from cm4vllm.results.index import Index, IndexRow, row_of
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.opening import open_results

__all__ = ["Place", "place", "places"]


@dataclass(frozen=True)
class Place:
    """A result as a row of the index, and its place in words; where it has none, the words say why."""

    own: IndexRow
    words: str


def places(own: Path, index: Index) -> list[Place]:
    """Return the places of all results in a folder. Raises what open_results raises."""
    return [place(submission, result, index) for submission in open_results(own) for result in submission.results]


def place(submission: Submission, result: Result, index: Index) -> Place:
    """Return the place of one result; a rehearsal, and one that is not valid, has none."""
    own = row_of(submission, result)
    same = [
        row
        for row in index.rows
        if (row.benchmark, row.model, row.scenario, row.unit) == (own.benchmark, own.model, own.scenario, own.unit)
        and row.valid
        and row.per_accelerator is not None
    ]
    why = _none(own, same, rehearsal=any(run.notice for run in result.runs))
    title = f"{own.model} {own.scenario}"
    if why:
        return Place(own, f"{title}: no place among published results, because {why}.")
    mine = own.per_accelerator or 0.0
    rounds = ", ".join(sorted({row.round or "round unknown" for row in same}))
    words = [f"{rate(mine)} {own.unit} per accelerator is {_ordinal(mine, same)} with any accelerator ({rounds})"]
    if like := [row for row in same if row.accelerator == own.accelerator]:
        middle = median(row.per_accelerator or 0.0 for row in like)
        words.append(f"{_ordinal(mine, like)} with the {own.accelerator}, whose median is {rate(middle)}")
    return Place(own, f"{title}: {', and '.join(words)}. Systems differ in more than their accelerators.")


def _none(own: IndexRow, same: Sequence[IndexRow], *, rehearsal: bool) -> str:
    if rehearsal:
        return "these runs are no result"
    if not own.valid:
        return "the result is not valid"
    if own.per_accelerator is None:
        return "the system has no accelerator, or the result is no rate"
    return "" if same else f"there is none of {own.model} in {own.benchmark} {own.scenario}"


def _ordinal(mine: float, others: Sequence[IndexRow]) -> str:
    """Say the place of a rate among others, itself counted."""
    return f"place {1 + sum((row.per_accelerator or 0.0) > mine for row in others)} of {len(others) + 1}"

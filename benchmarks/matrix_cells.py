"""The cells of benchmarks/matrix.py that ran: kept in a file, so that a later run continues, and shown as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.rules import Scenario

__all__ = ["Cell", "Cells", "Ran", "page", "table"]

_HEAD = """\
# Every benchmark, round and scenario

Generated from `benchmarks/matrix_cells.json`: `python benchmarks/matrix.py --list --page=docs/matrix.md`.

Each cell is one rehearsal of the main job, from the command line to the submission tree. A cell that **ran** ended
without an error; for one that FAILED the reason is below the table. The model is the tiny stand-in: a cell shows that
all parts work together, and its time is no measurement of speed.
"""


class Cell(Record, frozen=True, kw_only=True):
    round: str
    benchmark: str
    scenario: Scenario

    @property
    def name(self) -> str:
        return f"{self.round}/{self.benchmark}/{self.scenario}"


class Ran(Record, frozen=True, kw_only=True):
    """The outcome of a cell: when, where and by which command, in s and tokens/s.

    `factor` is the mean length of the answers beside the length that the rules publish, empty where they publish none.
    `command` is what a user types; values that name folders and servers of the machine are left out. `error` is empty
    where the cell ran to its end, `commit` is that of cm4vllm.
    """

    cell: Cell
    took_s: float
    date: str
    machine: str
    command: str
    commit: str
    tokens_per_second: float = 0.0
    factor: str = ""
    error: str = ""


class Cells(Record, frozen=True, kw_only=True):
    """What ran, by the cell's name; the latest outcome of each."""

    ran: dict[str, Ran] = {}

    @classmethod
    def kept(cls, path: Path) -> Cells:
        """Return what a file keeps, nothing where there is none."""
        return read_record(path, cls) if path.is_file() else cls()

    def with_one(self, one: Ran, path: Path) -> Cells:
        """Return these cells and one more, and keep them in a file."""
        cells = Cells(ran={**self.ran, one.cell.name: one})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, cells)
        return cells


def page(cells: Sequence[Cell], ran: Mapping[str, Ran]) -> str:
    """Return docs/matrix.md: all cells, those that did not run too."""
    here = [ran[cell.name] for cell in cells if cell.name in ran]
    good = sum(not one.error for one in here)
    lines = [
        _HEAD,
        f"{len(cells)} cells: {good} ran, {len(here) - good} FAILED, {len(cells) - len(here)} not run.\n",
        table(cells, ran),
        "",
        *_where(here),
        "",
        *_factors(here),
        *(f"\n{one.cell.name} FAILED: {one.error}" for one in here if one.error),
    ]
    return "\n".join(lines).rstrip() + "\n"


def table(cells: Sequence[Cell], ran: Mapping[str, Ran]) -> str:
    """Return the Markdown table benchmark x round, with a word and the time for each scenario."""
    rounds = sorted({cell.round for cell in cells})
    lines = ["| benchmark | " + " | ".join(rounds) + " |", "|---|" + "---|" * len(rounds)]
    for benchmark in sorted({cell.benchmark for cell in cells}):
        row = (
            ", ".join(
                _word(cell, ran.get(cell.name)) for cell in cells if (cell.benchmark, cell.round) == (benchmark, one)
            )
            or "-"
            for one in rounds
        )
        lines.append(f"| {benchmark} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _word(cell: Cell, ran: Ran | None) -> str:
    word = "not run" if ran is None else "FAILED" if ran.error else f"ran, {ran.took_s:.0f} s"
    return f"{cell.scenario} ({word})"


def _where(ran: Sequence[Ran]) -> Iterator[str]:
    """Give the dates, the machines and the commands."""
    for machine, group in groupby(sorted(ran, key=lambda one: (one.machine, one.date)), lambda one: one.machine):
        some = list(group)
        commits = ", ".join(sorted({f"`{one.commit}`" for one in some}))
        yield f"Run from {some[0].date} to {some[-1].date} on {machine}, cm4vllm at {commits}, the last as"
        yield f"\n    {some[-1].command}"


def _factors(ran: Sequence[Ran]) -> Iterator[str]:
    found: dict[str, set[str]] = {}
    for one in ran:
        if not one.error:
            found.setdefault(one.cell.benchmark, set()).add(one.factor)
    if found:
        yield "Mean length of the answers as a share of the length that the rules publish for the benchmark's model:\n"
        yield "| benchmark | share |\n|---|---|"
    for benchmark, factors in sorted(found.items()):
        shares = sorted(factors - {""})
        text = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}" if shares else "no length is published"
        yield f"| {benchmark} | {text} |"

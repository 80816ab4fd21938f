"""Two or more results side by side: the figures with their uncertainty, what is real, and the settings that differ.

The first result is the one that the others are compared with. What is compared is what both have: the same benchmark in
the same scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.loadgen.sample_times import read_sample_times
from cm4vllm.report.compared_capsule import NO_INTERVAL, CapsuleSide, open_capsule
from cm4vllm.report.compared_settings import Difference, Group, Setting, differences, settings_of
from cm4vllm.report.pictures import Rows
from cm4vllm.results import uncertainty
from cm4vllm.results.checks.system_files import accelerator_count
from cm4vllm.results.model import Accuracy, Figure, Performance, Result, Source, Submission
from cm4vllm.results.opening import open_results
from cm4vllm.results.reading import SCORE_UNITS
from cm4vllm.results.uncertainty import Estimate, Shift

__all__ = ["Block", "Cell", "Comparison", "Row", "Side", "compare"]

#: Results side by side at most: a page and a terminal have so much room.
MOST = 6

#: A benchmark and a scenario.
Key = tuple[str, str]


@dataclass(frozen=True)
class Side:
    """One of the results: a system's results of a model, below what was given as `path`. `name` is its letter.

    `submission` is what they were read from, None where that is a capsule.
    """

    name: str
    path: Path
    submission: Submission | None
    results: Mapping[Key, Result]
    capsule: CapsuleSide | None = None

    @property
    def first(self) -> Result:
        return next(iter(self.results.values()))

    @property
    def title(self) -> str:
        return f"{self.first.model} on {self.first.system}"

    @property
    def notice(self) -> str:
        if self.capsule is not None:
            return REHEARSAL_NOTICE if self.capsule.capsule.rehearsal else ""
        runs = [run for result in self.results.values() for run in result.runs]
        return runs[0].notice if runs else ""

    @property
    def accelerators(self) -> int:
        """How many accelerators the system states; 0 for none, and for a capsule, which does not count them."""
        system = self.submission.system(self.first.system) if self.submission is not None else None
        return accelerator_count(system.description) if system is not None else 0

    def settings(self, result: Result, packages: Iterable[str] = ()) -> dict[Setting, str]:
        """Return the settings of a result; of a capsule's packages those that are named."""
        if self.capsule is not None:
            return self.capsule.settings(result.scenario, tuple(packages))
        return settings_of(self.submission, result) if self.submission is not None else {}


@dataclass(frozen=True)
class Cell:
    """A figure of one result, None where it has none; its interval; and the change from the first result."""

    figure: Figure | None
    estimate: Estimate | None = None
    shift: Shift | None = None


@dataclass(frozen=True)
class Row:
    """A figure of all results. `better` says which way is better: higher, lower, or nothing."""

    name: str
    unit: str
    better: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Block:
    """A benchmark in a scenario: its results, their figures, and for each whether it is valid, or why not.

    A row has a cell for each of `sides`, of which the first is the one that the others are compared with. `other_loads`
    are the rates at which LoadGen sent the queries, where they differ.
    """

    benchmark: str
    scenario: str
    sides: tuple[Side, ...]
    rows: tuple[Row, ...]
    valid: tuple[bool | None, ...]
    reasons: tuple[tuple[str, ...], ...]
    other_loads: str = ""


@dataclass(frozen=True)
class Comparison:
    """The results side by side; `alike` counts the settings that all share, `unstated` those that not all state."""

    sides: tuple[Side, ...]
    differences: tuple[Difference, ...]
    alike: int
    unstated: int
    blocks: tuple[Block, ...]

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What makes the results no results, or not comparable."""
        found = [f"{side.name}: {side.notice}" for side in self.sides if side.notice]
        for name, words in (
            ("model", "different models"),
            ("dataset's SHA-256", "different datasets"),
            ("round", "different rounds, whose rules may differ"),
            ("samples", "different numbers of samples"),
        ):
            if any(one.name == name for one in self.differences):
                found.append(f"These results are of {words}.")
        for block in self.blocks:
            if block.other_loads:
                found.append(
                    f"{block.scenario}: LoadGen asked for {block.other_loads} samples/s. The throughput "
                    "follows that, and the latencies are those of different loads."
                )
            found += [
                f"{side.name}: {block.scenario} is INVALID: {reason}"
                for side, reasons in zip(block.sides, block.reasons, strict=True)
                for reason in reasons[:3]
            ]
        return tuple(found)


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare the results below these folders, each a campaign's, a tree's, or that of one system or model there.

    A file is a capsule (rerun.yaml): its recorded figures with their recorded intervals are compared.

    Raises UsageError where there are fewer than two or more than MOST, or nothing that two of them have; and what
    open_results raises.
    """
    sides = _sides(paths)
    keys = list(dict.fromkeys(key for side in sides for key in side.results))
    shared = [key for key in keys if sum(key in side.results for side in sides) > 1]
    if not shared:
        raise UsageError(
            "there is nothing to compare",
            cause="; ".join(f"{side.path} has {', '.join(' '.join(key) for key in side.results)}" for side in sides),
            remedy="give results of the same benchmark in the same scenario",
        )
    found, alike, unstated = differences(_settings(sides, shared))
    blocks = tuple(_block(sides, key) for key in shared)
    return Comparison(sides, tuple(found), alike, unstated, blocks)


def _settings(sides: Sequence[Side], shared: Sequence[Key]) -> dict[str, list[dict[Setting, str]]]:
    """Return the settings of all results by scenario; those of each one's first result where no scenario is in all."""
    common = [key for key in shared if all(key in side.results for side in sides)]
    if not common:
        return {"": _side_by_side([(side, side.first) for side in sides])}
    return {" ".join(key): _side_by_side([(side, side.results[key]) for side in sides]) for key in common}


def _side_by_side(sides: Sequence[tuple[Side, Result]]) -> list[dict[Setting, str]]:
    """Return the settings of results; a capsule lists all packages, and is asked for those that a run records."""
    read = {id(result): side.settings(result) for side, result in sides if side.capsule is None}
    packages = dict.fromkeys(name for found in read.values() for group, name in found if group is Group.PACKAGES)
    return [read[id(result)] if side.capsule is None else side.settings(result, packages) for side, result in sides]


def _sides(paths: Sequence[Path]) -> tuple[Side, ...]:
    found: list[Side] = []
    for path in paths:
        if path.is_file():
            one = open_capsule(path)
            found.append(Side(chr(ord("A") + len(found)), path, None, one.results, one))
            continue
        for submission in open_results(path):
            parts: dict[tuple[str, str], dict[Key, Result]] = {}
            for result in submission.results:
                key = result.benchmark, result.scenario
                parts.setdefault((result.system, result.model), {})[key] = result
            found += [
                Side(chr(ord("A") + len(found) + place), path, submission, results)
                for place, results in enumerate(parts.values())
            ]
    if len(found) < 2:
        raise UsageError(
            "there is one result alone, and nothing to compare it with",
            cause=", ".join(map(str, paths)),
            remedy="give a second folder or capsule with --input=A,B",
        )
    if len(found) > MOST:
        raise UsageError(
            f"{len(found)} results side by side are too many to read",
            cause=", ".join(side.title for side in found[:MOST]) + ", ...",
            remedy=f"give the folders of at most {MOST} systems or models, as TREE/open/NAME/results/SYSTEM",
        )
    return tuple(found)


def _block(sides: Sequence[Side], key: Key) -> Block:
    having = tuple(side for side in sides if key in side.results)
    parts = [side.results[key].performance for side in having]
    recorded = [side.capsule.estimates.get(key[1], {}) if side.capsule else None for side in having]
    rows = [
        *_performance_rows(parts, recorded, [side.accelerators for side in having]),
        *_accuracy_rows([side.results[key].accuracy for side in having]),
    ]
    return Block(
        key[0],
        key[1],
        having,
        tuple(rows),
        tuple(part.valid if part else None for part in parts),
        tuple(part.reasons if part else () for part in parts),
        _other_loads(parts),
    )


def _other_loads(parts: Sequence[Performance | None]) -> str:
    rates = [f"{part.target_qps:.6g}" for part in parts if part is not None and part.terms and part.terms.paced]
    return " and ".join(rates) if len(set(rates)) > 1 else ""


def _performance_rows(
    parts: Sequence[Performance | None], recorded: Sequence[Mapping[str, Estimate] | None], accelerators: Sequence[int]
) -> Iterator[Row]:
    """Give the rows of the figures, rates also per accelerator where all that have the rate state `accelerators`.

    `recorded` are the intervals of a capsule, None for what is read from its log.
    """
    rows = [read_sample_times(part.folder) if part is not None else None for part in parts]
    metrics = [part.metric.name for part in parts if part is not None and part.metric is not None]
    wanted = (
        *metrics,
        "samples_per_second",
        "ttft_mean",
        "ttft_p50",
        "ttft_p99",
        "tpot_mean",
        "tpot_p50",
        "tpot_p99",
        "latency_p50",
        "latency_p90",
        "latency_p99",
    )
    for name in dict.fromkeys(wanted):
        figures = [part.figures.get(name) if part is not None else None for part in parts]
        one_query = any(part is not None and part.queries == 1 for part in parts)
        if sum(figure is not None for figure in figures) < 2 or (one_query and name.startswith("latency")):
            continue
        made = [
            _estimate(part, figure, row, seed)
            if known is None or figure is None
            else (known.get(figure.name), "" if figure.name in known else NO_INTERVAL)
            for seed, (part, figure, row, known) in enumerate(zip(parts, figures, rows, recorded, strict=True))
        ]
        words, estimates, whys = name.replace("_", " "), [one for one, _ in made], [why for _, why in made]
        yield _row(words, figures, estimates, whys)
        if all(count for figure, count in zip(figures, accelerators, strict=True) if figure is not None):
            yield from _per_accelerator(words, figures, estimates, whys, accelerators)


def _per_accelerator(
    words: str,
    figures: Sequence[Figure | None],
    estimates: Sequence[Estimate | None],
    whys: Sequence[str],
    accelerators: Sequence[int],
) -> Iterator[Row]:
    """Give the row of a rate divided by the accelerators of each system."""
    divided: list[Figure | None] = []
    for figure, count in zip(figures, accelerators, strict=True):
        if figure is None:
            divided.append(None)
        elif figure.unit.endswith("/s"):
            source = replace(figure.source, field=f"{figure.source.field}, divided by {count} accelerators")
            divided.append(replace(figure, value=figure.value / count, source=source))
        else:
            return
    shares = [one and one.divided(count or 1) for one, count in zip(estimates, accelerators, strict=True)]
    yield _row(f"{words} per accelerator", divided, shares, whys)


def _accuracy_rows(parts: Sequence[Accuracy | None]) -> Iterator[Row]:
    scored = [dict(_scores(part)) if part is not None else {} for part in parts]
    for label in dict.fromkeys(label for scores in scored for label in scores):
        figures = [scores.get(label) for scores in scored]
        if label != "gen_num" and sum(figure is not None for figure in figures) > 1:
            yield _row(
                label,
                figures,
                [None] * len(figures),
                ["one score of the whole dataset, without the scores of its samples"] * len(figures),
            )


def _scores(part: Accuracy) -> Iterable[tuple[str, Figure]]:
    if part.record is None:
        return part.figures.items()
    where = f"{part.log.rpartition('/')[0]}/accuracy.json"
    return (
        (one.label, Figure(one.label, one.value, SCORE_UNITS.get(one.label, ""), Source(where, f"scores: {one.label}")))
        for one in part.record.scores
    )


def _row(name: str, figures: Sequence[Figure | None], estimates: Sequence[Estimate | None], whys: Sequence[str]) -> Row:
    base = next(place for place, figure in enumerate(figures) if figure is not None)
    unit = next(figure.unit for figure in figures if figure is not None)
    before = figures[base]
    cells = []
    for place, (figure, estimate) in enumerate(zip(figures, estimates, strict=True)):
        moved = None
        if figure is not None and before is not None and place != base:
            moved = uncertainty.shift(before.value, figure.value, estimates[base], estimate, whys[base] or whys[place])
        cells.append(Cell(figure, estimate, moved))
    better = "lower" if unit == "ms" else "higher" if unit in ("", "tokens/s", "samples/s") else ""
    return Row(name, unit, better, tuple(cells))


def _estimate(
    part: Performance | None, figure: Figure | None, rows: Rows | None, seed: int
) -> tuple[Estimate | None, str]:
    """Return a figure's interval, and why it has none."""
    if part is None or figure is None:
        return None, ""
    if rows is not None and len(rows):
        return uncertainty.from_samples(figure, rows, seed=seed)
    kind, share = uncertainty.split_name(figure.name)
    known = {
        share: part.figures[f"{kind}_{words}"].value
        for share, words in (
            (0, "min"),
            (0.5, "p50"),
            (0.9, "p90"),
            (0.95, "p95"),
            (0.97, "p97"),
            (0.99, "p99"),
            (0.999, "p99.9"),
            (1, "max"),
        )
        if f"{kind}_{words}" in part.figures
    }
    found = uncertainty.from_percentiles(float(figure.value), known, part.samples, share) if share else None
    return found, "" if found else "one figure of one run, without its samples"

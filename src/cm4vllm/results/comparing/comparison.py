"""Two or more results side by side: the figures with their intervals, the real differences, the settings that differ.

The first result is the one that the others are compared with, in each benchmark and scenario that both have.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.results.capsule import RUN_RECORDS, Capsule
from cm4vllm.results.checks.of_systems.system_files import accelerator_count
from cm4vllm.results.comparing import uncertainty
from cm4vllm.results.comparing.compared_settings import ComparedSetting, Setting, compare_settings, settings_of
from cm4vllm.results.comparing.uncertainty import COMPARED, Shift, Verdict
from cm4vllm.results.figures import Figure, Interval
from cm4vllm.results.model import Accuracy, Performance, Result
from cm4vllm.results.recorded_power import ENERGY_LABELS, POWER_FIGURES

#: Bytes of the digest of each answer in Conditions.answers.
ANSWER_BYTES = 3

#: The units of figures with a better direction; a score has none.
_LOWER_IS_BETTER = ("ms", "mJ/query")
_HIGHER_IS_BETTER = ("", "tokens/s", "samples/s", "tokens/J", "samples/J", "queries/J")

#: A benchmark and a scenario.
Key = tuple[str, str]


@dataclass(frozen=True)
class Side:
    """One of the results that are compared, and where it was read. `name` is its letter."""

    name: str
    path: Path
    capsule: Capsule

    @cached_property
    def results(self) -> Mapping[Key, Result]:
        return {(result.benchmark, result.scenario): result for result in self.capsule.results}

    @property
    def accelerators(self) -> int:
        """The accelerators that the description of the system states; 0 for none."""
        return accelerator_count(self.capsule.machine)


@dataclass(frozen=True)
class Cell:
    """A figure of one result (None if it has no such figure) and the change from the first result."""

    figure: Figure | None
    shift: Shift | None = None

    @property
    def interval(self) -> Interval | None:
        return self.figure.interval if self.figure else None


@dataclass(frozen=True)
class Row:
    """A figure of all results. `better` names the direction that is better, higher or lower; empty where none is.

    `score` marks a score of the answers, which has no interval.
    """

    name: str
    unit: str
    better: str
    cells: tuple[Cell, ...]
    score: bool = False


@dataclass(frozen=True)
class Answers:
    """The answers of a result beside those of the first: how many the first has, it has, and are equal.

    The counts are None where the answers of either are not known; `same_log` then tells whether the digests of both
    logs are equal, None where either is not known.
    """

    first: int | None
    count: int | None
    equal: int | None
    same_log: bool | None = None


@dataclass(frozen=True)
class Block:
    """A benchmark in a scenario: its results, their figures, and for each whether it is valid, or why not.

    A row has a cell for each of `sides`, of which the first is the one that the others are compared with; `answers`
    and `doubts` have an entry for each, too. `other_loads` are the rates at which LoadGen sent the queries, where they
    differ.
    """

    benchmark: str
    scenario: str
    sides: tuple[Side, ...]
    rows: tuple[Row, ...]
    valid: tuple[bool | None, ...]
    reasons: tuple[tuple[str, ...], ...]
    doubts: tuple[tuple[str, ...], ...]
    answers: tuple[Answers | None, ...]
    other_loads: str = ""


@dataclass(frozen=True)
class Comparison:
    """Results side by side. `settings` are all that any of them states; `missing` names the runs of some sides alone.

    A run in `missing` has for each side whether it was measured there.
    """

    sides: tuple[Side, ...]
    settings: tuple[ComparedSetting, ...]
    blocks: tuple[Block, ...]
    missing: Mapping[str, tuple[bool, ...]]

    @cached_property
    def differences(self) -> tuple[ComparedSetting, ...]:
        """The settings that differ."""
        return tuple(row for row in self.settings if row.differs)

    @property
    def alike(self) -> int:
        """The number of settings that are equal in all runs of all results."""
        others = {(row.group, row.name) for row in self.settings if not row.equal}
        return len({(row.group, row.name) for row in self.settings} - others)

    @property
    def unstated(self) -> int:
        """The number of settings that do not differ, and that a result does not state."""
        differing = {(row.group, row.name) for row in self.differences}
        return len({(row.group, row.name) for row in self.settings if not row.stated} - differing)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why these are no results, or cannot be compared."""
        texts = [f"{side.name}: {side.capsule.notice}" for side in self.sides if side.capsule.notice]
        for name, words in (
            ("model", "different models"),
            ("dataset's SHA-256", "different datasets"),
            ("round", "different rounds, whose rules may differ"),
            ("samples", "different numbers of samples"),
        ):
            if any(row.name == name for row in self.differences):
                texts.append(f"These results are of {words}.")
        for block in self.blocks:
            if block.other_loads:
                texts.append(
                    f"{block.scenario}: LoadGen asked for {block.other_loads} samples/s. The throughput "
                    "follows that, and the latencies are those of different loads."
                )
            texts += [
                f"{side.name}: {block.scenario} is INVALID: {reason}"
                for side, reasons in zip(block.sides, block.reasons, strict=True)
                for reason in reasons[:3]
            ]
            texts += [
                f"{side.name}: {block.scenario} is DOUBTFUL: {doubt}"
                for side, doubts in zip(block.sides, block.doubts, strict=True)
                for doubt in doubts[:3]
            ]
        ours = [side for side in self.sides if side.capsule.made_from == RUN_RECORDS]
        if silent := [side.name for side in ours if side.capsule.server.states_no_options]:
            texts.append(
                f"The options of the servers of {', '.join(silent)} are not known. Started with "
                "VLLM_SERVER_DEV_MODE=1, vLLM states them to --api_server."
            )
        return tuple(texts)


def compare(capsules: Sequence[tuple[Path, Capsule]]) -> Comparison:
    """Compare results, each with the path that it was read from. There is no block where no two have a scenario."""
    sides = tuple(Side(chr(ord("A") + place), *capsule) for place, capsule in enumerate(capsules))
    keys = list(dict.fromkeys(key for side in sides for key in side.results))
    runs = dict.fromkeys((key, mode) for side in sides for key in side.results for mode in side.results[key].parts)
    measured = {
        f"{key[1]} {mode}": tuple(key in side.results and mode in side.results[key].parts for side in sides)
        for key, mode in runs
    }
    return Comparison(
        sides,
        tuple(compare_settings(_settings(sides, keys))),
        tuple(_block(sides, key) for key in keys if sum(key in side.results for side in sides) > 1),
        {name: having for name, having in measured.items() if not all(having)},
    )


def _settings(sides: Sequence[Side], keys: Sequence[Key]) -> dict[str, list[dict[Setting, str]]]:
    """Return the settings of all results by run; those of no run where no run is in all."""
    by_run = {}
    for key in (name for name in keys if all(name in side.results for side in sides)):
        results = [side.results[key] for side in sides]
        for mode in (name for name in results[0].parts if all(name in result.parts for result in results)):
            by_run[f"{key[1]} {mode}"] = [
                settings_of(side.capsule, result, result.parts[mode])
                for side, result in zip(sides, results, strict=True)
            ]
    return by_run or {"": [settings_of(side.capsule, next(iter(side.results.values()), None), None) for side in sides]}


def _block(sides: Sequence[Side], key: Key) -> Block:
    having = tuple(side for side in sides if key in side.results)
    parts = [side.results[key].performance for side in having]
    scored = [side.results[key].accuracy for side in having]
    return Block(
        key[0],
        key[1],
        having,
        (
            *(
                _with_doubtful_verdicts(row, parts)
                for row in _performance_rows(parts, [side.accelerators for side in having])
            ),
            *_accuracy_rows(scored),
        ),
        tuple(part.valid if part else None for part in parts),
        tuple(part.reasons if part else () for part in parts),
        tuple(part.client_doubts if part else () for part in parts),
        tuple(_answers(scored[0], part) if place else None for place, part in enumerate(scored)),
        _different_rates(parts),
    )


def _with_doubtful_verdicts(row: Row, parts: Sequence[Performance | None]) -> Row:
    """Return a row in which no difference is called real where the client of either run is doubted."""
    why = [f"DOUBTFUL: {part.client_doubts[0]}" if part and part.client_doubts else "" for part in parts]
    base = next(place for place, cell in enumerate(row.cells) if cell.figure is not None)
    cells = [
        replace(cell, shift=replace(cell.shift, verdict=Verdict.DOUBTFUL, why=why[place] or why[base]))
        if cell.shift and cell.shift.verdict in (Verdict.REAL, Verdict.LIKELY) and (why[place] or why[base])
        else cell
        for place, cell in enumerate(row.cells)
    ]
    return replace(row, cells=tuple(cells))


def _answers(first: Accuracy | None, other: Accuracy | None) -> Answers | None:
    """Compare the answers of two accuracy runs; None where either was not made."""
    if first is None or other is None:
        return None
    ours, theirs = (base64.b64decode(part.conditions.answers) for part in (first, other))
    if not ours or not theirs:
        logs = [part.conditions.logs.get(ACCURACY_LOG) for part in (first, other)]
        return Answers(None, None, None, logs[0] == logs[1] if all(logs) else None)
    starts = range(0, min(len(ours), len(theirs)), ANSWER_BYTES)
    return Answers(
        len(ours) // ANSWER_BYTES,
        len(theirs) // ANSWER_BYTES,
        sum(ours[at : at + ANSWER_BYTES] == theirs[at : at + ANSWER_BYTES] for at in starts),
    )


def _different_rates(parts: Sequence[Performance | None]) -> str:
    rates = [f"{part.target_qps:.6g}" for part in parts if part is not None and part.terms and part.terms.paced]
    return " and ".join(rates) if len(set(rates)) > 1 else ""


def _performance_rows(parts: Sequence[Performance | None], accelerators: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of the figures, rates also per accelerator where all that have the rate state `accelerators`."""
    metrics = [part.metric.name for part in parts if part is not None and part.metric is not None]
    one_query = any(part is not None and part.queries == 1 for part in parts)
    for name in dict.fromkeys((*metrics, *COMPARED, *POWER_FIGURES, *ENERGY_LABELS)):
        figures = [part.figures.get(name) if part is not None else None for part in parts]
        if sum(figure is not None for figure in figures) < 2 or (one_query and name.startswith("latency")):
            continue
        words = ENERGY_LABELS.get(name, name.replace("_", " "))
        yield _row(words, figures)
        counted = [count for figure, count in zip(figures, accelerators, strict=True) if figure is not None]
        if all(counted) and all(figure is None or figure.unit.endswith("/s") for figure in figures):
            shares = (
                figure and _per_accelerator(figure, count) for figure, count in zip(figures, accelerators, strict=True)
            )
            yield _row(f"{words} per accelerator", [*shares])


def _per_accelerator(figure: Figure, count: int) -> Figure:
    """Return a rate for each of the accelerators of its system."""
    interval = figure.interval
    return replace(
        figure,
        value=figure.value / count,
        source=replace(figure.source, field=f"{figure.source.field}, divided by {count} accelerators"),
        interval=interval and replace(interval, low=interval.low / count, high=interval.high / count),
    )


def _accuracy_rows(parts: Sequence[Accuracy | None]) -> Iterator[Row]:
    why = "one score of the whole dataset, without the scores of its samples"
    for label in dict.fromkeys(label for part in parts if part is not None for label in part.figures):
        figures = [part.figures.get(label) if part is not None else None for part in parts]
        if label != "gen_num" and sum(figure is not None for figure in figures) > 1:
            yield _row(label, [figure and replace(figure, why_no_interval=why) for figure in figures], score=True)


def _row(name: str, figures: Sequence[Figure | None], *, score: bool = False) -> Row:
    base = next(place for place, figure in enumerate(figures) if figure is not None)
    before = figures[base]
    cells = [
        Cell(figure, uncertainty.shift(before, figure) if figure and before and place != base else None)
        for place, figure in enumerate(figures)
    ]
    unit = before.unit if before else ""
    return Row(
        name,
        unit,
        "lower" if unit in _LOWER_IS_BETTER else "higher" if unit in _HIGHER_IS_BETTER else "",
        tuple(cells),
        score,
    )

"""The judgement on a comparison of two results: the fields that have to be equal, and those that may differ.

The equal answers are counted, and each score may differ by a stated part of it. A figure is judged by its change, as
the comparison has it (results.uncertainty): a real one is a difference. In a rehearsal, whose figures do not describe
the system, they are shown and not judged. Figures of a run that its own record calls doubtful, or whose interval is so
wide that most runs lie in it, do not confirm each other: they are called doubtful, with the reason.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from cm4vllm.common import input_types
from cm4vllm.common.errors import ResultsDiffer
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Bounds, Key, Settings
from cm4vllm.results.comparing.compared_settings import NOT_STATED, ComparedSetting
from cm4vllm.results.comparing.comparison import Answers, Block, Cell, Comparison, Row
from cm4vllm.results.comparing.uncertainty import LEVEL, Verdict

#: The part of a score by which the same model may miss it: that which the 99 % variants of benchmarks allow.
ACCURACY_TOLERANCE = 0.01
#: An interval whose end is more than this times its beginning holds almost any other run, too.
_WIDE = 2.0


class Tolerance(Settings, frozen=True, kw_only=True):
    """The part of a score by which the second may differ."""

    accuracy: Annotated[float, Key("CM_MLPERF_VERIFY_ACCURACY"), Bounds(zero=True, part_of="a score")] = (
        ACCURACY_TOLERANCE
    )


class VerifyInputs(Tolerance, frozen=True, kw_only=True):
    """Two capsules that are compared; `of_part` chooses the part of one that holds several results."""

    capsule: input_types.CapsuleFile
    other: Annotated[str, Key("CM_MLPERF_OTHER_CAPSULE")]
    of_part: input_types.CapsulePart = ""


class Judgement(StrEnum):
    """The judgement on a field: EQUAL and WITHIN confirm it, DIFFERS refutes it, SHOWN and UNKNOWN are not judged.

    DOUBTFUL is within the tolerance, and confirms nothing.
    """

    EQUAL = "equal"
    WITHIN = "within the tolerance"
    DOUBTFUL = "within the tolerance, DOUBTFUL"
    DIFFERS = "DIFFERS"
    SHOWN = "differs, not judged"
    UNKNOWN = "not known"


#: The judgement on a figure by the meaning of its change.
_OF_A_CHANGE = {
    Verdict.SAME: Judgement.EQUAL,
    Verdict.WITHIN: Judgement.WITHIN,
    Verdict.REAL: Judgement.DIFFERS,
    Verdict.LIKELY: Judgement.SHOWN,
    Verdict.UNKNOWN: Judgement.UNKNOWN,
    Verdict.DOUBTFUL: Judgement.DIFFERS,
}


class Judged(Record, frozen=True, kw_only=True):
    """One field of two results. `tolerance` says what was allowed, empty where the values have to be equal."""

    field: str
    first: Any
    second: Any
    judgement: Judgement
    tolerance: str = ""


def verify(comparison: Comparison, tolerance: float = ACCURACY_TOLERANCE) -> list[Judged]:
    """Judge the comparison of two results: all fields that either states."""
    rows = judge_settings(comparison.settings)
    for name, measured in comparison.missing.items():
        first, second = ("measured" if is_measured else "missing" for is_measured in measured)
        rows.append(Judged(field=name, first=first, second=second, judgement=Judgement.DIFFERS))
    rehearsal = any(side.capsule.rehearsal for side in comparison.sides)
    for block in comparison.blocks:
        rows += _block(block, tolerance, rehearsal=rehearsal)
    return rows


def judge_settings(settings: Sequence[ComparedSetting]) -> list[Judged]:
    """Judge the settings of two results."""
    judged = []
    for row in settings:
        apart = Judgement.DIFFERS if row.decisive else Judgement.SHOWN
        judged.append(
            Judged(
                field=row.title,
                first=row.values[0],
                second=row.values[1],
                judgement=Judgement.EQUAL if row.equal else apart if row.stated else Judgement.UNKNOWN,
            )
        )
    return judged


def refuse_differences(rows: Sequence[Judged]) -> None:
    """Raise ResultsDiffer where a field differs that has to be the same."""
    apart = [row for row in rows if row.judgement is Judgement.DIFFERS]
    if apart:
        shown = [
            f"{row.field}: {short_text(row.first)} and {short_text(row.second)}"
            + (f" ({row.tolerance})" if row.tolerance else "")
            for row in apart[:20]
        ]
        raise ResultsDiffer(
            f"the second result is not that of the first: {len(apart)} of {len(rows)} fields differ",
            cause="\n".join(shown),
            remedy="repeat it with what the first capsule states; the table above names every field",
        )


def _block(block: Block, tolerance: float, *, rehearsal: bool) -> Iterator[Judged]:
    name = block.scenario
    scores = [row for row in block.rows if row.score]
    if (answers := block.answers[1]) is not None:
        yield _answers(f"{name}: answers", answers, scored=bool(scores))
    yield from (_score(f"{name}: {row.name}", row, tolerance) for row in scores)
    if None not in block.valid:
        apart = Judgement.SHOWN if rehearsal else Judgement.DIFFERS
        yield Judged(
            field=f"{name}: valid",
            first=block.valid[0],
            second=block.valid[1],
            judgement=Judgement.EQUAL if len({*block.valid}) == 1 else apart,
        )
    doubts = [f"see {name}: doubts"] if any(block.doubts) else []
    if doubts:
        first, second = ("; ".join(doubts) or "none" for doubts in block.doubts)
        yield Judged(field=f"{name}: doubts", first=first, second=second, judgement=Judgement.SHOWN)
    yield from (_figure(f"{name}: {row.name}", row, doubts, rehearsal=rehearsal) for row in block.rows if not row.score)


def _answers(field: str, answers: Answers, *, scored: bool) -> Judged:
    """Judge the answers: where scores are known, those decide."""
    apart = Judgement.SHOWN if scored else Judgement.DIFFERS
    first, second = f"{answers.first} answers", f"{answers.equal} of them equal"
    if answers.first is None:
        judgement = {True: Judgement.EQUAL, False: apart, None: Judgement.UNKNOWN}[answers.same_log]
        first, second = "a log", {True: "an equal log", False: "another log", None: NOT_STATED}[answers.same_log]
    elif answers.first != answers.count:
        judgement, second = Judgement.DIFFERS, f"{answers.count} answers"
    else:
        judgement = Judgement.EQUAL if answers.equal == answers.first else apart
    return Judged(field=field, first=first, second=second, judgement=judgement)


def _score(field: str, row: Row, tolerance: float) -> Judged:
    first, second = (cell.figure.value if cell.figure else None for cell in row.cells)
    if first is None or second is None:
        judgement = Judgement.UNKNOWN
    else:
        near = abs(first - second) <= tolerance * abs(first)
        judgement = Judgement.EQUAL if first == second else Judgement.WITHIN if near else Judgement.DIFFERS
    return Judged(
        field=field, first=first, second=second, judgement=judgement, tolerance=f"{tolerance:.2%} of the first"
    )


def _figure(field: str, row: Row, doubts: Sequence[str], *, rehearsal: bool) -> Judged:
    first, second = (_words(cell) for cell in row.cells)
    change = row.cells[1].shift
    judgement = _OF_A_CHANGE[change.verdict] if change else Judgement.UNKNOWN
    tolerance = f"the interval of {LEVEL:.0%} of the change has to hold zero"
    if change and change.verdict in (Verdict.LIKELY, Verdict.UNKNOWN):
        tolerance = change.why or "by the percentiles of the logs alone"
    if rehearsal and judgement is not Judgement.EQUAL:
        judgement, tolerance = Judgement.SHOWN, "a rehearsal's figures do not describe the system"
    reasons = [*_wide(row.cells), *doubts]
    if reasons and judgement not in (Judgement.EQUAL, Judgement.UNKNOWN):
        judgement = Judgement.DOUBTFUL if judgement is Judgement.WITHIN else judgement
        tolerance += f"; doubtful: {', '.join(reasons)}"
    return Judged(field=field, first=first, second=second, judgement=judgement, tolerance=tolerance)


def _wide(cells: Sequence[Cell]) -> Iterator[str]:
    """Name the intervals that are so wide that overlapping means little."""
    return (
        f"the interval of the {which} run spans a factor of {interval.high / interval.low:.1f}"
        for which, interval in zip(("first", "second"), (cell.interval for cell in cells), strict=True)
        if interval and interval.low and interval.high > _WIDE * interval.low
    )


def _words(cell: Cell) -> str:
    if cell.figure is None:
        return ""
    between = f", {cell.interval.low:.6g} to {cell.interval.high:.6g}" if cell.interval else ""
    return f"{float(cell.figure.value):.6g} {cell.figure.unit}{between}"


def short_text(value: Any) -> str:
    """Write a value in at most 80 letters."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"{text[:80]}…" if len(text) > 80 else text or "(nothing)"

"""A comparison as lines for a terminal, as an object for programs, and as a page; and the judgement on it, as lines."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.common.files import typed_paths
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.number_texts import ms, number, percent, rate
from cm4vllm.common.progress import say, say_text
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import first_of
from cm4vllm.report.curve_page import compare_curves
from cm4vllm.report.final_table import align
from cm4vllm.report.page_templates import page_template
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.comparing import uncertainty
from cm4vllm.results.comparing.compared_settings import NOT_STATED, ComparedSetting, Group
from cm4vllm.results.comparing.comparison import Block, Cell, Comparison, Row, compare
from cm4vllm.results.comparing.uncertainty import Shift, Verdict
from cm4vllm.results.comparing.verification import Judged, Judgement, judge_settings, short_text, verify
from cm4vllm.results.endpoints.curves import curves_at
from cm4vllm.results.figures import Basis
from cm4vllm.submission.capsule.capsules_at_path import compare_paths

#: The groups of packages by name, each with the name of its files.
_INSTALLED = {Group.PACKAGES: Group.CONTENTS, Group.SERVER_PACKAGES: Group.SERVER_CONTENTS}
#: Names of packages in a line.
_NAMED = 6

#: Letters of a setting's value in the table of a terminal.
_WIDTH = 46
#: The meaning of an interval, below each table.
NOTES = (
    f"Each interval has a confidence of {uncertainty.LEVEL:.0%}: it holds what the same run, made longer, would give. "
    f"It is made of up to {uncertainty.PARTS} parts of the run, drawn with replacement (block bootstrap), about "
    "LoadGen's own figure.",
    "What differs between two runs of the same settings, as a server's start, heat or a neighbour on the machine, is "
    "in no interval: a real difference is one between these two runs. Repeat both to say more.",
    "An interval marked ~ is computed from LoadGen's percentiles alone, as if the samples were independent. Samples "
    "that wait in one queue are not, and the true interval is wider: a difference beyond it is likely, not real.",
)


class ComparisonInputs(Settings, frozen=True, kw_only=True):
    """The folders that are compared, separated by commas, and the page that is written."""

    compared: Annotated[str, Key("CM_MLPERF_COMPARED_RESULTS")]
    page: Annotated[str, Key("CM_MLPERF_COMPARISON_PAGE")] = "comparison.html"


def report_comparison(inputs: str, page: Path) -> dict[str, Any]:
    """Compare the results in these folders, separated by commas: print the tables, write the page, return the object.

    Folders of curves of MLPerf Endpoints are compared as curves, two of them; capsules of curves point by point, as
    other results are. Raises what compare_paths and compare_curves raise.
    """
    paths = typed_paths(inputs)
    if all(curves := [curves_at(path.absolute()) for path in paths]):
        return compare_curves([curve for part in curves for curve in part], page)
    comparison = compare_paths(paths)
    write_noted(page, as_page(comparison))
    for line in as_text(comparison):
        say_text(line)
    say_text(f"page: {page}")
    return {"comparison": as_object(comparison), "page": str(page)}


def value(row: Row, cell: Cell) -> str:
    """Return a cell's figure as text, with the digits that its unit has elsewhere."""
    return _number(row, cell.figure.value) if cell.figure else ""


def interval(row: Row, cell: Cell) -> str:
    """Return a cell's interval as text, with a ~ before one that comes of percentiles alone."""
    bounds = cell.interval
    if bounds is None:
        return ""
    return (
        f"{'~' if bounds.basis is Basis.PERCENTILES else ''}{_number(row, bounds.low)} to {_number(row, bounds.high)}"
    )


def _number(row: Row, value: float) -> str:
    return ms(value) if row.unit == "ms" else rate(value) if row.unit.endswith("/s") else number(round(value, 6))


def change(moved: Shift | None) -> str:
    """Return a relative change with its interval as text."""
    if moved is None or moved.change is None or moved.verdict is Verdict.SAME:
        return ""
    text = _signed_percent(moved.change)
    return (
        f"{text} ({_signed_percent(moved.low)} to {_signed_percent(moved.high)})"
        if None not in (moved.low, moved.high)
        else text
    )


def _signed_percent(part: float | None) -> str:
    return "" if part is None else f"{'+' if part >= 0 else '-'}{percent(abs(part))}"


def verdict(row: Row, moved: Shift | None) -> str:
    """Return the meaning of a change, with its direction."""
    if moved is None:
        return ""
    side = "different"
    if row.better and moved.change:
        side = "better" if (moved.change > 0) == (row.better == "higher") else "worse"
    return {
        Verdict.SAME: "the same figure",
        Verdict.REAL: f"{side}: real",
        Verdict.LIKELY: f"{side}: likely",
        Verdict.WITHIN: "no difference shown",
        Verdict.UNKNOWN: "not known",
        Verdict.DOUBTFUL: f"{side}: doubtful",
    }[moved.verdict]


def as_text(comparison: Comparison) -> Iterator[str]:
    """Yield the lines of the comparison: who is who, the figures, the settings that differ."""
    yield from (f"{side.name}: {side.capsule.title} ({side.path})" for side in comparison.sides)
    yield from (f"WARNING {text}" for text in comparison.warnings)
    for block in comparison.blocks:
        yield ""
        yield f"{block.benchmark} {block.scenario}: " + ", ".join(
            f"{side.name} {'not measured' if valid is None else 'valid' if valid else 'INVALID'}"
            for side, valid in zip(block.sides, block.valid, strict=True)
        )
        yield from align([_head([side.name for side in block.sides]), *(_line(row) for row in block.rows)])
        yield from answer_lines(block)
        for meaning, words in ((Verdict.UNKNOWN, "not known"), (Verdict.DOUBTFUL, "doubtful")):
            shifts = (cell.shift for row in block.rows for cell in row.cells if cell.shift)
            whys = dict.fromkeys(shift.why for shift in shifts if shift.verdict is meaning)
            yield from (f"{words}: {why}" for why in whys if why)
    yield ""
    yield from NOTES
    yield from _settings(comparison)


def _settings(comparison: Comparison) -> Iterator[str]:
    """Yield the lines on settings that differ, with the packages summed up."""
    yield ""
    yield f"Settings that differ ({comparison.alike} are the same, {comparison.unstated} not stated by all):"
    packages = {group for groups in _INSTALLED.items() for group in groups}
    rows = [difference for difference in comparison.differences if difference.group not in packages]
    if rows:
        named = (
            (row.title, *(text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ..." for text in row.values))
            for row in rows
        )
        yield from align([("setting", *(side.name for side in comparison.sides)), *named])
    yield from _package_lines(comparison.settings)


def _package_lines(settings: Sequence[ComparedSetting]) -> Iterator[str]:
    """Yield a line for each environment whose packages differ: other versions, some in one alone, other files."""
    for versions, contents in _INSTALLED.items():
        rows = {row.name: row for row in settings if row.group is versions and row.differs}
        files = {row.name for row in settings if row.group is contents and row.differs and all(row.values)}
        words = {name: f"{name} {' | '.join(text or '-' for text in row.values)}" for name, row in rows.items()}
        listed = {
            "of another version": [words[name] for name, row in rows.items() if all(row.values)],
            "not installed in all": [words[name] for name, row in rows.items() if not all(row.values)],
            "of one version with other files": sorted(files - {*rows}),
        }
        lines = [f"{len(names)} {title}: {first_of(names, _NAMED)}" for title, names in listed.items() if names]
        if lines:
            yield f"{versions} differ, not judged: {'; '.join(lines)}"


def answer_lines(block: Block) -> Iterator[str]:
    """Yield a line for each result whose answers were compared with the answers of the first result."""
    for side, answers in zip(block.sides, block.answers, strict=True):
        if answers is not None and (answers.first is not None or answers.same_log is not None):
            log = "the log of answers is equal" if answers.same_log else "the log of answers is another one"
            words = log if answers.first is None else f"{answers.equal} of {answers.first} answers are equal"
            yield f"{side.name} against {block.sides[0].name}: {words}"


def _head(letters: Sequence[str]) -> tuple[str, ...]:
    """Return the head of the table of figures: a column for each result, its interval, and its change."""
    return (
        "figure",
        *(
            part
            for place, letter in enumerate(letters)
            for part in (
                (letter, "interval") if place == 0 else (letter, "interval", f"{letter} against {letters[0]}", "")
            )
        ),
    )


def _line(row: Row) -> tuple[str, ...]:
    """Return the cells of a figure: values, intervals, changes against the first result, verdicts."""
    cells = [f"{row.name}{f', {row.unit}' if row.unit and not row.unit.endswith('/s') else ''}"]
    for place, cell in enumerate(row.cells):
        cells += [value(row, cell), interval(row, cell)]
        if place:
            cells += [change(cell.shift), verdict(row, cell.shift)]
    return tuple(cells)


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain objects; docs/report.md describes the fields."""
    return {
        "sides": [
            {
                "name": side.name,
                "input": str(side.path),
                "model": side.capsule.model.get("name", ""),
                "system": side.capsule.system,
                "notice": side.capsule.notice,
            }
            for side in comparison.sides
        ],
        "warnings": list(comparison.warnings),
        "settings": [
            {
                "group": str(difference.group),
                "name": difference.name,
                "values": list(difference.values),
                "runs": list(difference.runs),
            }
            for difference in comparison.differences
        ],
        "settings_alike": comparison.alike,
        "settings_unstated": comparison.unstated,
        "confidence": uncertainty.LEVEL,
        "results": [
            {
                "benchmark": block.benchmark,
                "scenario": block.scenario,
                "sides": [side.name for side in block.sides],
                "valid": list(block.valid),
                "reasons": [list(reasons) for reasons in block.reasons],
                "figures": [_figure(row) for row in block.rows],
            }
            for block in comparison.blocks
        ],
    }


def _figure(row: Row) -> dict[str, Any]:
    """Return a figure of all results for `--out=json`."""
    return {
        "name": row.name,
        "unit": row.unit,
        "better": row.better,
        "values": [
            None
            if cell.figure is None
            else {
                "value": float(cell.figure.value),
                "file": cell.figure.source.file,
                "field": cell.figure.source.field,
                "interval": [cell.interval.low, cell.interval.high] if cell.interval else None,
                "basis": str(cell.interval.basis) if cell.interval else None,
                "change": cell.shift.change if cell.shift else None,
                "change_interval": [cell.shift.low, cell.shift.high]
                if cell.shift and cell.shift.low is not None
                else None,
                "verdict": str(cell.shift.verdict) if cell.shift else None,
                "why_unknown": cell.shift.why if cell.shift else "",
            }
            for cell in row.cells
        ],
    }


def as_page(comparison: Comparison) -> str:
    """Return the comparison as a page without scripts that loads nothing."""
    return page_template("comparison.html.j2").render(
        c=comparison,
        notes=NOTES,
        value=value,
        interval=interval,
        change=change,
        verdict=verdict,
        answers=answer_lines,
        kinds={Verdict.REAL: "is-real", Verdict.LIKELY: "is-open", Verdict.DOUBTFUL: "is-open"},
        level=uncertainty.LEVEL,
        whys=lambda block: list(
            dict.fromkeys(cell.shift.why for row in block.rows for cell in row.cells if cell.shift and cell.shift.why)
        ),
    )


def report_verification(capsules: Sequence[tuple[Path, Capsule]], accuracy_tolerance: float) -> list[Judged]:
    """Compare two results, each with the path that it was read from; print and return the judgement on each field."""
    comparison = compare(capsules)
    rows = verify(comparison, accuracy_tolerance)
    _print_judgement(rows, comparison.settings)
    return rows


def report_environment(settings: Sequence[ComparedSetting]) -> None:
    """Print the settings of an environment that differ from those of a capsule."""
    _print_judgement(judge_settings(settings), settings)


def _print_judgement(rows: Sequence[Judged], settings: Sequence[ComparedSetting]) -> None:
    """Print each field that is not equal, one line for all packages of an environment, and how many are equal."""
    installed = tuple(f"{group}: " for groups in _INSTALLED.items() for group in groups)
    for row in rows:
        if row.judgement is Judgement.EQUAL or row.first == row.second == NOT_STATED or row.field.startswith(installed):
            continue
        tolerance = f" ({row.tolerance})" if row.tolerance else ""
        same = row.judgement is Judgement.SHOWN and row.first == row.second
        said = f"in both: {short_text(row.first)}" if same else f"{short_text(row.first)} | {short_text(row.second)}"
        say(f"{row.field}: {'not judged' if same else row.judgement}: {said}{tolerance}")
    for line in _package_lines(settings):
        say(line)
    count = Counter(row.judgement for row in rows)
    say(
        f"{count[Judgement.EQUAL]} of {len(rows)} fields are equal, {count[Judgement.DIFFERS]} differ and should not, "
        f"{count[Judgement.UNKNOWN]} are known of one result only"
    )
    if doubtful := [row.field for row in rows if row.judgement is Judgement.DOUBTFUL]:
        say(f"WARNING: the performance is not confirmed: {len(doubtful)} figures agree, but are doubtful (see above)")

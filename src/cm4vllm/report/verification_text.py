"""The judgement on two results, as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cm4vllm.common.progress import say
from cm4vllm.report.comparison_texts import INSTALLED, package_lines
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.compared_settings import NOT_STATED, ComparedSetting
from cm4vllm.results.comparison import compare
from cm4vllm.results.verification import Judged, Judgement, judge_settings, short, verify

__all__ = ["report_environment", "report_verification"]


def report_verification(capsules: Sequence[tuple[Path, Capsule]], accuracy_tolerance: float) -> list[Judged]:
    """Compare two results, each with the path that it was read from; print and return the judgement on each field."""
    comparison = compare(capsules)
    rows = verify(comparison, accuracy_tolerance)
    _print(rows, comparison.settings)
    return rows


def report_environment(settings: Sequence[ComparedSetting]) -> None:
    """Print the settings of an environment that differ from those of a capsule."""
    _print(judge_settings(settings), settings)


def _print(rows: Sequence[Judged], settings: Sequence[ComparedSetting]) -> None:
    """Print each field that is not equal, one line for all packages of an environment, and how many are equal."""
    installed = tuple(f"{group}: " for groups in INSTALLED.items() for group in groups)
    for row in rows:
        if row.judgement is Judgement.EQUAL or row.first == row.second == NOT_STATED or row.field.startswith(installed):
            continue
        tolerance = f" ({row.tolerance})" if row.tolerance else ""
        same = row.judgement is Judgement.SHOWN and row.first == row.second
        said = f"in both: {short(row.first)}" if same else f"{short(row.first)} | {short(row.second)}"
        say(f"{row.field}: {'not judged' if same else row.judgement}: {said}{tolerance}")
    for line in package_lines(settings):
        say(line)
    count = Counter(row.judgement for row in rows)
    say(
        f"{count[Judgement.EQUAL]} of {len(rows)} fields are equal, {count[Judgement.DIFFERS]} differ and should not, "
        f"{count[Judgement.UNKNOWN]} are known of one result only"
    )
    if doubtful := [row.field for row in rows if row.judgement is Judgement.DOUBTFUL]:
        say(f"WARNING: the performance is not confirmed: {len(doubtful)} figures agree, but are doubtful (see above)")

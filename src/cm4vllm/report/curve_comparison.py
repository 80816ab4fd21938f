"""Two curves of MLPerf Endpoints side by side: the points at a concurrency of both, as text, as data and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.common.progress import say_text
from cm4vllm.report.curve_page import CHANGES_HEAD, changes, curve_table, curve_title, write_curve_page
from cm4vllm.report.final_table import aligned
from cm4vllm.results.curves import Curve
from cm4vllm.rules import endpoints_benchmarks

__all__ = ["compare_curves"]


def compare_curves(curves: Sequence[Curve], page: Path) -> dict[str, Any]:
    """Print two curves and their changes, write the page, and return both as data.

    Raises UsageError for another number of curves.
    """
    if len(curves) != 2:
        raise UsageError(
            f"{len(curves)} curve{'s' * (len(curves) != 1)} of MLPerf Endpoints cannot be compared",
            cause="; ".join(str(curve.folder) for curve in curves),
            remedy="give two folders with --input=A,B: results, run folders or a bundle of one curve each",
        )
    first, second = curves
    known = {benchmark.name for benchmark in endpoints_benchmarks()}
    rehearsal = any(curve.model not in known for curve in curves)
    write_curve_page(curves, page, notices=[REHEARSAL_NOTICE] if rehearsal else [])
    say_text(curve_table(curves).rstrip())
    rows = changes(first, second)
    for line in aligned([CHANGES_HEAD, *rows]) if rows else ["the curves have no concurrency in common"]:
        say_text(line)
    say_text(f"page: {page}")
    points = [dict(zip(CHANGES_HEAD, row, strict=True)) for row in rows]
    sides = [
        {"name": name, "title": curve_title(curve), "path": str(curve.folder)}
        for name, curve in zip("AB", curves, strict=True)
    ]
    return {"comparison": {"sides": sides, "points": points}, "page": str(page)}

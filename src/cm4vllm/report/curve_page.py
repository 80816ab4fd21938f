"""The page of curves of MLPerf Endpoints: throughput over the speed that a user sees, points, windows and accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cm4vllm.common.files import write_text
from cm4vllm.report.canvas import Canvas, Picture, Table
from cm4vllm.report.formatting import ms, number, rate
from cm4vllm.report.page_templates import page_template
from cm4vllm.results.curves import Curve, Point
from cm4vllm.rules import regions

__all__ = ["curve_table", "write_curve_page"]

#: Lines of one picture that have a colour of their own.
_LINES = 2
_HEAD = (
    "concurrency",
    "region",
    "tokens/s",
    "tokens/s per user",
    "TTFT p90, ms",
    "TPOT p90, ms",
    "samples",
    "steady state",
    "accuracy",
)


def write_curve_page(curves: Sequence[Curve], path: Path, *, notices: Sequence[str] = ()) -> Path:
    """Write the page of these curves and return its path; `notices` are the marks that stand above all."""
    page = page_template("curve.html.j2").render(
        notices=list(notices),
        head=_HEAD,
        curves=[
            {"name": _title(curve), "rows": list(_rows(curve)), "scores": list(_scores(curve))} for curve in curves
        ],
        pictures=[_picture(curves)] if any(_line(curve) for curve in curves) else [],
    )
    write_text(path, page)
    return path


def curve_table(curves: Sequence[Curve]) -> str:
    """Return the points of the curves as a table of plain text."""
    lines: list[str] = []
    for curve in curves:
        rows = [_HEAD, *_rows(curve)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines += [_title(curve), *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), ""]
    return "\n".join(lines)


def tps_per_user(point: Point) -> float | None:
    """Return output tokens/s that a user sees: 1000 over the 90th percentile of TPOT in ms (rules §4.1)."""
    tpot = point.figures.value("tpot_p90")
    return 1000 / tpot if tpot else None


def _title(curve: Curve) -> str:
    systems = {str(point.system.get("system_name", "")) for point in curve.points} - {""}
    return ", ".join(filter(None, [curve.model or "model not stated", *sorted(systems)]))


def _rows(curve: Curve) -> Iterator[tuple[str, ...]]:
    bounds = [point.concurrency for point in curve.fixed if point.concurrency is not None]
    c_max = curve.c_max or max(bounds, default=0)
    try:
        found = regions(c_min=min(bounds), c_max=c_max)
    except Exception:  # a curve that the rules do not allow has no regions; the checks say so
        found = None
    for point in curve.points:
        concurrency = point.concurrency or 0
        of = "Offline" if point.offline == "dedicated" else ""
        if found is not None and not of:
            of = ", ".join(region.name for region in found.of(concurrency)) + (
                ", Offline" if point.offline == "elected" else ""
            )
        speed, ttft, tpot = tps_per_user(point), point.figures.value("ttft_p90"), point.figures.value("tpot_p90")
        yield (
            f"{concurrency:,}",
            of or "not stated",
            _rate(point.figures.value("system_tps")),
            _rate(speed),
            ms(ttft) if ttft is not None else "not measured",
            ms(tpot) if tpot is not None else "not measured",
            number(samples) if (samples := point.figures.value("samples")) is not None else "not measured",
            str(point.steady_state.get("status") or "not stated"),
            f"{len(point.scores)} scores" if point.scores else "",
        )


def _scores(curve: Curve) -> Iterator[tuple[str, str, str]]:
    for point in curve.points:
        for score in point.scores:
            yield f"{point.concurrency:,}", score.metric, f"{score.value:g}"


def _rate(value: float | None) -> str:
    return "not measured" if value is None else rate(value)


def _line(curve: Curve) -> list[tuple[float, float]]:
    """Return the curve: tokens/s per user and tokens/s of each point at fixed concurrency."""
    found = [(tps_per_user(point), point.figures.value("system_tps")) for point in curve.fixed]
    return sorted((x, y) for x, y in found if x is not None and y is not None)


def _picture(curves: Sequence[Curve]) -> Picture:
    lines = [line for curve in curves if (line := _line(curve))]
    canvas = Canvas.over([x for line in lines for x, _ in line], [y for line in lines for _, y in line])
    canvas.axes("tokens/s per user", "tokens/s")
    for place, line in enumerate(lines[:_LINES], 1):
        canvas.line(line, f"line-{place}")
        canvas.dots(line, f"bar-{place}")
    named = [_title(curve) for curve in curves if _line(curve)]
    return Picture(
        title="Throughput over the speed that a user sees",
        words="Each dot is a point at fixed concurrency; tokens/s per user are 1000 over TPOT p90 in ms.",
        shapes=tuple(canvas.shapes),
        tables=tuple(
            Table(("tokens/s per user", "tokens/s"), tuple((rate(x), rate(y)) for x, y in line)) for line in lines
        ),
        source="result_summary.json of each point",
        legend=tuple((f"line-{place}", name) for place, name in enumerate(named[:_LINES], 1)),
    )

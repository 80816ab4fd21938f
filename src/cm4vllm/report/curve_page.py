"""The page of curves of MLPerf Endpoints: throughput over the speed that a user sees, points, windows and accuracy.

Two curves are compared: by the points at a concurrency of both, as text, as data and on the page.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.number_texts import ms, number, percent, rate, seconds
from cm4vllm.common.progress import say_text
from cm4vllm.common.terminal_text import columns
from cm4vllm.report.curve_bounds import bounds
from cm4vllm.report.curve_pictures import (
    EFFICIENCY,
    PER_KW,
    TPS,
    concurrency_of,
    curve_names,
    curve_pictures,
    curve_title,
    point_pictures,
)
from cm4vllm.report.final_table import align
from cm4vllm.report.page_templates import page_template
from cm4vllm.report.pictures.canvas import Table
from cm4vllm.results.endpoints.curves import PER_USER, Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import count, part
from cm4vllm.results.endpoints.endpoints_harness import number as number_of
from cm4vllm.results.figure_texts import judgement, target
from cm4vllm.rules import AccuracyTarget, Regions, if_known

_HEAD = (
    "concurrency",
    "region",
    "tokens/s",
    "tokens/s per user",
    "TTFT p90, ms",
    "TPOT p90, ms",
    "samples",
    "steady state",
    "limit",
    "accuracy",
)
#: The status of a window whose figures are the official ones.
_OFFICIAL = "windowable"
_WINDOW_HEAD = (
    "concurrency",
    "status",
    "shape of the run",
    "TPOT over its blocks",
    "blocks of the window",
    "samples",
    "length",
)
#: The figures over a window, and the heads of their columns.
_OF_THE_WINDOW = {"system_tps": "tokens/s", "ttft_p90": "TTFT p90, ms", "tpot_p90": "TPOT p90, ms"}
#: The columns of the changes from one curve to another.
_CHANGES_HEAD = (
    "concurrency",
    "tokens/s, A",
    "tokens/s, B",
    "change of tokens/s",
    "tokens/s per user, A",
    "tokens/s per user, B",
    "change of tokens/s per user",
)

Row = tuple[str, ...]


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
    rehearsal = any(curve.benchmark is None for curve in curves)
    write_curve_page(curves, page, notices=[REHEARSAL_NOTICE] if rehearsal else [])
    say_text(curve_table(curves).rstrip())
    rows = changes(first, second)
    for line in align([_CHANGES_HEAD, *rows]) if rows else ["the curves have no concurrency in common"]:
        say_text(line)
    say_text(f"page: {page}")
    points = [dict(zip(_CHANGES_HEAD, row, strict=True)) for row in rows]
    sides = [
        {"name": name, "title": curve_title(curve), "path": str(curve.folder)}
        for name, curve in zip("AB", curves, strict=True)
    ]
    return {"comparison": {"sides": sides, "points": points}, "page": str(page)}


def write_curve_page(
    curves: Sequence[Curve], path: Path, *, notices: Sequence[str] = (), facts: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write the page of these curves and return its path; `notices` are the marks that stand above all.

    `facts` are names and words on how the curves were measured and judged. With two curves, the second is compared with
    the first.
    """
    page = page_template("curve.html.j2").render(
        notices=list(notices),
        facts=list(facts),
        pictures=list(curve_pictures(curves)),
        changes_head=_CHANGES_HEAD,
        changes=changes(*curves) if len(curves) == 2 else None,
        curves=[
            {
                "name": name,
                "regions": "; ".join(map(str, areas.required)) if (areas := _regions(curve)) else "",
                "points": _points(curve),
                "bounds": [
                    (f"{concurrency_of(point)}", known[point.folder]) for point in curve.points if point.folder in known
                ],
                "windows": _windows(curve),
                "window_words": _window_words(curve),
                "distributions": [picture for point in curve.points for picture in point_pictures(point)],
                "scores": [row for point in curve.points for row in _scores(curve, point)],
            }
            for curve, name in zip(curves, curve_names(curves), strict=True)
            for known in [bounds(curve)]
        ],
    )
    write_noted(path, page)
    return path


def curve_table(curves: Sequence[Curve]) -> str:
    """Return the points of the curves as a table of plain text."""
    lines: list[str] = []
    for curve, name in zip(curves, curve_names(curves), strict=True):
        table = _points(curve)
        lines += [name, *columns([table.head, *table.rows]), ""]
    return "\n".join(lines)


def changes(first: Curve, second: Curve) -> list[Row]:
    """Return the points at a concurrency of both curves: tokens/s and tokens/s per user of each, and their changes."""
    others = {point.concurrency: point for point in second.concurrency_points}
    rows = []
    for point in first.concurrency_points:
        if (other := others.get(point.concurrency)) is None:
            continue
        cells = [concurrency_of(point)]
        for name in (TPS, PER_USER):
            before, after = point.figures.value(name), other.figures.value(name)
            change = f"{after / before - 1:+.1%}" if before and after is not None else ""
            cells += [_cell(point, name, rate), _cell(other, name, rate), change]
        rows.append(tuple(cells))
    return rows


def _regions(curve: Curve) -> Regions | None:
    """Return the regions of a curve; None for one that the rules do not allow: the checks name the reason."""
    values = [point.concurrency for point in curve.concurrency_points if point.concurrency is not None]
    return if_known(curve.rules.regions, c_min=min(values), c_max=curve.c_max or max(values)) if values else None


def _points(curve: Curve) -> Table:
    """Return the points of a curve, with a column of the power only where it is stated."""
    regions, limits = _regions(curve), bounds(curve)
    powered = any(PER_KW in point.figures for point in curve.points)
    rows = tuple(
        (
            concurrency_of(point),
            _region(regions, point),
            _cell(point, TPS, rate),
            _cell(point, PER_USER, rate),
            _cell(point, "ttft_p90", ms),
            _cell(point, "tpot_p90", ms),
            _cell(point, "samples", number),
            str(point.steady_state.get("status") or "not stated").replace("_", " "),
            limits[point.folder].words if point.folder in limits else "",
            _accuracy(curve, point),
            *([_cell(point, PER_KW, rate)] if powered else []),
        )
        for point in curve.points
    )
    return Table((*_HEAD, EFFICIENCY) if powered else _HEAD, rows)


def _region(regions: Regions | None, point: Point) -> str:
    if point.offline == "dedicated":
        return "Offline"
    names = [region.name for region in regions.of(point.concurrency or 0)] if regions else []
    return ", ".join([*names, *(["Offline"] if point.offline == "elected" else [])]) or "not stated"


def _targets(curve: Curve) -> dict[str, AccuracyTarget]:
    """Return the accuracy targets of the benchmark by their labels; none for a model that is no benchmark."""
    return {target.label.lower(): target for target in curve.benchmark.targets} if curve.benchmark else {}


def _accuracy(curve: Curve, point: Point) -> str:
    """Return the verdict on the accuracy run of a point; empty if the point has no such run."""
    if not point.scores:
        return ""
    targets = _targets(curve)
    judged = [wanted.met(score.value) for score in point.scores if (wanted := targets.get(score.metric.lower()))]
    return judgement(all(judged)) if judged else f"{len(point.scores)} scores, no targets"


def _scores(curve: Curve, point: Point) -> Iterator[Row]:
    """Yield a row for each score of a point, with its target."""
    targets = _targets(curve)
    for score in point.scores:
        wanted = targets.get(score.metric.lower())
        yield (
            concurrency_of(point),
            score.metric,
            f"{score.value:g}",
            number(score.samples),
            target(wanted.lower, wanted.upper) if wanted else "none",
            judgement(wanted.met(score.value)) if wanted else "",
        )


def _windows(curve: Curve) -> Table:
    """Return the windows of a curve's points, with columns of their figures only where these were computed."""
    if any(point.window_figures for point in curve.points):
        return Table(
            (*_WINDOW_HEAD, *_OF_THE_WINDOW.values()),
            tuple((*_window(point), *_window_figures(point)) for point in curve.points),
        )
    return Table(_WINDOW_HEAD, tuple(map(_window, curve.points)))


def _window(point: Point) -> Row:
    """Return the declared window of a point: status, verdict, states of TPOT, passes, samples and seconds."""
    declared = point.steady_state
    window, states = part(declared, "window"), part(declared, "state")
    begin, end = count(window, "super_pass_start"), count(window, "super_pass_end")
    samples = count(window, "n_samples")
    tpot = [f"{name.removeprefix('tpot_')} {state}".lower() for name, state in states.items()]
    if not window and (variation := number_of(part(point.record, "steady_state"), "least_variation")) is not None:
        tpot.append(f"varies by {percent(variation)} at least")
    return (
        concurrency_of(point),
        str(declared.get("status") or "not stated").replace("_", " "),
        str(declared.get("verdict") or "").replace("_", " ").lower(),
        ", ".join(tpot),
        f"{begin} to {end}" if begin is not None and end is not None else "none",
        number(samples) if samples is not None else "",
        _length(point),
    )


def _length(point: Point) -> str:
    """Return the seconds of the window of a point, and where they are too few those that it takes at least."""
    length = number_of(part(point.steady_state, "window"), "duration_s")
    if length is None or point.steady_state.get("status") == _OFFICIAL:
        return "" if length is None else seconds(length)
    least = part(part(point.record, "steady_state"), "least")
    needed = max((value for name in least if (value := number_of(least, name)) is not None), default=None)
    return seconds(length) if needed is None else f"{seconds(length)} of {seconds(needed)} at least"


def _window_figures(point: Point) -> Iterator[str]:
    """Yield the figures over the window of a point; empty where they were not computed."""
    for name in _OF_THE_WINDOW:
        value = point.window_figures.value(name)
        yield "" if value is None else rate(value) if name == "system_tps" else ms(value)


def _window_words(curve: Curve) -> str:
    """Return what a window takes, and why points have none, where some have none."""
    rules, statuses = curve.rules.window, {str(point.steady_state.get("status")) for point in curve.points}
    words = (
        f"A window takes at least {rules.passes} successive passes over which the 50th and the 90th percentile of TPOT "
        f"vary by at most {percent(rules.variation)} (standard deviation over mean of the passes) and have no trend by "
        f"which they change by {percent(rules.drift)} or more. It takes at least {seconds(rules.duration.seconds)}, "
        f"{rules.duration.latencies:g} times the 90th percentile of the latency, and what the rules ask for at the "
        "point's concurrency."
    )
    if "insufficient_passes" in statuses:
        words += (
            " A point with insufficient passes has too few, or TPOT varies more over any of them that could be a "
            "window: more passes help only where the server becomes steady. The shorter a pass, the more a short "
            "disturbance of the machine moves its percentiles."
        )
    if "insufficient_duration" in statuses:
        words += " A point of insufficient duration is steady over its window, which is too short to be official."
    return words


def _cell(point: Point, name: str, write: Callable[[float], str]) -> str:
    value = point.figures.value(name)
    return "not measured" if value is None else write(value)

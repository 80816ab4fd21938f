"""The pictures of curves of MLPerf Endpoints: the step function of each curve, and the distributions of its points."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cm4vllm.common.number_texts import ms, number, rate
from cm4vllm.report.pictures.canvas import Axis, Canvas, Picture, Table
from cm4vllm.results.endpoints.curves import PER_USER, Curve, Point

#: Figures of a point.
TPS, PER_KW = "system_tps", "tps_per_kw"
EFFICIENCY = "tokens/s per kW"
#: Lines of one picture that have a colour of their own.
_LINES = 2
_PERCENTILES = ("min", "p50", "p90", "p99", "max", "mean")


def curve_title(curve: Curve) -> str:
    """Return the model and the system of a curve."""
    systems = {str(point.system.get("system_name", "")) for point in curve.points} - {""}
    return ", ".join(filter(None, [curve.model or "model not stated", *sorted(systems)]))


def curve_names(curves: Sequence[Curve]) -> list[str]:
    """Return the names of curves: letters before those of several."""
    return (
        [curve_title(curves[0])]
        if len(curves) == 1
        else [f"{chr(ord('A') + place)}: {curve_title(curve)}" for place, curve in enumerate(curves)]
    )


def concurrency_of(point: Point) -> str:
    """Return the concurrency of a point, as its rows are headed."""
    return f"{point.concurrency or 0:,}"


def curve_pictures(curves: Sequence[Curve]) -> Iterator[Picture]:
    """Yield the curve, and the one per kW where the power is stated."""
    yield from _curve_picture(
        curves, "Throughput over the speed that a user sees", TPS, "tokens/s", "result_summary.json of each point"
    )
    yield from _curve_picture(
        curves,
        "Throughput per kW over the speed that a user sees",
        PER_KW,
        EFFICIENCY,
        "result_summary.json and system_power.json of each point, by the official checker (power.json)",
    )


def _curve_picture(curves: Sequence[Curve], title: str, figure: str, unit: str, source: str) -> Iterator[Picture]:
    """Yield the picture of one figure over tokens/s per user, a step function for each curve."""
    named = zip(curves, curve_names(curves), strict=True)
    lines = [(name, line) for curve, name in named if (line := list(_line(curve, figure)))][:_LINES]
    if not lines:
        return
    ceilings = [value for curve in curves for value in _ceilings(curve, figure)] if len(curves) == 1 else []
    canvas = Canvas.over(
        [x for _, line in lines for _, x, _ in line],
        [*(y for _, line in lines for _, _, y in line), *ceilings],
        rows=len(ceilings),
    )
    canvas.axes("tokens/s per user", unit)
    for value in ceilings:
        canvas.level(value, "mark-p99", f"Offline {rate(value)}")
    for place, (_, line) in enumerate(lines, 1):
        canvas.line(_steps([(x, y) for _, x, y in line]), f"line-{place}")
        canvas.dots([(x, y) for _, x, y in line], f"bar-{place}")
        for concurrency, x, y_value in line:
            canvas.word(concurrency, x, y_value)
    yield Picture(
        title=title,
        words="Each dot is a point, beside it its requests in flight; between points the curve holds the value of the "
        "point with fewer in flight (rules §5.2). Tokens/s per user are 1000 over TPOT p90 in ms.",
        shapes=tuple(canvas.shapes),
        tables=tuple(
            Table(("concurrency", "tokens/s per user", unit), tuple((of, rate(x), rate(y)) for of, x, y in line))
            for _, line in lines
        ),
        source=source,
        legend=tuple((f"line-{place}", name) for place, (name, _) in enumerate(lines, 1)),
    )


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the step function through points: each holds its value up to the next."""
    corners = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        corners += [(x, before), (x, y)]
    return corners


def _ceilings(curve: Curve, figure: str) -> Iterator[float]:
    """Yield the figure of a dedicated Offline run: the highest throughput, which is no step of the curve."""
    for point in curve.points:
        if point.offline == "dedicated" and (value := point.figures.value(figure)) is not None:
            yield value


def _line(curve: Curve, figure: str) -> Iterator[tuple[str, float, float]]:
    """Yield concurrency, tokens/s per user and a figure of each point at fixed concurrency, in the curve's order."""
    for point in curve.concurrency_points:
        x, y = point.figures.value(PER_USER), point.figures.value(figure)
        if x is not None and y is not None:
            yield concurrency_of(point), x, y


def point_pictures(point: Point) -> Iterator[Picture]:
    """Yield the histograms of TTFT and TPOT of a point, with their percentiles."""
    for name, histogram in point.histograms.items():
        words = name.upper()
        stated = [
            (key, percentile)
            for key in _PERCENTILES
            if (percentile := point.figures.value(f"{name}_{key}")) is not None
        ]
        p90 = point.figures.value(f"{name}_p90")
        canvas = Canvas.over(histogram.edges, [max(histogram.counts, default=1)], rows=p90 is not None)
        # The client's intervals have the same width on a logarithmic axis.
        if (low := histogram.edges[0]) > 0:
            canvas.x = Axis(low, histogram.edges[-1], canvas.x.begin, canvas.x.end, logarithmic=True)
        canvas.axes(f"{words}, ms{' (logarithmic)' if canvas.x.logarithmic else ''}", "samples")
        spans = zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False)
        canvas.bars(
            histogram.edges,
            histogram.counts,
            [f"{ms(low)} to {ms(high)} ms: {number(samples)} samples" for low, high, samples in spans],
        )
        if p90 is not None:
            canvas.marks([(p90, "mark-p99", f"p90 {ms(p90)} ms")])
        yield Picture(
            title=f"{words} at concurrency {concurrency_of(point)}",
            words=", ".join(f"{key} {ms(value)} ms" for key, value in stated if key in ("p50", "p90", "p99")),
            shapes=tuple(canvas.shapes),
            tables=(Table(("", "ms"), tuple((key, ms(value)) for key, value in stated)),),
            source=f"{name} of result_summary.json",
        )

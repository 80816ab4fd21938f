"""The pictures of one scenario: which there are, what they are drawn from, and their numbers.

LoadGen's log has the percentiles, `client_samples.npy` every sample as the client saw it, `server_metrics.jsonl` the
server at regular times. What was not recorded has no picture.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cm4vllm.common.number_texts import ms, number, percent
from cm4vllm.records.accuracy import ACCURACY_FILE, Score
from cm4vllm.records.metrics import Timing
from cm4vllm.records.sample_times import SAMPLES_FILE, client_values, read_sample_times
from cm4vllm.report.pictures.canvas import Axis, Canvas, Picture, Shape, Table, bar_rows
from cm4vllm.report.pictures.power_pictures import power_pictures
from cm4vllm.report.pictures.timelines import BINS, Rows, histogram, sample_pictures, timelines
from cm4vllm.results.figures import Figure, Latency
from cm4vllm.results.model import Accuracy, Performance, Result
from cm4vllm.rules import AccuracyTarget

#: Percentiles in a picture's table, and the names that LoadGen's figures have for them.
_PERCENTILES = ((50, "p50"), (90, "p90"), (95, "p95"), (97, "p97"), (99, "p99"), (99.9, "p99.9"))

#: Height of a score in its picture.
_SCORE_ROW = 34

Values = npt.NDArray[np.float64]


def pictures(result: Result) -> list[Picture]:
    """Return the pictures of a scenario's runs, those of the performance run first.

    Raises RunFailed where the client's record of its samples cannot be read.
    """
    drawn: list[Picture] = []
    part = result.performance
    if part is not None:
        drawn += power_pictures(part)
        rows = read_sample_times(part.folder)
        drawn += _latencies(part, rows)
        drawn += timelines(part, rows)
        if rows is not None and len(rows):
            drawn += sample_pictures(part, rows)
    drawn += _phases(result)
    drawn += _ends(result)
    if result.accuracy is not None:
        drawn += _accuracy(result.accuracy)
    return drawn


def _latencies(part: Performance, rows: Rows | None) -> Iterator[Picture]:
    """Yield the distribution of TTFT and TPOT, or of the latency of whole answers that were asked for one by one."""
    yield from (
        _distribution(part, latency.name, latency.name.lower(), client_values(latency.name, rows), latency)
        for latency in part.latencies
    )
    if not part.latencies and part.queries > 1:
        yield _distribution(part, "Latency", "latency", client_values("", rows), None)


def _distribution(part: Performance, name: str, key: str, values: Values | None, latency: Latency | None) -> Picture:
    """Return the histogram of a latency, in ms, with LoadGen's percentiles and the limit.

    Without samples the percentiles alone.
    """
    logged = [(words, part.figures[f"{key}_{words}"]) for _, words in _PERCENTILES if f"{key}_{words}" in part.figures]
    ends = [part.figures[f"{key}_{end}"].value for end in ("min", "max") if f"{key}_{end}" in part.figures]
    limit = float(latency.limit) if latency is not None and latency.limit is not None else None
    p99 = part.figures.get(f"{key}_p99")
    span = [*ends, *(figure.value for _, figure in logged), *([limit] if limit else [])]
    if values is not None:
        span += [float(values.min()), float(values.max())]
    x = Axis.over([value for value in span if value > 0] or span, 0, 1)
    edges = x.edges(BINS)
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].tolist() if values is not None else []
    marks = [(p99.value, "mark-p99", f"p99 {ms(p99.value)} ms")] if p99 is not None else []
    marks += [(limit, "mark-limit", f"limit {number(limit)} ms")] if limit else []
    canvas = Canvas.over(span, [max(counts, default=1)], rows=len(marks))
    canvas.x = Axis(x.low, x.high, canvas.x.begin, canvas.x.end, x.logarithmic)
    canvas.axes(f"{name}, ms{' (logarithmic)' if x.logarithmic else ''}", "samples" if counts else "")
    tables = [_percentiles(part, key, logged, values)]
    if values is not None:
        tables.append(histogram(canvas, edges, counts, [(ms(low), ms(high)) for low, high in pairwise(edges)], "ms"))
    else:
        canvas.line(_logged_shares(part, key, logged), "line-2", scale=canvas.right_percent())
    canvas.marks(marks)
    stated = {"median": part.figures.get(f"{key}_p50"), "p99": p99}
    said = [f"{title} {ms(figure.value)} ms" for title, figure in stated.items() if figure]
    words = f"{name}: {', '.join([*said, *([f'limit {number(limit)} ms'] if limit else [])])}"
    return Picture(
        f"{name}: distribution",
        words,
        tuple(canvas.shapes),
        tuple(tables),
        (
            f"{part.beside(SAMPLES_FILE)}; percentiles: {part.log}"
            if values is not None
            else f"LoadGen's percentiles alone: {part.log}"
        ),
        ((("bar-1", "samples"),) if values is not None else ()) + (("line-2", "cumulative"),),
    )


def _logged_shares(part: Performance, key: str, logged: Sequence[tuple[str, Figure]]) -> list[tuple[float, float]]:
    """Return the values that LoadGen's log states, each with the percentage of samples at or below it."""
    values = dict(logged)
    ends = {name: part.figures.get(f"{key}_{name}") for name in ("min", "max")}
    shares = [(0.0, ends["min"]), *((share, values.get(words)) for share, words in _PERCENTILES), (100.0, ends["max"])]
    return [(float(figure.value), share) for share, figure in shares if figure is not None]


def _percentiles(part: Performance, key: str, logged: Sequence[tuple[str, Figure]], values: Values | None) -> Table:
    """Return the table of a latency: LoadGen's percentiles beside those of the samples, in ms."""
    ordered = np.sort(values) if values is not None else None
    rows = []
    for share, words in _PERCENTILES:
        figure = next((logged_figure for name, logged_figure in logged if name == words), None)
        seen = ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] if ordered is not None else None
        if figure is not None or seen is not None:
            rows.append((words, ms(figure.value) if figure else "", ms(float(seen)) if seen is not None else ""))
    for name, pick in (("least", "min"), ("most", "max"), ("mean", "mean")):
        figure = part.figures.get(f"{key}_{pick}")
        seen = getattr(ordered, pick)() if ordered is not None else None
        rows.append((name, ms(figure.value) if figure else "", ms(float(seen)) if seen is not None else ""))
    return Table(("", "LoadGen, ms", "client, ms"), tuple(rows))


def _phases(result: Result) -> Iterator[Picture]:
    """Yield how long a request was in each phase in the server, run by run."""
    drawn = {"queue": "bar-3", "prefill": "bar-2", "decode": "bar-1"}
    timed = [
        (str(run.settings.mode), timings)
        for run in result.runs
        if (timings := {name: timing for name in drawn if (timing := getattr(run.server_metrics, name, None))})
    ]
    if not timed:
        return
    total = {mode: sum(timing.mean_ms for timing in timings.values()) for mode, timings in timed}
    said = {
        mode: {name: f"{name} {ms(timing.mean_ms)} ms" for name, timing in timings.items()} for mode, timings in timed
    }
    bars = [
        (
            mode,
            [(timing.mean_ms, drawn[name], said[mode][name]) for name, timing in timings.items()],
            f"{ms(total[mode])} ms",
        )
        for mode, timings in timed
    ]
    shapes, height = bar_rows(bars, max(total.values()))
    yield Picture(
        "Time of a request in the server",
        "mean of a request: " + "; ".join(f"{mode}: {', '.join(parts.values())}" for mode, parts in said.items()),
        shapes,
        (_phase_table(timed),),
        f"{_records(result)}: server_metrics",
        tuple((kind, name) for name, kind in drawn.items()),
        height=height,
    )


def _phase_table(timed: Iterable[tuple[str, dict[str, Timing]]]) -> Table:
    """Return the table of the times of requests by phase, in ms, as the server measured them."""
    rows = tuple(
        (
            f"{mode}: {name}",
            number(timing.requests),
            ms(timing.mean_ms),
            "" if timing.p99_at_most_ms is None else ms(timing.p99_at_most_ms),
        )
        for mode, timings in timed
        for name, timing in timings.items()
    )
    return Table(("phase", "requests", "mean, ms", "p99 at most, ms"), rows)


def _ends(result: Result) -> Iterator[Picture]:
    """Yield the reasons for which answers ended, run by run."""
    ended = [(str(run.settings.mode), reasons) for run in result.runs if (reasons := run.client.finish_reasons)]
    if not ended:
        return
    bars = [
        (
            mode,
            [(r.stop, "bar-1", f"stop: {number(r.stop)}"), (r.length, "bar-2", f"length: {number(r.length)}")],
            f"{number(r.stop)} stop, {number(r.length)} length",
        )
        for mode, r in ended
    ]
    shapes, height = bar_rows(bars, max(r.stop + r.length for _, r in ended))
    yield Picture(
        "Why answers ended",
        "; ".join(f"{mode}: {words}" for mode, _, words in bars),
        shapes,
        (Table(("run", "stop", "length"), tuple((mode, number(r.stop), number(r.length)) for mode, r in ended)),),
        f"{_records(result)}: client.finish_reasons",
        (("bar-1", "by a token (stop)"), ("bar-2", "at the greatest length")),
        height=height,
    )


def _records(result: Result) -> str:
    return ", ".join(f"{result.folder}/{run.settings.mode}/run.json" for run in result.runs)


def _accuracy(part: Accuracy) -> Iterator[Picture]:
    """Yield the scores as parts of the reference's, with the bounds that the targets set."""
    if part.record is None or part.terms is None:
        return
    targets = {target.label: target for target in part.terms.targets}
    judged = [
        (score, targets[score.label])
        for score in part.record.scores
        if score.label in targets and score.met is not None and targets[score.label].reference
    ]
    if not judged:
        return
    parts = [_part(end or 0.0, target) for score, target in judged for end in (score.value, score.upper)]
    axis = Axis.over([0.0, 100.0, *parts], 8, 432, zero=True)
    shapes = [shape for row, pair in enumerate(judged) for shape in _score(axis, 8 + _SCORE_ROW * row, *pair)]
    rows = tuple(
        (
            score.metric,
            number(score.value),
            number(target.reference),
            number(score.lower) if score.lower is not None else "",
            number(score.upper) if score.upper is not None else "",
            "yes" if score.met else "no",
        )
        for score, target in judged
    )
    words = ", ".join(f"{score.metric} {percent(score.value / target.reference)}" for score, target in judged)
    yield Picture(
        "Accuracy against the reference",
        f"parts of the reference's scores: {words}",
        tuple(shapes),
        (Table(("metric", "score", "reference", "at least", "at most", "met"), rows),),
        f"{part.beside(ACCURACY_FILE)}: scores; reference: {judged[0][1].source}",
        (("zone", "allowed"), ("mark-p99", "the reference")),
        height=12 + _SCORE_ROW * len(judged),
    )


def _score(axis: Axis, top: int, score: Score, target: AccuracyTarget) -> Iterator[Shape]:
    """Yield the shapes of a score: its words, the range that is allowed, its bar, and where the reference's is."""
    low = axis.at(_part(score.lower or 0, target))
    high = axis.at(_part(score.upper, target) if score.upper is not None else axis.high)
    words = f"{number(score.value)}: {percent(score.value / target.reference)} of the reference"
    width = round(max(axis.at(_part(score.value, target)) - axis.begin, 1.5), 1)
    zone: dict[str, str | float] = {"x": low, "y": top + 12, "width": round(high - low, 1), "height": 13}
    bar: dict[str, str | float] = {"x": axis.begin, "y": top + 15, "width": width, "height": 7}
    whole = axis.at(100)
    yield Shape("text", {"class": "label", "x": axis.begin, "y": top + 9}, score.metric)
    yield Shape("text", {"class": "label end", "x": axis.end, "y": top + 9}, words)
    yield Shape("rect", {"class": "zone", **zone})
    yield Shape("rect", {"class": "bar-1" if score.met else "bar-bad", **bar})
    yield Shape("line", {"class": "mark-p99", "x1": whole, "x2": whole, "y1": top + 12, "y2": top + 26})


def _part(value: float, target: AccuracyTarget) -> float:
    """Return a value in percent of the reference's."""
    return 100 * value / target.reference

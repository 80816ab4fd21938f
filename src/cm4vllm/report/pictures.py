"""The pictures of one scenario: which there are, what they are drawn from, and their numbers.

LoadGen's log has the percentiles, `client_samples.npy` every sample as the client saw it, `server_metrics.jsonl` the
server at regular times. What was not recorded has no picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cm4vllm.loadgen.sample_times import client_values, read_sample_times
from cm4vllm.report import timelines
from cm4vllm.report.drawing import Axis, Canvas, Picture, Shape, Table, bar_rows
from cm4vllm.report.sample_pictures import BINS, Rows, beside, sample_pictures
from cm4vllm.report.wording import ms, number, percent
from cm4vllm.results.model import Accuracy, Figure, Latency, Performance, Result

__all__ = ["Rows", "pictures"]

#: Percentiles in a picture's table, and the names that LoadGen's figures have for them.
_PERCENTILES = ((50, "p50"), (90, "p90"), (95, "p95"), (97, "p97"), (99, "p99"), (99.9, "p99.9"))

Values = npt.NDArray[np.float64]


def pictures(result: Result) -> list[Picture]:
    """Return the pictures of a scenario's runs, those of the performance run first.

    Raises RunFailed where the client's record of its samples cannot be read.
    """
    found: list[Picture] = []
    part = result.performance
    if part is not None:
        rows = read_sample_times(part.folder)
        found += _latencies(part, rows)
        found += timelines.timelines(part, rows)
        if rows is not None and len(rows):
            found += sample_pictures(part, rows)
    found += _ends(result)
    if result.accuracy is not None:
        found += _accuracy(result.accuracy)
    return found


def _latencies(part: Performance, rows: Rows | None) -> Iterator[Picture]:
    """Give the distribution of TTFT and TPOT, or of the latency of whole answers that were asked for one by one."""
    for latency in part.latencies:
        yield _distribution(part, latency.name, latency.name.lower(), client_values(latency.name, rows), latency)
    if not part.latencies and part.queries > 1:
        yield _distribution(part, "Latency", "latency", client_values("", rows), None)


def _distribution(part: Performance, name: str, key: str, values: Values | None, latency: Latency | None) -> Picture:
    logged = [(words, part.figures[f"{key}_{words}"]) for _, words in _PERCENTILES if f"{key}_{words}" in part.figures]
    ends = [part.figures[f"{key}_{end}"].value for end in ("min", "max") if f"{key}_{end}" in part.figures]
    limit = float(latency.limit) if latency is not None and latency.limit is not None else None
    p99 = part.figures.get(f"{key}_p99")
    span = [*ends, *(one.value for _, one in logged), *([limit] if limit else [])]
    if values is not None:
        span += [float(values.min()), float(values.max())]
    x = Axis.over([value for value in span if value > 0] or span, 0, 1)
    edges = x.edges(BINS)
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].tolist() if values is not None else []
    canvas = Canvas.over(span, [max(counts, default=1)])
    canvas.x = Axis(x.low, x.high, canvas.x.begin, canvas.x.end, x.logarithmic)
    canvas.axes(f"{name}, ms{' (logarithmic)' if x.logarithmic else ''}", "samples" if counts else "")
    tables = [_percentiles(part, key, logged, values)]
    right = canvas.right_percent()
    if values is not None:
        total = np.cumsum(counts) * 100 / len(values)
        hints = [
            f"{ms(low)} to {ms(high)} ms: {number(count)} samples"
            for low, high, count in zip(edges, edges[1:], counts, strict=False)
        ]
        canvas.bars(edges, counts, hints)
        canvas.line(zip(edges, [0.0, *total.tolist()], strict=True), "line-2", scale=right)
        tables.append(_bins(edges, counts, total.tolist(), "ms", ms))
    else:
        known = [(part.figures[f"{key}_min"].value, 0.0)] if f"{key}_min" in part.figures else []
        known += [(one.value, share) for share, words in _PERCENTILES for w, one in logged if w == words]
        known += [(part.figures[f"{key}_max"].value, 100.0)] if f"{key}_max" in part.figures else []
        canvas.line(known, "line-2", scale=right)
    if p99 is not None:
        canvas.mark(p99.value, "mark-p99", f"p99 {ms(p99.value)} ms")
    if limit:
        canvas.mark(limit, "mark-limit", f"limit {number(limit)} ms", row=1)
    median = part.figures.get(f"{key}_p50")
    said = [f"{what} {ms(one.value)} ms" for what, one in (("median", median), ("p99", p99)) if one]
    words = f"{name}: {', '.join([*said, *([f'limit {number(limit)} ms'] if limit else [])])}"
    whose = (
        f"{beside(part)}; percentiles: {part.log}" if values is not None else f"LoadGen's percentiles alone: {part.log}"
    )
    return Picture(
        f"{name}: distribution",
        words,
        tuple(canvas.shapes),
        tuple(tables),
        whose,
        ((("bar-1", "samples"),) if values is not None else ()) + (("line-2", "cumulative"),),
    )


def _percentiles(part: Performance, key: str, logged: Sequence[tuple[str, Figure]], values: Values | None) -> Table:
    ordered = np.sort(values) if values is not None else None
    rows = []
    for share, words in _PERCENTILES:
        found = next((one for name, one in logged if name == words), None)
        seen = ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] if ordered is not None else None
        if found is not None or seen is not None:
            rows.append((words, ms(found.value) if found else "", ms(float(seen)) if seen is not None else ""))
    for name, pick in (("least", "min"), ("most", "max"), ("mean", "mean")):
        found = part.figures.get(f"{key}_{pick}")
        seen = getattr(ordered, pick)() if ordered is not None else None
        rows.append((name, ms(found.value) if found else "", ms(float(seen)) if seen is not None else ""))
    return Table(("", "LoadGen, ms", "client, ms"), tuple(rows))


def _bins(edges: Sequence[float], counts: Sequence[int], total: Sequence[float], unit: str, write: Any) -> Table:
    return Table(
        (f"from, {unit}", f"to, {unit}", "samples", "up to here"),
        tuple(
            (write(low), write(high), number(count), percent(share / 100))
            for low, high, count, share in zip(edges, edges[1:], counts, total, strict=False)
            if count
        ),
    )


def _ends(result: Result) -> Iterator[Picture]:
    """Give why answers ended, and how long requests were in each phase, run by run."""
    runs = [(run.settings.mode, run) for run in result.runs]
    ended = [(mode, run.client.finish_reasons) for mode, run in runs if run.client.finish_reasons is not None]
    files = ", ".join(f"{result.folder}/{mode}/run.json" for mode, _ in runs)
    phases = [(mode, run.server_metrics) for mode, run in runs if run.server_metrics is not None]
    timed = [
        (
            mode,
            [
                (name, timing, kind)
                for name, timing, kind in (
                    ("queue", s.queue, "bar-3"),
                    ("prefill", s.prefill, "bar-2"),
                    ("decode", s.decode, "bar-1"),
                )
                if timing is not None
            ],
        )
        for mode, s in phases
    ]
    if any(parts for _, parts in timed):
        bars = [
            (
                str(mode),
                [(t.mean_ms, kind, f"{name} {ms(t.mean_ms)} ms") for name, t, kind in parts],
                f"{ms(sum(t.mean_ms for _, t, _ in parts))} ms",
            )
            for mode, parts in timed
            if parts
        ]
        shapes, height = bar_rows(bars, max(sum(length for length, _, _ in parts) for _, parts, _ in bars))
        table = tuple(
            (
                f"{mode}: {name}",
                number(t.requests),
                ms(t.mean_ms),
                "" if t.p99_at_most_ms is None else ms(t.p99_at_most_ms),
            )
            for mode, parts in timed
            for name, t, _ in parts
        )
        words = "; ".join(
            f"{mode}: " + ", ".join(f"{name} {ms(t.mean_ms)} ms" for name, t, _ in parts)
            for mode, parts in timed
            if parts
        )
        yield Picture(
            "Time of a request in the server",
            f"mean of a request: {words}",
            shapes,
            (Table(("phase", "requests", "mean, ms", "p99 at most, ms"), table),),
            f"{files}: server_metrics",
            (("bar-3", "queue"), ("bar-2", "prefill"), ("bar-1", "decode")),
            height=height,
        )
    if ended:
        bars = [
            (
                str(mode),
                [(r.stop, "bar-1", f"stop: {number(r.stop)}"), (r.length, "bar-2", f"length: {number(r.length)}")],
                f"{number(r.stop)} stop, {number(r.length)} length",
            )
            for mode, r in ended
        ]
        shapes, height = bar_rows(bars, max(r.stop + r.length for _, r in ended))
        yield Picture(
            "Why answers ended",
            "; ".join(f"{name}: {words}" for name, _, words in bars),
            shapes,
            (
                Table(
                    ("run", "stop", "length"), tuple((str(mode), number(r.stop), number(r.length)) for mode, r in ended)
                ),
            ),
            f"{files}: client.finish_reasons",
            (("bar-1", "by a token (stop)"), ("bar-2", "at the greatest length")),
            height=height,
        )


def _accuracy(part: Accuracy) -> Iterator[Picture]:
    """Give the scores as parts of the reference's, with the bounds that the targets set."""
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
    axis = Axis.over(
        [
            0.0,
            100.0,
            *(
                100 * (bound or 0) / target.reference
                for score, target in judged
                for bound in (score.value, score.upper)
            ),
        ],
        8,
        432,
        zero=True,
    )
    shapes: list[Shape] = []
    for place, (score, target) in enumerate(judged):
        top = 8 + 34 * place
        low, high = (None if bound is None else 100 * bound / target.reference for bound in (score.lower, score.upper))
        end = axis.at(100 * score.value / target.reference)
        inner = axis.at(low or 0), axis.at(high if high is not None else axis.high)
        shapes += [
            Shape("text", {"class": "label", "x": 8, "y": top + 9}, score.metric),
            Shape(
                "text",
                {"class": "label end", "x": 432, "y": top + 9},
                f"{number(score.value)}: {percent(score.value / target.reference)} of the reference",
            ),
            Shape(
                "rect",
                {"class": "zone", "x": inner[0], "y": top + 12, "width": round(inner[1] - inner[0], 1), "height": 13},
            ),
            Shape(
                "rect",
                {
                    "class": "bar-1" if score.met else "bar-bad",
                    "x": 8,
                    "y": top + 15,
                    "width": round(max(end - 8, 1.5), 1),
                    "height": 7,
                },
            ),
            Shape(
                "line", {"class": "mark-p99", "x1": axis.at(100), "x2": axis.at(100), "y1": top + 11, "y2": top + 26}
            ),
        ]
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
        f"{part.log.rpartition('/')[0]}/accuracy.json: scores; reference: {judged[0][1].source}",
        (("zone", "allowed"), ("mark-p99", "the reference")),
        height=12 + 34 * len(judged),
    )

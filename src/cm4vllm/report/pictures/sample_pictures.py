"""The pictures of a run's samples: lengths of their prompts and answers, and which took longest."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cm4vllm.common.number_texts import ms, number, percent
from cm4vllm.records.sample_times import SAMPLES_FILE
from cm4vllm.report.pictures.canvas import Canvas, Picture, Table, bar_rows, short_number
from cm4vllm.results.model import Performance

#: Bars of a histogram.
BINS = 36

Rows = npt.NDArray[np.void]


def sample_pictures(part: Performance, rows: Rows) -> Iterator[Picture]:
    """Yield the lengths of the samples' prompts and answers, and the samples that took longest."""
    most = part.run.settings.max_tokens if part.run else 0
    yield _lengths(part, "Length of the prompts", rows["prompt_tokens"], 0)
    yield _lengths(part, "Length of the answers", rows["tokens"], most)
    if part.queries > 1:
        yield slowest_samples(part, rows)


def _lengths(part: Performance, title: str, values: npt.NDArray[np.int32], limit: int) -> Picture:
    """Return the histogram of the lengths of prompts or answers, in tokens, with the limit marked."""
    low, high = int(values.min()), int(values.max())
    canvas, edges = _length_bins(low, high)
    counts = np.histogram(values, edges)[0].tolist()
    canvas.y = Canvas.over(edges, [max(counts)], rows=1).y
    canvas.axes(f"tokens{' (logarithmic)' if canvas.x.logarithmic else ''}", "samples")
    spans = [(number(max(0, math.ceil(left))), number(math.ceil(right) - 1)) for left, right in pairwise(edges)]
    table = histogram(canvas, edges, counts, spans, "tokens")
    median = float(np.median(values))
    canvas.marks([(median, "mark-p99", f"median {short_number(median)}")])
    words = f"{title}: {number(low)} to {number(high)} tokens, median {short_number(median)}"
    if limit:
        words += f"; at most {number(limit)} were asked for"
    return Picture(
        title,
        words,
        tuple(canvas.shapes),
        (table,),
        part.beside(SAMPLES_FILE),
        (("bar-1", "samples"), ("line-2", "cumulative")),
    )


def histogram(
    canvas: Canvas, edges: Sequence[float], counts: Sequence[int], spans: Sequence[tuple[str, str]], unit: str
) -> Table:
    """Draw samples as bars, and their sum up to there as a line; return the same numbers.

    `spans` are the beginning and the end of each bar in words.
    """
    shares = (np.cumsum(counts) * 100 / sum(counts)).tolist()
    bars = list(zip(spans, counts, shares, strict=True))
    canvas.bars(edges, counts, [f"{low} to {high} {unit}: {number(count)} samples" for (low, high), count, _ in bars])
    canvas.line(zip(edges, [0.0, *shares], strict=True), "line-2", scale=canvas.right_percent())
    rows = tuple((low, high, number(count), percent(share / 100)) for (low, high), count, share in bars if count)
    return Table((f"from, {unit}", f"to, {unit}", "samples", "up to here"), rows)


def _length_bins(low: int, high: int) -> tuple[Canvas, list[float]]:
    """Return a canvas for lengths and edges that are equally far apart on its axis.

    On a linear axis each bar stands for the same number of whole tokens. On a logarithmic one each stands for the same
    factor; a narrow bar at the lower end that no whole number falls into stays empty.
    """
    step = max(1, -(-(high - low + 1) // BINS))
    edges = (np.arange(low, high + step + 1, step) - 0.5).tolist()
    canvas = Canvas.over(edges, [1])
    canvas.x = replace(canvas.x, low=edges[0], high=edges[-1])
    return canvas, canvas.x.edges(BINS) if canvas.x.logarithmic else edges


#: Samples in the picture of the slowest.
SLOWEST = 10
#: The part of a slow sample's time beyond the median from which on one reason explains it.
MOST_OF_EXCESS = 0.5


def slowest_samples(part: Performance, rows: Rows) -> Picture:
    """Return the samples that took longest, each with the part of its answer that it waited, and why it was slow."""
    streamed = bool((rows["first_ns"] >= 0).all())
    latency = (rows["last_ns"] - rows["issued_ns"]) / 1e6
    ttft = (rows["first_ns"] - rows["issued_ns"]) / 1e6 if streamed else np.zeros(len(rows))
    tpot = (latency - ttft) / np.maximum(rows["tokens"] - (1 if streamed else 0), 1)
    usual = {"ttft": float(np.median(ttft)), "tokens": float(np.median(rows["tokens"])), "tpot": float(np.median(tpot))}
    issued, ended = np.sort(rows["issued_ns"]), np.sort(rows["last_ns"])
    bars, table = [], []
    for place in np.argsort(latency, kind="stable")[::-1][:SLOWEST].tolist():
        row = rows[place]
        open_ = int(np.searchsorted(issued, row["issued_ns"], "right") - np.searchsorted(ended, row["issued_ns"]))
        tag, why = _why_slow(float(ttft[place]), int(row["tokens"]), float(tpot[place]), usual, open_)
        name = f"sample {int(row['index'])}, {number(int(row['tokens']))} tokens" + (f": {tag}" if tag else "")
        parts = [(float(ttft[place]), "bar-2", f"first token after {ms(float(ttft[place]))} ms")] if streamed else []
        then = float(latency[place] - ttft[place])
        parts.append((then, "bar-1", f"then {ms(then)} ms"))
        bars.append((name, parts, f"{ms(float(latency[place]))} ms"))
        table.append(
            (
                str(int(row["index"])),
                f"{row['issued_ns'] / 1e9:,.1f}",
                ms(float(latency[place])),
                ms(float(ttft[place])) if streamed else "",
                ms(float(tpot[place])),
                number(int(row["prompt_tokens"])),
                number(int(row["tokens"])),
                number(open_),
                why,
            )
        )
    shapes, height = bar_rows(bars, float(latency.max()))
    head = ("sample", "issued at, s", "latency, ms", "TTFT, ms", "TPOT, ms", "prompt", "tokens", "open", "why")
    return Picture(
        f"The {len(bars)} slowest samples",
        f"sample {table[0][0]} took longest: {bars[0][2]}; the median is {ms(float(np.median(latency)))} ms",
        shapes,
        (Table(head, tuple(table)),),
        part.beside(SAMPLES_FILE),
        (("bar-2", "until its first token"), ("bar-1", "its other tokens")) if streamed else (),
        height=height,
    )


def _why_slow(ttft: float, tokens: int, tpot: float, usual: dict[str, float], open_: int) -> tuple[str, str]:
    """Return the largest part of a sample's time beyond the median sample's, in short and in words; else nothing."""
    parts = {
        ("waited", f"waited for its first token, with {number(open_)} requests open"): ttft - usual["ttft"],
        ("long answer", f"long answer, the median has {short_number(usual['tokens'])} tokens"): (
            tokens - usual["tokens"]
        )
        * usual["tpot"],
        ("slow tokens", f"slow tokens, the median is {ms(usual['tpot'])} ms each"): (tpot - usual["tpot"]) * tokens,
    }
    excess = sum(max(part, 0.0) for part in parts.values())
    words, most = max(parts.items(), key=lambda item: item[1])
    return words if most > MOST_OF_EXCESS * excess else ("", "")

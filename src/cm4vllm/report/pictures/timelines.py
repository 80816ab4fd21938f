"""Pictures of a run over its time and of its samples: tokens/s, requests, the KV cache, TTFT, the GPUs; lengths.

Each is drawn in at most INTERVALS parts of the run. Of each part the mean and the greatest value are kept, so that no
peak is lost, however long the run was.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cm4vllm.common.number_texts import ms, number, percent, rate
from cm4vllm.common.records import read_sample_file
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, METRICS_FILE, GpusSample, MetricsSample, read_samples
from cm4vllm.records.sample_times import SAMPLES_FILE
from cm4vllm.report.pictures.canvas import Canvas, Picture, Table, bar_rows, short_number
from cm4vllm.results.model import Performance

#: Parts of a run that are drawn, and rows of its table.
INTERVALS, ROWS = 60, 12

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.void]
#: Bars of a histogram.
BINS = 36
#: Samples in the picture of the slowest.
SLOWEST = 10
#: The part of a slow sample's time beyond the median from which on one reason explains it.
MOST_OF_EXCESS = 0.5


def timelines(part: Performance, rows: Rows | None) -> Iterator[Picture]:
    """Yield the pictures of a performance run for which something was recorded."""
    samples = read_samples(part.folder / METRICS_FILE)
    if rows is not None and len(rows) > 1 and (rows["first_ns"] >= 0).all():
        yield _first_tokens(part, rows, part.beside(SAMPLES_FILE))
    if len(samples) > 2:
        source = part.beside(METRICS_FILE)
        at = np.array([sample.at_s for sample in samples])
        yield _tokens(part, at, samples, source)
        yield _requests(at, samples, source)
        yield _kv_cache(at, samples, source)
    elif rows is not None and len(rows) > 1:
        yield _open_requests(rows, part.beside(SAMPLES_FILE))
    yield from gpu_pictures(
        part, read_sample_file(part.folder / GPU_SAMPLES_FILE, GpusSample), part.beside(GPU_SAMPLES_FILE)
    )
    if rows is not None and len(rows) > 1 and part.queries == 1:
        yield _answered_samples(rows, part.beside(SAMPLES_FILE))


def _equal_parts(at: Floats, values: Floats, count: int) -> list[tuple[float, float, float, float]]:
    """Return begin, end, mean and greatest value of each of `count` equal parts of the time that has any."""
    edges = np.linspace(at[0], at[-1], min(count, max(1, len(at) - 1)) + 1)
    place = np.clip(np.searchsorted(edges, at, "right") - 1, 0, len(edges) - 2)
    parts = []
    for number_ in range(len(edges) - 1):
        inside = values[place == number_]
        if len(inside):
            parts.append((float(edges[number_]), float(edges[number_ + 1]), float(inside.mean()), float(inside.max())))
    return parts


def _over_time(
    title: str,
    words: str,
    source: str,
    unit: str,
    series: Sequence[tuple[str, str, Floats, Floats]],
    write: Callable[[float], str],
    *,
    level: tuple[float, str, str] | None = None,
) -> Picture:
    """Return the picture of series (name, class, times in s, values): mean of each part, greatest as a thin line.

    `level` is a value that they are seen against, with the class and the words of its line.
    """
    canvas = Canvas.over(
        [0.0, *(float(at[-1]) for _, _, at, _ in series)],
        [level[0] if level else 0.0, 1e-9, *(float(values.max()) for _, _, _, values in series)],
        from_zero=True,
        rows=1 if level else 0,
    )
    canvas.axes("time, s", unit)
    tables = []
    for name, kind, at, values in series:
        parts = _equal_parts(at, values, INTERVALS)
        if len(at) > INTERVALS:
            canvas.line([((a + b) / 2, most) for a, b, _, most in parts], f"{kind} most")
        canvas.line([((a + b) / 2, mean) for a, b, mean, _ in parts], kind)
        tables.append(
            Table(
                (f"{name}: from, s", "to, s", "mean", "most"),
                tuple(
                    (f"{a:,.1f}", f"{b:,.1f}", write(mean), write(most))
                    for a, b, mean, most in _equal_parts(at, values, ROWS)
                ),
            )
        )
    if level:
        canvas.level(*level)
    return Picture(
        title,
        words,
        tuple(canvas.shapes),
        tuple(tables),
        source,
        tuple((kind, name) for name, kind, _, _ in series) if len(series) > 1 else (),
    )


def _tokens(part: Performance, at: Floats, samples: Sequence[MetricsSample], source: str) -> Picture:
    """Return the picture of the tokens/s that the server generated over the run."""
    rates = np.diff(np.array([sample.generation_tokens for sample in samples], float)) / np.maximum(np.diff(at), 1e-3)
    mean = part.figures.get("tokens_per_second")
    return _over_time(
        "Tokens per second",
        f"Tokens/s that the server generated, up to {rate(float(rates.max()))}"
        + (f"; LoadGen's figure is {rate(mean.value)} tokens/s" if mean else ""),
        source + (f": generation_tokens; mean: {mean.source}" if mean else ""),
        "tokens/s",
        [("tokens/s", "line-1", at[1:], rates)],
        rate,
        level=(mean.value, "mark-p99", f"LoadGen: {rate(mean.value)}") if mean else None,
    )


def _requests(at: Floats, samples: Sequence[MetricsSample], source: str) -> Picture:
    """Return the picture of requests running and waiting in the server over the run."""
    running = np.array([sample.running for sample in samples], float)
    waiting = np.array([sample.waiting for sample in samples], float)
    return _over_time(
        "Requests running and waiting",
        f"Requests in the server: up to {number(int(running.max()))} running, {number(int(waiting.max()))} waiting",
        f"{source}: running, waiting",
        "requests",
        [("running", "line-1", at, running), ("waiting", "line-2", at, waiting)],
        rate,
    )


def _kv_cache(at: Floats, samples: Sequence[MetricsSample], source: str) -> Picture:
    """Return the picture of the share of the KV cache in use over the run."""
    used = np.array([100 * sample.kv_cache_usage for sample in samples])
    preempted = samples[-1].preemptions - samples[0].preemptions
    return _over_time(
        "KV cache in use",
        f"KV cache in use: up to {percent(float(used.max()) / 100)}; {number(preempted)} preemptions",
        f"{source}: kv_cache_usage, preemptions",
        "% of the KV cache",
        [("in use", "line-1", at, used)],
        lambda value: percent(value / 100),
    )


def gpu_pictures(part: Performance, looks: Sequence[GpusSample], source: str) -> Iterator[Picture]:
    """Yield the utilisation of the GPUs (their mean, and the least of them) and the power that they drew together."""
    if len(looks) < 3:
        return
    names = {gpu.index: gpu.name for look in looks for gpu in look.gpus}
    count = f"{len(names)} {'GPU' if len(names) == 1 else 'GPUs'}"
    at, load = _of_gpus(looks, "utilisation", 100)
    if len(at) > 2:
        words = (
            f"Part of the time in which {count} worked: {percent(float(load.mean()) / 100)} in the mean of the "
            "run; a GPU that works may still wait for its memory"
        )
        series = [("mean of the GPUs", "line-1", at, load.mean(axis=1))]
        if len(names) > 1:
            series.append(("the least of them", "line-2", at, load.min(axis=1)))
        yield _of_each(
            _over_time(
                "Utilisation of the GPUs",
                words,
                f"{source}: utilisation",
                "% of the time",
                series,
                lambda value: percent(value / 100),
            ),
            names,
            load,
            "mean, %",
            "most, %",
        )
    at, power = _of_gpus(looks, "power_w", 1)
    if len(at) > 2:
        drawn = power.sum(axis=1)
        tokens = part.figures.get("tokens_per_second")
        mean, most = float(drawn.mean()), float(drawn.max())
        words = f"Power of {count} together: {rate(mean)} W in the mean, {rate(most)} W at most"
        if tokens is not None:
            words += f"; {rate(tokens.value / mean)} tokens per joule of the GPUs alone"
        yield _of_each(
            _over_time("Power of the GPUs", words, f"{source}: power_w", "W", [("power", "line-1", at, drawn)], rate),
            names,
            power,
            "mean, W",
            "most, W",
        )


def _of_gpus(looks: Sequence[GpusSample], name: str, scale: float) -> tuple[Floats, Floats]:
    """Return times, and a row of all GPUs' values at each; looks in which one has none are left out."""
    most = max(len(look.gpus) for look in looks)
    rows = [(look.at_s, [getattr(gpu, name) for gpu in look.gpus]) for look in looks if len(look.gpus) == most]
    whole = [(at, values) for at, values in rows if None not in values]
    return np.array([at for at, _ in whole]), scale * np.array([values for _, values in whole], float)


def _of_each(picture: Picture, names: dict[int, str], values: Floats, mean: str, most: str) -> Picture:
    """Return the picture with a table of each GPU's mean and greatest value."""
    rows = tuple(
        (f"{index}: {name}", f"{values[:, place].mean():,.1f}", f"{values[:, place].max():,.1f}")
        for place, (index, name) in enumerate(sorted(names.items()))
    )
    return replace(picture, tables=(*picture.tables, Table(("GPU", mean, most), rows)))


def _first_tokens(part: Performance, rows: Rows, source: str) -> Picture:
    """Return the picture of TTFT, in ms, over the time of issue, with the limit where it is near."""
    at = rows["issued_ns"] / 1e9
    ttft = (rows["first_ns"] - rows["issued_ns"]) / 1e6
    limit = next((latency.limit for latency in part.latencies if latency.name == "TTFT"), None)
    near = float(limit) if limit is not None and limit < 3 * ttft.max() else 0.0
    return _over_time(
        "TTFT over the run",
        f"TTFT of the samples issued in each part of the run: mean and greatest; {ms(float(ttft.max()))} ms at most",
        source,
        "ms",
        [("TTFT", "line-1", at, ttft)],
        ms,
        level=(near, "mark-limit", f"limit {number(near)} ms") if near else None,
    )


def _open_requests(rows: Rows, source: str) -> Picture:
    """Return the picture of the requests open over the run, for servers without metrics."""
    times = np.concatenate([rows["issued_ns"], rows["last_ns"]]) / 1e9
    change = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    order = np.lexsort((-change, times))
    open_ = np.cumsum(change[order])
    return _over_time(
        "Requests open",
        f"Requests that were open, as the client saw them: up to {number(int(open_.max()))}",
        source,
        "requests",
        [("open", "line-1", times[order], open_)],
        rate,
    )


def _answered_samples(rows: Rows, source: str) -> Picture:
    """Return the picture of the answered samples of one query over its time."""
    ends = np.sort(rows["last_ns"]) / 1e9
    most = float(ends[int(0.99 * (len(ends) - 1))])
    words = f"Samples answered over the run: 99 % after {most:,.1f} s, all after {ends[-1]:,.1f} s"
    at, done = np.concatenate([[0.0], ends]), np.arange(len(ends) + 1, dtype=float)
    return _over_time("Samples answered", words, source, "samples", [("answered", "line-1", at, done)], rate)


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
    """Draw the samples of each bin as a bar, and the cumulative share as a line; return both as a table.

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

"""Pictures of a run over its time: tokens/s, requests that run and wait, the KV cache, answers, TTFT, the GPUs.

Each is drawn in at most INTERVALS parts of the run. Of each part the mean and the greatest value are kept, so that no
peak is lost, however long the run was.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cm4vllm.common.number_texts import ms, number, percent, rate
from cm4vllm.common.records import read_sample_file
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, METRICS_FILE, GpusSample, MetricsSample, read_samples
from cm4vllm.records.sample_times import SAMPLES_FILE
from cm4vllm.report.pictures.canvas import Canvas, Picture, Table
from cm4vllm.results.model import Performance

#: Parts of a run that are drawn, and rows of its table.
INTERVALS, ROWS = 60, 12

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.void]


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
    legend = tuple((kind, name) for name, kind, _, _ in series) if len(series) > 1 else ()
    return Picture(title, words, tuple(canvas.shapes), tuple(tables), source, legend)


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
    words = f"TTFT of the samples issued in each part of the run: mean and greatest; {ms(float(ttft.max()))} ms at most"
    return _over_time(
        "TTFT over the run",
        words,
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

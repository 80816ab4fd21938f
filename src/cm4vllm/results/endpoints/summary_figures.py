"""The figures of a summary of the reference client against each other: what it computes of one run fits together.

The client computes each distribution of the values of all samples: their sum, mean, percentiles (of their order), and a
histogram between the least and the largest of them. Answers without text have no output tokens, and those that came in
one piece no time per output token; all others are in each distribution.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from cm4vllm.records.logs.impossible_values import ImpossibleValue
from cm4vllm.results.endpoints.endpoints_harness import count, magnitude, number, part

#: The part by which a rate may differ from its count over its time: the official checker's for tokens/s.
_RATE = 0.01
#: The part by which a sum may differ from its mean times its values: both are written with all digits.
_SUM = 1e-4
#: The part by which a percentile may lie outside the interval of the histogram that it belongs to: the client's live
#: figures have three digits.
_DIGITS = 0.01
#: The distributions of a summary, each of all samples at most; failed requests have a latency, too.
_DISTRIBUTIONS = ("latency", "ttft", "tpot", "output_sequence_lengths", "input_sequence_lengths")
#: In ns, by how much a first token may come after the end of its answer: the client takes the one time where it reads
#: the answer, the other one where it notes what was read.
_LAG = 5e7
#: Fields without which no figure of a point can be computed; `/` leads into an object.
_REQUIRED = ("duration_ns", "n_samples_issued", "n_samples_completed", "output_sequence_lengths/total", "latency/avg")
_STREAMED = ("ttft", "tpot")
_NINETIETH = ("90.0", "90")
_SAMPLES = ("n_samples_issued", "n_samples_completed", "n_samples_failed")
_STATISTICS = ("total", "min", "max", "median", "avg", "std_dev")


def missing_figures(summary: Mapping[str, Any], *, streamed: bool) -> Iterator[str]:
    """Yield the fields that a summary lacks: they are absent, no number, 0 or below, not finite, or too large.

    One of a `streamed` run has first tokens and times per output token.
    """
    fields = (*_REQUIRED, *(f"{name}/{key}" for name in _STREAMED for key in ("avg", "max") if streamed))
    for field in fields:
        *parents, key = field.split("/")
        holder = part(summary, parents[0]) if parents else summary
        if not (count(holder, key) if key in _SAMPLES else number(holder, key)):
            yield field.replace("/", ".")
    for name in _STREAMED if streamed else ():
        if not _percentile(part(summary, name), *_NINETIETH):
            yield f"{name}.percentiles.90"


def contradictions(summary: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Yield the values in a summary that its other values contradict."""
    yield from _unusable(summary, "", ("duration_ns", "qps", "tps", *_SAMPLES))
    yield from _counts(summary)
    yield from _rates(summary)
    for name in _DISTRIBUTIONS:
        distribution = part(summary, name)
        yield from _unusable(distribution, f"{name}.", _STATISTICS)
        percentiles = part(distribution, "percentiles")
        yield from _unusable(percentiles, f"{name}.percentiles.", tuple(percentiles))
        yield from _values(summary, name)
        yield from _sums(name, distribution)
        yield from _mean_by_percentiles(name, distribution)
        yield from _in_histogram(name, distribution)
    yield from _first_tokens(summary)
    longest, duration = number(part(summary, "latency"), "max"), number(summary, "duration_ns")
    if longest and duration and longest > duration * (1 + _RATE):
        yield ImpossibleValue("an answer took longer than the run", "latency.max", longest, f"{duration:.15g} or less")


def values_of(distribution: Mapping[str, Any]) -> int | None:
    """Return the number of values of a distribution, by its histogram, else by its sum and mean; None without both."""
    listed = part(distribution, "histogram").get("counts")
    counts = [magnitude(value) for value in listed] if isinstance(listed, list) else []
    if counts and None not in counts:
        return int(sum(value or 0 for value in counts))
    total, mean = number(distribution, "total"), number(distribution, "avg")
    return round(total / mean) if total and mean and total / mean < 2**63 else None


def sum_of(summary: Mapping[str, Any], name: str) -> float | None:
    """Return the sum of the values of a distribution; None where it is not stated."""
    distribution = part(summary, name)
    if (total := number(distribution, "total")) is not None:
        return total
    mean, values = number(distribution, "avg"), values_of(distribution) or count(summary, "n_samples_completed")
    return None if mean is None or values is None else mean * values


def _unusable(content: Mapping[str, Any], place: str, keys: Sequence[str]) -> Iterator[ImpossibleValue]:
    """Yield what is no number, and numbers that are too large; those below 0 are out of the order of their values."""
    for key in keys:
        value = content.get(key)
        usable = count(content, key) if key in _SAMPLES else magnitude(value)
        below = isinstance(value, int | float) and value < 0
        if value is not None and usable is None and not below:
            expected = "a whole number" if key in _SAMPLES else "a number"
            yield ImpossibleValue("a figure is no number of a run", f"{place}{key}", str(value)[:80], expected)


def _counts(summary: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    issued, completed = count(summary, "n_samples_issued"), count(summary, "n_samples_completed")
    reasons = part(summary, "finish_reason_counts")
    ended = sum(count(reasons, reason) or 0 for reason in reasons)
    for key, value, most, of in (
        ("n_samples_completed", completed, issued, "issued"),
        ("n_samples_failed", count(summary, "n_samples_failed"), issued, "issued"),
        ("finish_reason_counts", ended, completed, "completed"),
    ):
        if value is not None and most is not None and value > most:
            yield ImpossibleValue(f"more samples than were {of}", key, value, f"{most} or less")


def _rates(summary: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Compare samples/s and tokens/s with their counts and the time that the client divides them by."""
    completed, tokens = count(summary, "n_samples_completed"), number(part(summary, "output_sequence_lengths"), "total")
    legacy = number(summary, "legacy_loadgen_window_duration_ns")
    seconds = (legacy or number(summary, "duration_ns") or 0) / 1e9
    if not seconds:
        return
    # Over the window of LoadGen the client counts the intervals between samples.
    counted = None if completed is None else completed - 1 if legacy else completed
    for key, amount in (("qps", counted), ("tps", tokens)):
        rate = number(summary, key)
        if rate is not None and amount is not None and not _close(rate, amount / seconds, _RATE):
            expected = f"{amount / seconds:.6g}, {amount:.15g} in {seconds:.6g} s"
            yield ImpossibleValue("a rate is not its count divided by its time", key, rate, expected)


def _values(summary: Mapping[str, Any], name: str) -> Iterator[ImpossibleValue]:
    """Compare the number of values in a distribution with the samples of the run."""
    issued = name == "input_sequence_lengths"
    samples, values = count(summary, f"n_samples_{'issued' if issued else 'completed'}"), values_of(part(summary, name))
    if samples and values is not None and (values > samples or (name == "latency" and values < samples)):
        wrong = "the values of a distribution are not those of the samples"
        expected = f"{samples}{'' if name == 'latency' else ' at most'}"
        yield ImpossibleValue(wrong, f"{name}.histogram.counts", values, expected)


def _sums(name: str, distribution: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Compare sum, mean, median and standard deviation with the other values of a distribution."""
    total, mean, values = number(distribution, "total"), number(distribution, "avg"), values_of(distribution)
    if total is not None and mean is not None and values and not _close(total, mean * values, _SUM):
        yield ImpossibleValue("a sum is not the mean times the values", f"{name}.total", total, f"{mean * values:.6g}")
    median, middle = number(distribution, "median"), _percentile(distribution, "50.0", "50")
    if median is not None and middle is not None and not _close(median, middle, _DIGITS):
        yield ImpossibleValue("the median is not the 50th percentile", f"{name}.median", median, f"{middle:.15g}")
    least, largest, deviation = (number(distribution, key) for key in ("min", "max", "std_dev"))
    if least is not None and largest is not None and deviation is not None:
        # Two values differ most from their mean; the deviation of a sample divides by one value less.
        most = (largest - least) * math.sqrt(0.5) * (1 + _DIGITS)
        if deviation > max(most, 0.0):
            wrong = "a standard deviation is larger than the values allow"
            yield ImpossibleValue(wrong, f"{name}.std_dev", deviation, f"{most:.6g} or less")


def _mean_by_percentiles(name: str, distribution: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Compare the mean with the least and the largest one that the percentiles allow."""
    values, mean = values_of(distribution), number(distribution, "avg")
    ends = number(distribution, "min"), number(distribution, "max")
    if not values or mean is None or ends[0] is None or ends[1] is None:
        return
    listed = part(distribution, "percentiles")
    stated = [(percent, number(listed, key)) for key in listed if (percent := _percent(key)) is not None]
    # The client's percentile is the value at this place in the order of all values.
    places = sorted((math.floor(percent / 100 * (values - 1)), value) for percent, value in stated if value is not None)
    steps = list(pairwise([(0, ends[0]), *places, (values - 1, ends[1])]))
    least = ends[1] + sum((high - low) * value for (low, value), (high, _) in steps)
    most = ends[0] + sum((high - low) * value for (low, _), (high, value) in steps)
    if not least * (1 - _DIGITS) <= mean * values <= most * (1 + _DIGITS):
        expected = f"{least / values:.6g} to {most / values:.6g}"
        yield ImpossibleValue("a mean is not that of the percentiles", f"{name}.avg", mean, expected)


def _in_histogram(name: str, distribution: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Compare a histogram with the mean and the percentiles of the same values."""
    histogram = part(distribution, "histogram")
    if not histogram.get("buckets") and not histogram.get("counts"):
        return
    if (intervals := _intervals(histogram)) is None:
        wrong = "a histogram is no list of rising intervals with a count each"
        yield ImpossibleValue(wrong, f"{name}.histogram", "another form", "buckets of two numbers, and counts")
        return
    yield from _mean_in(intervals, name, distribution)
    values = sum(size for _, _, size in intervals)
    percentiles = part(distribution, "percentiles")
    for key in percentiles:
        percent, stated = _percent(key), number(percentiles, key)
        if percent is None or stated is None or not values:
            continue
        # The client counts values below 1 in the first interval, which begins with 1.
        value, below = max(stated, 1.0), percent / 100 * (values - 1)
        before = sum(size for _, high, size in intervals if high < value * (1 - _DIGITS))
        until = sum(size for low, _, size in intervals if low <= value * (1 + _DIGITS))
        if not before - 1 <= below <= until:
            expected = f"the value of sample {below:.0f} of {values}"
            yield ImpossibleValue(
                "a percentile is not that of the histogram", f"{name}.percentiles.{key}", stated, expected
            )


def _mean_in(
    intervals: list[tuple[float, float, int]], name: str, distribution: Mapping[str, Any]
) -> Iterator[ImpossibleValue]:
    values, mean = sum(size for _, _, size in intervals), number(distribution, "avg")
    if not values or mean is None:
        return
    # The least edge is 1 also where values are 0.
    least = sum(low * size for low, _, size in intervals) / values * (1 - _SUM) - 1
    most = sum(high * size for _, high, size in intervals) / values * (1 + _SUM)
    if not least <= mean <= most:
        wrong = "a mean is not that of the histogram"
        yield ImpossibleValue(wrong, f"{name}.avg", mean, f"{max(least, 0.0):.6g} to {most:.6g}")


def _first_tokens(summary: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Compare first tokens with whole answers, value by value in the order of both; failed requests have no first."""
    first, whole = part(summary, "ttft"), part(summary, "latency")
    samples = values_of(first), values_of(whole)
    if count(summary, "n_samples_failed") or (None not in samples and samples[0] != samples[1]):
        return
    early, late = part(first, "percentiles"), part(whole, "percentiles")
    keys = [(f"percentiles.{key}", number(early, key), number(late, key)) for key in early]
    for key, before, after in [("avg", number(first, "avg"), number(whole, "avg")), *keys]:
        if before is not None and after is not None and before > after * (1 + _SUM) + _LAG:
            expected = f"{after:.15g} or less, latency.{key}"
            yield ImpossibleValue("first tokens come after whole answers", f"ttft.{key}", before, expected)


def _intervals(histogram: Mapping[str, Any]) -> list[tuple[float, float, int]] | None:
    """Return lower end, upper end and count of each interval; None for anything else."""
    buckets, counts = histogram.get("buckets"), histogram.get("counts")
    if not isinstance(buckets, list) or not isinstance(counts, list) or len(buckets) != len(counts):
        return None
    intervals = []
    for bucket, stated in zip(buckets, counts, strict=True):
        ends = [magnitude(end) for end in bucket] if isinstance(bucket, list) else []
        size = magnitude(stated)
        if len(ends) != 2 or ends[0] is None or ends[1] is None or size is None or not ends[0] < ends[1]:
            return None
        intervals.append((ends[0], ends[1], int(size)))
    return intervals if all(a[1] <= b[0] * (1 + _SUM) for a, b in pairwise(intervals)) else None


def _percentile(distribution: Mapping[str, Any], *keys: str) -> float | None:
    percentiles = part(distribution, "percentiles")
    return next((value for key in keys if (value := number(percentiles, key)) is not None), None)


def _percent(key: object) -> float | None:
    text = str(key)
    value = float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else math.nan
    return value if 0 <= value <= 100 else None


def _close(value: float, other: float, tolerance: float) -> bool:
    return abs(value - other) <= tolerance * max(abs(value), abs(other))

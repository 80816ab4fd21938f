"""Values in a detail log that no run has: times that go backwards, figures out of their order, no tokens at all.

A result with one of them is none, whoever made it: the verdict on a run and the checks of trees both ask here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from cm4vllm.loadgen.logs.detail_log import DetailLog
from cm4vllm.loadgen.logs.figures import negative

__all__ = [
    "SUM_END",
    "ImpossibleValue",
    "LogNumbers",
    "ends_before_it_begins",
    "impossible_figures",
    "impossible_values",
    "out_of_order",
]

_PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
#: Distributions that LoadGen logs: least value, percentiles, largest value, mean.
_DISTRIBUTIONS = (
    ("result_min_latency_ns", "result_{}_percentile_latency_ns", "result_max_latency_ns", "result_mean_latency_ns"),
    (
        "result_first_token_min_latency_ns",
        "result_first_token_{}_percentile_latency_ns",
        "result_first_token_max_latency_ns",
        "result_first_token_mean_latency_ns",
    ),
    (
        "result_time_to_output_token_min",
        "result_time_per_output_token_{}_percentile_ns",
        "result_time_to_output_token_max",
        "result_time_to_output_token_mean",
    ),
    (
        "result_min_query_latency_ns",
        "result_{}_percentile_per_query_latency_ns",
        "result_max_query_latency_ns",
        "result_mean_query_latency_ns",
    ),
)
#: Figures of which a run that answered anything has more than 0: the largest times, and the rates.
_POSITIVE = {
    "result_first_token_max_latency_ns": "all first tokens came at the moment of their query",
    "result_first_token_mean_latency_ns": "all first tokens came at the moment of their query",
    "result_max_latency_ns": "all answers came at the moment of their query",
    "result_mean_latency_ns": "all answers came at the moment of their query",
    "result_tokens_per_second": "no tokens were made",
    "result_completed_tokens_per_second": "no tokens were made",
    "result_samples_per_second": "no samples were answered",
    "result_completed_samples_per_sec": "no samples were answered",
}
#: LoadGen adds latencies in ns up to this sum; larger ones make its mean a wrong number.
SUM_END = 2**63


@dataclass(frozen=True)
class ImpossibleValue:
    """One value that no run has: what is wrong with it, its key in the log, the value, and what a run has."""

    what: str
    key: str
    value: object
    expected: object

    def __str__(self) -> str:
        value = f"{self.value:.15g}" if isinstance(self.value, float) else self.value
        expected = f"{self.expected:.15g}" if isinstance(self.expected, float) else self.expected
        return f"{self.what}: {self.key} is {value}, where a run has {expected}"


class LogNumbers:
    """The numbers of a detail log; 0 for one that it does not have. Findings name it `file`."""

    def __init__(self, log: DetailLog, file: str = "") -> None:
        self.values, self.file = log.values, file
        self.scenario = str(log.values.get("effective_scenario", ""))

    def __getitem__(self, key: str) -> float:
        value = self.values.get(key)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if usable and value is not None else 0.0

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        return value if isinstance(value, bool) else None

    @property
    def samples(self) -> float:
        return self["result_query_count"] * max(1.0, self["generated_samples_per_query"])


def impossible_values(log: DetailLog) -> Iterator[ImpossibleValue]:
    """Yield the values of a performance log that no run has."""
    yield from impossible_figures(log)
    yield from filter(None, (out_of_order(log), ends_before_it_begins(log)))


def impossible_figures(log: DetailLog) -> Iterator[ImpossibleValue]:
    """Yield the figures of a performance log that no run has."""
    numbers = LogNumbers(log)
    for key in negative(log):
        yield ImpossibleValue("a figure is below 0", key, log.values[key], "0 or more")
    if numbers.samples > 0:
        for key, wrong in _POSITIVE.items():
            if key in log.values and log.is_defined(key) and numbers[key] == 0:
                yield ImpossibleValue(wrong, key, log.values[key], "more than 0")
    yield from _disorder(numbers)
    late = numbers["result_overlatency_query_count"]
    if late > numbers.samples > 0:
        yield ImpossibleValue(
            "more queries are late than were issued", "result_overlatency_query_count", late, numbers.samples
        )


def _disorder(log: LogNumbers) -> Iterator[ImpossibleValue]:
    """Compare least value, percentiles, mean and largest value of each distribution, and first tokens with answers."""
    for least, percentile, largest, mean in _DISTRIBUTIONS:
        keys = [least, *(percentile.format(statistic) for statistic in _PERCENTILES), largest]
        values = [(key, log[key]) for key in keys if key in log.values]
        for (low, below), (high, above) in pairwise(values):
            if below > above:
                yield ImpossibleValue("a percentile is below a lower one", high, above, f"{below:.15g} or more, {low}")
        if len(values) < 2 or mean not in log.values or log.samples * values[-1][1] >= SUM_END:
            continue
        if not values[0][1] <= log[mean] <= values[-1][1]:
            yield ImpossibleValue("a mean is not between least and largest value", mean, log[mean], values[-1][0])
    for statistic in ("min", "mean", "max", *(f"{part}_percentile" for part in _PERCENTILES)):
        first, whole = f"result_first_token_{statistic}_latency_ns", f"result_{statistic}_latency_ns"
        if first in log.values and whole in log.values and 0 < log[whole] < log[first] < SUM_END:
            yield ImpossibleValue(
                "first tokens come after whole answers", first, log[first], f"{log[whole]:.15g}, {whole}"
            )


def out_of_order(log: DetailLog) -> ImpossibleValue | None:
    """Return the first entry that is older than the one before it; None where the times of the entries only rise."""
    if not log.unordered:
        return None
    time = f"{log.times_ms.get(log.unordered, 0):.6f} ms"
    return ImpossibleValue("an entry is older than the one before it", log.unordered, time, "a later time")


def ends_before_it_begins(log: DetailLog) -> ImpossibleValue | None:
    """Return the end of the measured window where it is before its beginning; None where it is not."""
    window = log.window
    if window is None or window.seconds >= 0:
        return None
    begin, end = window.begin.isoformat(), window.end.isoformat()
    return ImpossibleValue("the run ends before it begins", "power_end", end, f"after {begin}")

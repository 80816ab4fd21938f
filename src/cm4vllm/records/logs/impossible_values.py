"""Values in a detail log that no run has: times that go backwards, figures out of their order, no tokens at all.

A result with one of them is none, whoever made it: the verdict on a run and the checks of trees both ask here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.records.logs.figures import negative_keys


@dataclass(frozen=True)
class _Distribution:
    """The keys of a distribution that LoadGen logs: least value, percentiles, largest value, mean."""

    least: str
    percentile: re.Pattern[str]
    largest: str
    mean: str

    def values(self, log: LogNumbers) -> list[tuple[str, float]]:
        """Return the key and the value of the least value, of the percentiles in their order, and of the largest."""
        matches = filter(None, map(self.percentile.fullmatch, log.values))
        percentiles = [match[0] for match in sorted(matches, key=lambda match: float(match[1]))]
        return [(key, log[key]) for key in (self.least, *percentiles, self.largest) if key in log.values]


_ANSWERS = _Distribution(
    "result_min_latency_ns",
    re.compile(r"result_(\d+\.\d+)_percentile_latency_ns"),
    "result_max_latency_ns",
    "result_mean_latency_ns",
)
_FIRST_TOKENS = _Distribution(
    "result_first_token_min_latency_ns",
    re.compile(r"result_first_token_(\d+\.\d+)_percentile_latency_ns"),
    "result_first_token_max_latency_ns",
    "result_first_token_mean_latency_ns",
)
_OUTPUT_TOKENS = _Distribution(
    "result_time_to_output_token_min",
    re.compile(r"result_time_per_output_token_(\d+\.\d+)_percentile_ns"),
    "result_time_to_output_token_max",
    "result_time_to_output_token_mean",
)
_QUERIES = _Distribution(
    "result_min_query_latency_ns",
    re.compile(r"result_(\d+\.\d+)_percentile_per_query_latency_ns"),
    "result_max_query_latency_ns",
    "result_mean_query_latency_ns",
)
#: LoadGen's estimates by early stopping, and the distribution that each is of in its own scenario.
_ESTIMATES = {"early_stopping_latency_ss": _ANSWERS, "early_stopping_latency_ms": _QUERIES}
#: Times that are a part of the whole answer's, by the statistic: no value of them is above that of the answers.
_PARTS = (
    (re.compile(r"result_first_token_(.+)_latency_ns"), "first tokens come after whole answers"),
    (re.compile(r"result_time_(?:to|per)_output_token_(.+?)(?:_ns)?"), "a token takes longer than whole answers"),
)
#: Figures of which a run that answered anything has more than 0, the first that matches: all that LoadGen computes, but
#: the number of late queries and the least time per output token, as some answers may come in one piece.
_POSITIVE = tuple(
    (re.compile(key), wrong)
    for key, wrong in (
        (r"result_query_count", "no queries were issued"),
        (r"result_first_token_.+_ns", "first tokens came at the moment of their query"),
        (r"result_time_(?:to|per)_output_token_(?!min).+", "all tokens of an answer came at one moment"),
        (r"result_.+_latency_ns", "answers came at the moment of their query"),
        (r"result_.*token.*(?:_per_second|_throughput.*)", "no tokens were made"),
        (r"result_.*(?:_per_second|_per_sec|_overhead)", "no samples were answered"),
    )
)
#: Rates of a run, each of its samples but one over a part of its time.
_RATES = ("result_completed_samples_per_sec", "result_scheduled_samples_per_sec", "result_qps_with_loadgen_overhead")
#: In s, by how much the measured window may be short of a time that has six digits.
_SLACK_S = 0.05
_DIGITS = 1e-5
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
        """Return the boolean of a key, None where it has none."""
        value = self.values.get(key)
        return value if isinstance(value, bool) else None

    @property
    def samples(self) -> float:
        """Return the number of samples: queries times samples of a query."""
        return self["result_query_count"] * max(1.0, self["generated_samples_per_query"])


def impossible_values(log: DetailLog) -> Iterator[ImpossibleValue]:
    """Yield the values of a performance log that no run has."""
    yield from impossible_figures(log)
    yield from filter(None, (out_of_order(log), impossible_window(log)))


def impossible_figures(log: DetailLog) -> Iterator[ImpossibleValue]:
    """Yield the figures of a performance log that no run has."""
    numbers = LogNumbers(log)
    for key in negative_keys(log):
        yield ImpossibleValue("a figure is below 0", key, log.values[key], "0 or more")
    for key, value in log.values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
            matching = (wrong for pattern, wrong in _POSITIVE if pattern.fullmatch(key))
            if wrong := next(matching, ""):
                yield ImpossibleValue(wrong, key, value, "more than 0")
    for distribution in (_ANSWERS, _FIRST_TOKENS, _OUTPUT_TOKENS, _QUERIES):
        yield from _disorder(numbers, distribution)
    yield from _impossible_estimates(numbers)
    yield from _impossible_parts(numbers)
    late = numbers["result_overlatency_query_count"]
    if late > numbers.samples > 0:
        yield ImpossibleValue(
            "more queries are late than were issued", "result_overlatency_query_count", late, numbers.samples
        )


def values_out_of_order(values: Sequence[tuple[str, float]]) -> Iterator[ImpossibleValue]:
    """Yield each value of a distribution that is below one before it: least, percentiles, largest, with their keys."""
    for (low, below), (high, above) in pairwise(values):
        if below > above:
            yield ImpossibleValue("a percentile is below a lower one", high, above, f"{below:.15g} or more, {low}")


def value_out_of_range(kind: str, key: str, value: float, least: float, largest: float) -> Iterator[ImpossibleValue]:
    """Yield a value of a distribution, named by its `kind`, that is outside its least and its largest value."""
    if not least <= value <= largest:
        expected = f"{least:.15g} to {largest:.15g}"
        yield ImpossibleValue(f"{kind} is not between least and largest value", key, value, expected)


def _disorder(log: LogNumbers, distribution: _Distribution) -> Iterator[ImpossibleValue]:
    values, mean = distribution.values(log), distribution.mean
    yield from values_out_of_order(values)
    if len(values) > 1 and mean in log.values and log.samples * values[-1][1] < SUM_END:
        yield from value_out_of_range("a mean", mean, log[mean], values[0][1], values[-1][1])


def _impossible_estimates(log: LogNumbers) -> Iterator[ImpossibleValue]:
    """Yield the estimates by early stopping that contradict the latencies; LoadGen writes 0 where it made none.

    With token latencies an estimate is of the first tokens.
    """
    for key, distribution in _ESTIMATES.items():
        own = distribution.largest in log.values
        least, largest = (distribution.least, distribution.largest) if own else (_ANSWERS.least, _ANSWERS.largest)
        made = log[key] or (own and log.flag("early_stopping_met"))
        if key in log.values and largest in log.values and made:
            lowest = min(log[name] for name in (least, _FIRST_TOKENS.least) if name in log.values or name == least)
            yield from value_out_of_range("an estimate", key, log[key], lowest, log[largest])


def _impossible_parts(log: LogNumbers) -> Iterator[ImpossibleValue]:
    """Yield the times of first tokens and of output tokens that are longer than those of whole answers."""
    for key in log.values:
        for pattern, wrong in _PARTS:
            if match := pattern.fullmatch(key):
                whole = f"result_{match[1]}_latency_ns"
                if 0 < log[whole] < log[key] < SUM_END:
                    yield ImpossibleValue(wrong, key, log[key], f"{log[whole]:.15g} or less, {whole}")


def out_of_order(log: DetailLog) -> ImpossibleValue | None:
    """Return the first entry that is older than the one before it; None where the times of the entries only rise."""
    if not log.unordered:
        return None
    time = f"{log.times_ms.get(log.unordered, 0):.6f} ms"
    return ImpossibleValue("an entry is older than the one before it", log.unordered, time, "a later time")


def impossible_window(log: DetailLog) -> ImpossibleValue | None:
    """Return the measured window that ends before it begins, or is shorter than what was measured in it, else None."""
    if (window := log.window) is None:
        return None
    if window.seconds < 0:
        begin, end = window.begin.isoformat(), window.end.isoformat()
        return ImpossibleValue("the run ends before it begins", "power_end", end, f"after {begin}")
    numbers = LogNumbers(log)
    lasted = {key: (numbers.samples - 1) / rate for key in _RATES if (rate := numbers[key])}
    lasted[_ANSWERS.largest] = numbers[_ANSWERS.largest] / 1e9
    longest = max(lasted, key=lambda key: lasted[key])
    if window.seconds + _SLACK_S >= lasted[longest] * (1 - _DIGITS):
        return None
    expected = f"{lasted[longest]:.0f} s or more, {longest}"
    return ImpossibleValue(
        "the run was shorter than its result says", "power_begin, power_end", f"{window.seconds:.3f} s", expected
    )

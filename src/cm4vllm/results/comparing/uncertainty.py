"""The uncertainty of a figure of one run, compared with the same run made longer: intervals and differences.

The run is cut into parts that follow each other, equal in time for a rate and in samples for a latency, and parts are
drawn with replacement (block bootstrap, Kuensch 1989): samples that waited in the same queue stay together, so that
their correlation is not taken for information. `seed` chooses the parts that are drawn. What the
intervals do not cover is what differs between two runs of the same settings: a server's start, temperature, a
neighbour on the machine. Only a repeated run shows that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from cm4vllm.common.student import student_t
from cm4vllm.records.sample_times import client_values, read_sample_times
from cm4vllm.results.figures import Basis, Figure, Figures, Interval
from cm4vllm.results.model import Performance

#: The confidence of the intervals, the same as in LoadGen's early stopping.
LEVEL = 0.99
#: Parts of a run, and how often they are drawn.
PARTS, DRAWS = 20, 1000
#: Samples of a part at least; parts of a run at least; samples beyond a percentile at least.
_OF_A_PART, _PARTS_AT_LEAST, _BEYOND = 10, 10, 10
#: Values at which samples are counted: half of them in the upper tenth, where the percentiles of interest are.
_EDGES = 2000

#: The standard deviations to either side of the mean that hold LEVEL of a normal distribution.
_NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
#: Student's t over the normal quantile at LEVEL with PARTS - 1 degrees of freedom, and the spread of a mean of drawn
#: parts, which is too small by sqrt(1 - 1 / PARTS).
_STUDENT = student_t((1 + LEVEL) / 2, PARTS - 1) / _NORMAL / math.sqrt(1 - 1 / PARTS)

#: Figures that are compared, in the order in which they are shown, after the metric of the scenario. Tokens/s per user
#: are those of a point of MLPerf Endpoints.
COMPARED = (
    "samples_per_second",
    "tokens_per_second_per_user",
    "tokens_per_sample",
    *(f"{kind}_{word}" for kind in ("ttft", "tpot") for word in ("mean", "p50", "p99")),
    *(f"latency_{word}" for word in ("p50", "p90", "p99")),
)
#: The share of the samples below each percentile of LoadGen's log.
_SHARES = {0: "min", 0.5: "p50", 0.9: "p90", 0.95: "p95", 0.97: "p97", 0.99: "p99", 0.999: "p99.9", 1: "max"}

Values = npt.NDArray[np.float64]


class Verdict(StrEnum):
    """The meaning of a change: the same figure, a real difference, within the uncertainty, likely, or not known.

    A difference is doubtful where the client of one of the runs is.
    """

    SAME = "same"
    REAL = "real"
    WITHIN = "within"
    LIKELY = "likely"
    UNKNOWN = "unknown"
    DOUBTFUL = "doubtful"


@dataclass(frozen=True)
class Shift:
    """The relative change from one figure to another, its interval where it has one, and its meaning.

    `why` says what is missing where the verdict is unknown, and why it is doubtful.
    """

    change: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    why: str = ""


def too_few(samples: int, share: float = 0.5) -> str:
    """Return the reason why so many samples give no interval of a figure; empty where they do."""
    needed = max(_OF_A_PART * _PARTS_AT_LEAST, math.ceil(_BEYOND / (1 - share)))
    return f"{samples:,} samples, an interval needs {needed:,}" if samples < needed else ""


def rate(value: float, ends: Values, amounts: Values, *, seed: int) -> Interval | None:
    """Return the rate `value` of a run whose samples ended at `ends` (from its begin) with these amounts."""
    parts = min(PARTS, len(ends) // _OF_A_PART)
    if too_few(len(ends)):
        return None
    place = np.clip(np.searchsorted(np.linspace(0, float(ends.max()), parts + 1), ends, "right") - 1, 0, parts - 1)
    totals = np.bincount(place, amounts, parts)
    return _interval(value, float(totals.mean()), _weights(parts, seed) @ totals / parts)


def mean(value: float, values: Values, *, seed: int) -> Interval | None:
    """Return the mean `value` of values that are in the order of issue."""
    if too_few(len(values)):
        return None
    groups = np.array_split(values, min(PARTS, len(values) // _OF_A_PART))
    sums, counts = np.array([group.sum() for group in groups]), np.array([len(group) for group in groups])
    weights = _weights(len(groups), seed)
    return _interval(value, float(values.mean()), (weights @ sums) / (weights @ counts))


def percentile(value: float, values: Values, share: float, *, seed: int) -> Interval | None:
    """Return the percentile `value` of values in the order of issue; `share` is in (0..1)."""
    if too_few(len(values), share):
        return None
    groups = np.array_split(values, min(PARTS, len(values) // _OF_A_PART))
    ordered = np.sort(values)
    last = len(values) - 1
    ranks = np.unique(
        np.concatenate([np.linspace(0, last, _EDGES // 2), np.linspace(0.9 * last, last, _EDGES // 2)]).astype(np.int64)
    )
    edges = np.unique(ordered[ranks])
    below = np.array([np.searchsorted(np.sort(group), edges, "right") for group in groups], float)
    weights = _weights(len(groups), seed)
    counts = weights @ below
    wanted = share * (weights @ np.array([len(group) for group in groups], float))
    return _interval(
        value,
        float(ordered[int(share * len(ordered))]),
        edges[np.minimum((counts < wanted[:, None]).sum(axis=1), len(edges) - 1)],
    )


def from_percentiles(value: float, known: Mapping[float, float], samples: int, share: float) -> Interval | None:
    """Return a percentile with the interval that its order statistics would have, were the samples independent.

    `known` are percentiles by their share, with 0 and 1 for the least and the greatest. Samples of one queue are not
    independent: the true interval is wider.
    """
    if too_few(samples, share) or len(known) < 3:
        return None
    reach = _NORMAL * math.sqrt(share * (1 - share) / samples)
    shares = sorted(known)
    low, high = np.interp([share - reach, share + reach], shares, [known[share] for share in shares])
    return Interval(min(float(low), value), max(float(high), value), Basis.PERCENTILES)


def with_intervals(part: Performance) -> Figures:
    """Return the figures of a run. Each figure that is compared has an interval, or the reason why it has none."""
    rows, names = read_sample_times(part.folder), {*COMPARED, part.metric.name if part.metric else ""}

    def completed(figure: Figure) -> Figure:
        if figure.name not in names:
            return figure
        if rows is not None and len(rows):
            interval, why = from_samples(figure, rows)
        else:
            interval, why = _from_log(figure, part.figures, part.samples), "one figure of one run, without its samples"
        return replace(figure, interval=interval, why_no_interval="" if interval else why)

    return Figures(completed(figure) for figure in part.figures.values())


def _from_log(figure: Figure, figures: Figures, samples: int) -> Interval | None:
    """Return the interval of a percentile, from the other percentiles of the log; None for other figures."""
    kind, share = _split_name(figure.name)
    known = {part: figures[f"{kind}_{word}"].value for part, word in _SHARES.items() if f"{kind}_{word}" in figures}
    return from_percentiles(float(figure.value), known, samples, share) if share else None


def from_samples(figure: Figure, rows: npt.NDArray[np.void]) -> tuple[Interval | None, str]:
    """Return a figure of LoadGen's log with its interval by the client's record of the samples, or why it has none."""
    kind, share = _split_name(figure.name)
    if figure.unit.endswith("/s"):
        amounts = rows["tokens"] if "tokens" in figure.name else np.ones(len(rows))
        interval = rate(float(figure.value), rows["last_ns"] / 1e9, amounts.astype(float), seed=0)
    elif figure.name == "tokens_per_sample":
        interval = mean(float(figure.value), rows["tokens"].astype(float), seed=0)
    else:
        values = client_values("" if kind == "latency" else kind.upper(), rows)
        if values is None:
            return None, "the client's record has no times of tokens"
        interval = (
            percentile(float(figure.value), values, share, seed=0)
            if share
            else mean(float(figure.value), values, seed=0)
        )
    if interval:
        return interval, ""
    return None, too_few(len(rows), share) or "in long parts of the run no answer ended"


def _split_name(name: str) -> tuple[str, float]:
    """Return the kind of a figure and the share of its percentile, 0 where it is none: ("ttft", 0.99) of ttft_p99."""
    kind, _, pick = name.rpartition("_")
    return kind, float(pick[1:]) / 100 if pick[1:].isascii() and pick[1:].isdigit() else 0.0


def shift(before: Figure, after: Figure) -> Shift:
    """Return the change from a figure to another, and its interval where both have one.

    That of a change reaches as far as if the logarithms of both figures scattered independently of each other.
    """
    if before.value == after.value:
        return Shift(0.0, None, None, Verdict.SAME)
    change = after.value / before.value - 1 if before.value > 0 else None
    first, other = before.interval, after.interval
    if first is None or other is None or change is None:
        return Shift(
            change,
            None,
            None,
            Verdict.UNKNOWN,
            before.why_no_interval or after.why_no_interval or "no change can be given from zero",
        )
    if first.basis is other.basis is Basis.SAMPLES and min(first.low, other.low) > 0:
        reach = math.exp(math.hypot(*(math.log(each.high / each.low) / 2 for each in (first, other))))
        low, high = (1 + change) / reach - 1, (1 + change) * reach - 1
        return Shift(change, low, high, Verdict.WITHIN if low <= 0 <= high else Verdict.REAL)
    apart = other.low > first.high or other.high < first.low
    return Shift(change, None, None, Verdict.LIKELY if apart else Verdict.WITHIN)


def _weights(parts: int, seed: int) -> Values:
    """Return how often each part is drawn, draw by draw."""
    return np.random.default_rng(seed).multinomial(parts, np.full(parts, 1 / parts), DRAWS).astype(float)


def _interval(value: float, centre: float, drawn: Values) -> Interval | None:
    """Return the interval about LoadGen's own figure that is as wide as `drawn` scatter about `centre`.

    It reaches as far to either side, by the farther end of the bootstrap ratios, raised as Student's t is above the
    normal quantile for so few parts.
    """
    if centre <= 0 or value <= 0 or drawn.min() <= 0:
        return None
    ends = np.abs(np.quantile(np.log(drawn / centre), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    reach = float(np.exp(_STUDENT * ends.max()))
    return Interval(value / reach, value * reach, Basis.SAMPLES)

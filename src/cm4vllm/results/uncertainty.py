"""How far a figure of one run may be from what the same run, made longer, would give: intervals and differences.

The run is cut into parts that follow each other, equal in time for a rate and in samples for a latency, and parts are
drawn with replacement (block bootstrap, Kuensch 1989): samples that waited in the same queue stay together, so that
their correlation is not taken for information. `seed` is another one for each run: runs are independent. What the
intervals do not cover is what differs between two runs of the same settings: a server's start, temperature, a
neighbour on the machine. Only a repeated run shows that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cm4vllm.loadgen.sample_times import client_values
from cm4vllm.results.model import Figure

__all__ = [
    "LEVEL",
    "Basis",
    "Estimate",
    "Shift",
    "Verdict",
    "from_percentiles",
    "from_samples",
    "mean",
    "percentile",
    "rate",
    "shift",
    "split_name",
    "too_few",
]

#: The confidence of the intervals: that of LoadGen's early stopping.
LEVEL = 0.99
#: Parts of a run, and how often they are drawn.
PARTS, DRAWS = 20, 1000
#: Samples of a part at least; parts of a run at least; samples beyond a percentile at least.
_OF_A_PART, _PARTS_AT_LEAST, _BEYOND = 10, 10, 10
#: Values at which samples are counted: half of them in the upper tenth, where the percentiles of interest are.
_EDGES = 2000

#: Student's t over the normal quantile at LEVEL with PARTS - 1 degrees of freedom, 2.861 / 2.576, and the spread of a
#: mean of drawn parts, which is too small by sqrt(1 - 1 / PARTS).
_STUDENT = 2.861 / 2.576 / math.sqrt(1 - 1 / PARTS)

Values = npt.NDArray[np.float64]


class Basis(StrEnum):
    """What an interval rests on."""

    SAMPLES = "samples"
    PERCENTILES = "percentiles"


class Verdict(StrEnum):
    """Whether two figures differ by more than their uncertainty."""

    SAME = "same"
    REAL = "real"
    WITHIN = "within"
    LIKELY = "likely"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    `draws` are bootstrap values of it, none where only percentiles are known, or the interval was recorded earlier.
    """

    value: float
    low: float
    high: float
    basis: Basis
    draws: Values | None = None

    @property
    def reach(self) -> float | None:
        """The factor by which the figure may be off to either side; None where the interval has none."""
        return math.sqrt(self.high / self.low) if self.basis is Basis.SAMPLES and self.low > 0 else None

    def divided(self, count: int) -> Estimate:
        """Return that of the figure divided by a number that is known."""
        draws = None if self.draws is None else self.draws / count
        return Estimate(self.value / count, self.low / count, self.high / count, self.basis, draws)


@dataclass(frozen=True)
class Shift:
    """The relative change from one figure to another, its interval where it has one, and what it means.

    `why` says what is missing where the verdict is unknown.
    """

    change: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    why: str = ""


def too_few(samples: int, share: float = 0.5) -> str:
    """Say why so many samples give no interval of a figure; empty where they do."""
    needed = max(_OF_A_PART * _PARTS_AT_LEAST, math.ceil(_BEYOND / (1 - share)))
    return f"{samples:,} samples, an interval needs {needed:,}" if samples < needed else ""


def rate(value: float, ends: Values, amounts: Values, *, seed: int) -> Estimate | None:
    """Return the rate `value` of a run whose samples ended at `ends` (from its begin) with these amounts."""
    parts = min(PARTS, len(ends) // _OF_A_PART)
    if too_few(len(ends)):
        return None
    edges = np.linspace(0, float(ends.max()), parts + 1)
    place = np.clip(np.searchsorted(edges, ends, "right") - 1, 0, parts - 1)
    totals = np.bincount(place, amounts, parts)
    drawn = _weights(parts, seed) @ totals / parts
    return _estimate(value, float(totals.mean()), drawn)


def mean(value: float, values: Values, *, seed: int) -> Estimate | None:
    """Return the mean `value` of values that are in the order of issue."""
    if too_few(len(values)):
        return None
    groups = np.array_split(values, min(PARTS, len(values) // _OF_A_PART))
    sums, counts = np.array([group.sum() for group in groups]), np.array([len(group) for group in groups])
    weights = _weights(len(groups), seed)
    return _estimate(value, float(values.mean()), (weights @ sums) / (weights @ counts))


def percentile(value: float, values: Values, share: float, *, seed: int) -> Estimate | None:
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
    drawn = edges[np.minimum((counts < wanted[:, None]).sum(axis=1), len(edges) - 1)]
    return _estimate(value, float(ordered[int(share * len(ordered))]), drawn)


def from_percentiles(value: float, known: Mapping[float, float], samples: int, share: float) -> Estimate | None:
    """Return a percentile with the interval that its order statistics would have, were the samples independent.

    `known` are percentiles by their share, with 0 and 1 for the least and the greatest. Samples of one queue are not
    independent: the true interval is wider.
    """
    if too_few(samples, share) or len(known) < 3:
        return None
    reach = _normal(LEVEL) * math.sqrt(share * (1 - share) / samples)
    shares = sorted(known)
    low, high = np.interp([share - reach, share + reach], shares, [known[one] for one in shares])
    return Estimate(value, min(float(low), value), max(float(high), value), Basis.PERCENTILES)


def from_samples(figure: Figure, rows: npt.NDArray[np.void], *, seed: int) -> tuple[Estimate | None, str]:
    """Return a figure of LoadGen's log with its interval by the client's record of the samples, or why it has none."""
    kind, share = split_name(figure.name)
    if figure.unit.endswith("/s"):
        amounts = rows["tokens"] if "tokens" in figure.name else np.ones(len(rows))
        found = rate(float(figure.value), rows["last_ns"] / 1e9, amounts.astype(float), seed=seed)
    else:
        values = client_values("" if kind == "latency" else kind.upper(), rows)
        if values is None:
            return None, "the client's record has no times of tokens"
        found = (
            percentile(float(figure.value), values, share, seed=seed)
            if share
            else mean(float(figure.value), values, seed=seed)
        )
    if found:
        return found, ""
    return None, too_few(len(rows), share) or "in long parts of the run no answer ended"


def split_name(name: str) -> tuple[str, float]:
    """Return the kind of a figure and the share of its percentile, 0 where it is none: ("ttft", 0.99) of ttft_p99."""
    kind, _, pick = name.rpartition("_")
    return kind, float(pick[1:]) / 100 if pick[1:].isdigit() else 0.0


def shift(before: float, after: float, one: Estimate | None, other: Estimate | None, why: str) -> Shift:
    """Return the change from a figure to another; `why` says what is missing where one has no interval."""
    if before == after:
        return Shift(0.0, None, None, Verdict.SAME)
    change = after / before - 1 if before > 0 else None
    if one is None or other is None or change is None:
        return Shift(change, None, None, Verdict.UNKNOWN, why or "no change can be given from zero")
    if one.draws is not None and other.draws is not None:
        return _between(change, _reach(other.draws / one.draws / (1 + change)))
    if one.reach is not None and other.reach is not None:
        return _between(change, math.exp(math.hypot(math.log(one.reach), math.log(other.reach))))
    apart = other.low > one.high or other.high < one.low
    return Shift(change, None, None, Verdict.LIKELY if apart else Verdict.WITHIN)


def _between(change: float, reach: float) -> Shift:
    """Return the change that may be off by the factor `reach`, and whether it is real."""
    low, high = (1 + change) / reach - 1, (1 + change) * reach - 1
    return Shift(change, low, high, Verdict.WITHIN if low <= 0 <= high else Verdict.REAL)


def _weights(parts: int, seed: int) -> Values:
    """Return how often each part is drawn, draw by draw."""
    return np.random.default_rng(seed).multinomial(parts, np.full(parts, 1 / parts), DRAWS).astype(float)


def _estimate(value: float, centre: float, drawn: Values) -> Estimate | None:
    """Return the estimate whose draws scatter about LoadGen's own figure as `drawn` do about `centre`."""
    if centre <= 0 or value <= 0 or drawn.min() <= 0:
        return None
    reach = _reach(drawn / centre)
    return Estimate(value, value / reach, value * reach, Basis.SAMPLES, value * drawn / centre)


def _reach(ratios: Values) -> float:
    """Return the factor by which a figure may be off, to either side alike: the farther end of its bootstrap ratios.

    It is raised as Student's t is above the normal quantile for so few parts.
    """
    ends = np.abs(np.quantile(np.log(ratios), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return float(np.exp(_STUDENT * ends.max()))


def _normal(level: float) -> float:
    """Return how many standard deviations either side of the mean hold `level` of a normal distribution."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((1 + level) / 2)

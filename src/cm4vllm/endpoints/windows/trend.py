"""Statistics of a series with one value a block: its variation, its trend, the change over it, a change of its level.

They are defined as in the official detector of the steady state (WindowRules): its verdicts are reached exactly.
The trend is tested by Mann and Kendall: S, the sum of the signs of x_j - x_i over all i < j, against its variance
without a trend. Hamed and Rao (1998) correct this variance by the autocorrelations of the ranks; the detector takes the
ranks of the series as it is, without removing its slope, and ranks equal values in their order. The change of the level
is tested by Pettitt (1979).
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median, pstdev

import numpy as np

#: A median of 0 stands for this in a quotient.
_ALMOST_ZERO = 1e-9


def variation(values: Sequence[float]) -> float:
    """Return the standard deviation (of a whole population) over the mean; 0 with fewer than two or a mean of 0."""
    mean = sum(values) / len(values) if len(values) > 1 else 0.0
    return pstdev(values) / abs(mean) if mean else 0.0


def level(values: Sequence[float]) -> float:
    """Return the median, never 0, so that a value can be divided by it."""
    return median(values) or _ALMOST_ZERO


def relative_change(values: Sequence[float]) -> float:
    """Return the change from the first to the last value on the line of least squares, over the median."""
    count = len(values)
    mean, middle = sum(values) / count, (count - 1) / 2
    moment = sum((place - middle) * (value - mean) for place, value in enumerate(values))
    slope = moment / sum((place - middle) ** 2 for place in range(count)) if count > 1 else 0.0
    return slope * (count - 1) / level(values)


def trend(values: Sequence[float], *, alpha: float, quantile: float) -> int:
    """Return 1 for a series that rises, -1 for one that falls, 0 without a significant trend at this level.

    Autocorrelations count that are larger than `quantile` over the root of the number of values; there are at least 3.
    """
    series, count = np.asarray(values, dtype=float), len(values)
    score = sum(int(np.sign(series[place + 1 :] - series[place]).sum()) for place in range(count - 1))
    ties = sum(size * (size - 1) * (2 * size + 5) for size in Counter(values).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    factor = _autocorrelation_factor(series, quantile / math.sqrt(count))
    if factor > 0:  # in a short series that alternates it can be negative: then nothing is corrected
        variance *= factor
    if score == 0 or variance <= 0:
        return _sign(score)
    z = (abs(score) - 1) / math.sqrt(variance)
    return _sign(score) if 1 - math.erf(z / math.sqrt(2)) < alpha else 0


def change_point(values: Sequence[float], *, alpha: float) -> int | None:
    """Return how many values lie before the significant change of the level, None without one; there are some values.

    The first of several places is taken that differ by the same.
    """
    series, count = np.asarray(values, dtype=float), len(values)
    ordered = np.sort(series)
    # From 1 on; equal values share the mean of their ranks.
    ranks = (np.searchsorted(ordered, series) + np.searchsorted(ordered, series, "right") + 1) / 2
    sizes = np.arange(1, count)
    differences = np.abs(2 * np.cumsum(ranks)[:-1] - sizes * (count + 1))
    largest = float(differences.max(initial=0))
    p = 2 * math.exp(-6 * largest**2 / (count**3 + count**2))
    return int(sizes[differences.argmax()]) if p < alpha else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _autocorrelation_factor(series: np.ndarray[tuple[int], np.dtype[np.float64]], bound: float) -> float:
    """Return by how much autocorrelations above the bound raise or lower the variance of S."""
    count = len(series)
    ranks = np.empty(count)
    ranks[np.argsort(series, kind="stable")] = np.arange(count)
    centred = ranks - ranks.mean()
    total, weighted = float(centred @ centred), 0.0
    for lag in range(1, count):
        correlation = float(centred[lag:] @ centred[: count - lag]) / total
        if abs(correlation) > bound:
            weighted += (count - lag) * (count - lag - 1) * (count - lag - 2) * correlation
    return 1 + 2 / (count * (count - 1) * (count - 2)) * weighted

"""A test for a trend in a short series: Mann and Kendall's, corrected for autocorrelation by Hamed and Rao (1998).

The rules of MLPerf Endpoints name both (§4.4; scripts/steady_state_diagnostics.md of the reference client). The
statistic is S = the sum of sign(x_j - x_i) over i < j; its variance is that of independent values, with ties, times a
factor from the significant autocorrelations of the ranks of the series without its slope.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

#: With fewer values no trend is significant.
LEAST_VALUES = 4
#: Autocorrelations outside of the 95 % range of independent values count.
_SIGNIFICANT = NormalDist().inv_cdf(0.975)


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return whether the values rise or fall: the p value of both directions together, and the median slope per value
    (Theil and Sen). Raises ValueError for fewer than `LEAST_VALUES`.
    """
    count = len(values)
    if count < LEAST_VALUES:
        raise ValueError(f"{count} values of at least {LEAST_VALUES}")
    first, later = np.triu_indices(count, k=1)
    rises = np.asarray(values, dtype=float)[later] - np.asarray(values, dtype=float)[first]
    slope = float(np.median(rises / (later - first)))
    score = int(np.count_nonzero(rises > 0) - np.count_nonzero(rises < 0))
    variance, factor = _variance(values), _autocorrelation_factor(values, slope)
    if variance == 0 or score == 0:
        return 1.0, slope
    if factor > 0:  # in a short series that alternates it can be negative: then nothing is corrected
        variance *= factor
    z = (score - math.copysign(1, score)) / math.sqrt(variance)
    return 2 * (1 - NormalDist().cdf(abs(z))), slope


def _variance(values: Sequence[float]) -> float:
    """Return the variance of S for independent values; equal ones lower it."""
    count = len(values)
    ties = sum(size * (size - 1) * (2 * size + 5) for size in Counter(values).values())
    return (count * (count - 1) * (2 * count + 5) - ties) / 18


def _autocorrelation_factor(values: Sequence[float], slope: float) -> float:
    """Return by how much autocorrelation raises or lowers the variance of S."""
    count = len(values)
    detrended = np.asarray(values, dtype=float) - slope * np.arange(1, count + 1)
    ranks = _mean_ranks(detrended)
    centred = ranks - ranks.mean()
    total = float(centred @ centred)
    if total == 0:
        return 1.0
    factor = 0.0
    for lag in range(1, count):
        correlation = float(centred[lag:] @ centred[: count - lag]) / total
        if abs(correlation) > _SIGNIFICANT / math.sqrt(count):
            factor += (count - lag) * (count - lag - 1) * (count - lag - 2) * correlation
    return 1 + 2 / (count * (count - 1) * (count - 2)) * factor


def _mean_ranks(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the ranks from 1 on; equal values share the mean of theirs."""
    _, place, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = ends - (sizes - 1) / 2
    return means[place]

"""How far a run's figures can be expected to lie from those of the same run made again, by the run's own spread.

The rates: the run is cut into ten parts of the same length, and the mean of their rates has the standard error of ten
values (batch means; Student's t with nine degrees of freedom, 95 %). The percentiles: the order statistics between
which the percentile lies with 95 % (binomial, by its normal approximation). Both count what lies within one run: not
what changes from one start of the server to the next, or on another machine.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from cm4vllm.loadgen.sample_times import read_sample_times

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["PARTS", "intervals"]

PARTS = 10
#: Student's t of 95 % with PARTS - 1 degrees of freedom, and the normal distribution's.
_T, _Z = 2.262, 1.96
_PERCENTILE = 0.99


def intervals(folder: Path, values: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return low and high of the figures of `values` for which the client's record of the samples in `folder` says it.

    Rates in samples/s and tokens/s, percentiles in ms.
    """
    import numpy as np

    rows = read_sample_times(folder)
    if rows is None or len(rows) < PARTS:
        return {}
    found = {}
    ended = rows["last_ns"] / 1e9
    for name, weights in (("samples_per_second", np.ones(len(rows))), ("tokens_per_second", rows["tokens"])):
        if name in values:
            half = _half_width(ended, weights)
            found[name] = max(0.0, values[name] * (1 - half)), values[name] * (1 + half)
    first = rows["first_ns"]
    if (first >= 0).all():
        many = rows["tokens"] > 1
        times = {"ttft_p99": (first - rows["issued_ns"]) / 1e6,
                 "tpot_p99": (rows["last_ns"] - first)[many] / 1e6 / (rows["tokens"][many] - 1)}
        for name, of_samples in times.items():
            if name in values and len(of_samples) >= PARTS:
                low, high = _around(np.sort(of_samples))
                found[name] = min(low, values[name]), max(high, values[name])
    return found


def _half_width(ended: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    """Return half the width of the interval as a part of the rate."""
    import numpy as np

    counts, _ = np.histogram(ended, bins=PARTS, range=(0.0, float(ended.max())), weights=weights)
    mean = float(counts.mean())
    return _T * float(counts.std(ddof=1)) / math.sqrt(PARTS) / mean if mean else 0.0


def _around(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the order statistics around the percentile."""
    count = len(values)
    middle, spread = count * _PERCENTILE, _Z * math.sqrt(count * _PERCENTILE * (1 - _PERCENTILE))
    low, high = math.floor(middle - spread), math.ceil(middle + spread)
    return float(values[max(0, low - 1)]), float(values[min(count - 1, high)])

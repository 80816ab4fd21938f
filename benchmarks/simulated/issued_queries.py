"""The number of queries that LoadGen issues in a run of a given time."""

from __future__ import annotations

import numpy as np

from cm4vllm.loadgen.logs.arrivals import arrivals

__all__ = ["issued_queries"]


def issued_queries(rate: float, seed: int, seconds: float, whole: int = 1) -> int:
    """Return how many queries LoadGen issues in a run of at least `seconds`.

    It goes on to the first query at or after them; with sample_concatenate_permutation it goes on until it has issued
    whole datasets of `whole` samples.
    """
    guess = round(rate * seconds + 10 * (rate * seconds) ** 0.5) + 10
    reached = int(np.searchsorted(arrivals(rate, seed, guess), seconds)) + 1
    return -(-reached // whole) * whole

"""The full-length run that a search looks for the rate of: its queries, its schedule, and how many may be late."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cm4vllm.records.logs.arrivals import Times, arrivals
from cm4vllm.records.logs.early_stopping import PERCENTILE, most_over


@dataclass(frozen=True)
class FullLength:
    """A run of at least `seconds`, by LoadGen's seed of the schedule.

    `whole` is the size of the dataset where LoadGen issues whole datasets only, 1 elsewhere; `least` is the number of
    queries that it has at least.
    """

    seconds: float
    seed: int
    whole: int = 1
    least: int = 1

    def queries(self, rate: float) -> int:
        unit = _unit(self.seed, self.seconds * rate)
        reached = int(np.searchsorted(unit, self.seconds * rate)) + 1
        return -(-max(reached, self.least) // self.whole) * self.whole

    def duration(self, rate: float) -> float:
        """Return for how many seconds such a run issues queries."""
        return max(self.seconds, self.queries(rate) / rate)

    def arrivals(self, rate: float) -> Times:
        """Return when its queries are issued, in s."""
        queries = self.queries(rate)
        return _unit(self.seed, queries)[:queries] / rate

    def most_late(self, rate: float) -> int:
        """Return how many of its queries may be over a limit: 1 % where it is too short for LoadGen's test."""
        queries = self.queries(rate)
        most = most_over(queries)
        return most if most >= 0 else int((1 - PERCENTILE) * queries)


def _unit(seed: int, queries: float) -> Times:
    """Return a schedule of 1 query/s with more than so many queries."""
    return _of_size(seed, 2 ** math.ceil(math.log2(max(queries, 1) * 1.1 + 500)))


@lru_cache(maxsize=4)
def _of_size(seed: int, queries: int) -> Times:
    return arrivals(1.0, seed, queries)

"""LoadGen's early-stopping test for latency limits: are enough queries within a limit to be sure of its percentile?

The arithmetic is that of mlcommons/inference, loadgen/early_stopping.cc and PerformanceSummary::EarlyStopping in
loadgen/results.cc, in the same order of operations, so that both give the same whole numbers. A query is over the limit
when its latency is greater than the limit. Probabilities and shares are in [0..1].
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache

#: The percentiles that LoadGen judges, in percent (loadgen/mlperf.conf, *.SCENARIO.target_latency_percentile).
PERCENTILES = {"SingleStream": 90.0, "MultiStream": 99.0, "Server": 99.0}
#: That of the limits, as a share.
PERCENTILE = PERCENTILES["Server"] / 100
#: The certainty that LoadGen asks for (loadgen/results.cc, EarlyStopping).
CONFIDENCE = 0.99
#: Below this the terms of the hypergeometric series no longer count (loadgen/early_stopping.cc).
_TOLERANCE = 1.0 / (1 << 33)


def passes(queries: int, over: int, confidence: float = CONFIDENCE) -> bool:
    """Return True if LoadGen accepts the limit after `queries` queries, of which `over` took longer."""
    # Fewer than the percentile within the limit can never pass: a server far beyond its limit costs no series then.
    return over <= (1 - PERCENTILE) * queries and queries >= required_within(over, confidence) + over


def missing_queries(queries: int, over: int) -> int:
    """Return how many more queries, all of them within the limit, the test needs to pass: 0 when it passes."""
    return max(0, required_within(over) + over - queries)


def is_surely_failing(queries: int, over: int, confidence: float = CONFIDENCE) -> bool:
    """Return True if it is certain that fewer than the share PERCENTILE are within the limit.

    It is the same test in the other direction: at that share, as many over the limit are seen with a probability of at
    most 1 - confidence.
    """
    if over <= (1 - PERCENTILE) * queries:
        return False
    if math.exp(-queries * _divergence(over / queries, 1 - PERCENTILE)) < 1 - confidence:  # Chernoff's bound is enough
        return True
    # P(at least `over` of `queries`) is one less P(at most over - 1).
    return 1 - _probability_of_at_most(over - 1, queries - over + 1) < 1 - confidence


@lru_cache(maxsize=4096)
def most_over(queries: int) -> int:
    """Return how many of `queries` may be over a limit so that the test passes; -1 where not one query suffices."""
    counts = range(int((1 - PERCENTILE) * queries) + 1)
    return bisect_left(counts, True, key=lambda over: not passes(queries, over)) - 1


@cache
def required_within(over: int, confidence: float = CONFIDENCE) -> int:
    """Return the least number of queries within the limit at which `over` queries over it are too few by chance."""
    first = math.ceil(math.log(1 - confidence) / math.log(PERCENTILE))
    counts = range(int(over * (PERCENTILE / (1 - PERCENTILE)) + first), int(over * first + first + 1))
    enough = bisect_left(counts, True, key=lambda within: _probability_of_at_most(over, within) < 1 - confidence)
    return counts.start + enough


def percentile(values: Sequence[float], p: float = PERCENTILE) -> float:
    """Return the percentile of `values` as LoadGen takes it: of n values in ascending order the one at n * p."""
    return sorted(values)[int(len(values) * p)]


def wilson_interval(count: int, of: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return Wilson's score interval of the share `count` / `of`, by default that of 95 %; (0, 1) where `of` is 0."""
    if not of:
        return 0.0, 1.0
    share, square = count / of, z * z / of
    middle = share + square / 2
    half = z * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def _probability_of_at_most(over: int, within: int) -> float:
    """Return the probability that at most `over` of over + within queries are over the limit, at the share PERCENTILE.

    It is the regularised incomplete beta function of that share with the parameters `within` and 1 + over.
    """
    a, b, x = within, 1 + over, PERCENTILE
    lbeta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + (b - 1) * math.log(1 - x) - lbeta) / a
    return front * _hypergeometric(1 - b, 1 + a, x / (x - 1))


def _divergence(share: float, other: float) -> float:
    """Return the Kullback-Leibler divergence of two shares in [0..1]."""
    rest = (1 - share) * math.log((1 - share) / (1 - other)) if share < 1 else 0.0
    return share * math.log(share / other) + rest


def _hypergeometric(b: int, c: int, x: float) -> float:
    """Return Gauss' hypergeometric function 2F1(1, b; c; x) (dlmf.nist.gov/15.2.E1)."""
    term = result = 1.0
    i = 0
    while abs(term) > _TOLERANCE:
        term *= (b + i) * x / (c + i)
        result += term
        i += 1
    return result

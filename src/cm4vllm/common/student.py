"""Student's t distribution: how far a mean of few values may be from the truth."""

import math
from functools import cache

#: The most degrees of freedom that differ.
_MOST = 1000


@cache
def student_t(probability: float, freedom: int) -> float:
    """Return the value that Student's t stays below with this probability, above 0.5: 0.975 is 95 % to both sides.

    More degrees of `freedom` than 1,000 count as 1,000, where t is 0.12 % above its limit. The probability is that of
    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4, in the angle whose tangent is t over
    the root of the degrees of freedom.
    """
    freedom = min(freedom, _MOST)
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(angle: float, freedom: int) -> float:
    """Return the probability of a t between those of this angle to both sides."""
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for factor in range(2 if odd else 1, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * factor / (factor + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total

"""Geometry of the small bars: where a value, its limit and its window lie on a line from 0 to 100."""

from __future__ import annotations

from dataclasses import dataclass

from cm4vllm.accuracy.records import Score
from cm4vllm.report.model import Latency

__all__ = ["Bar", "latency_bar", "score_bar"]


@dataclass(frozen=True)
class Bar:
    """A bar from 0 to `value`; `low` to `high` is where it should end. All in percent of the line's length."""

    value: float
    low: float
    high: float
    met: bool


def latency_bar(latency: Latency) -> Bar | None:
    """Return the bar of a latency below its limit: the line ends at the limit, or at the value beyond it."""
    if latency.limit is None:
        return None
    end = max(latency.limit, latency.p99) or 1
    return Bar(value=_part(latency.p99, end), low=0, high=_part(latency.limit, end), met=bool(latency.met))


def score_bar(score: Score) -> Bar:
    """Return the bar of a score above its lower target; the line ends beyond the furthest of value and targets."""
    end = max(score.value, score.lower, score.upper or 0) * 1.08 or 1
    return Bar(
        value=_part(score.value, end), low=_part(score.lower, end),
        high=100 if score.upper is None else _part(score.upper, end), met=score.met,
    )


def _part(value: float, end: float) -> float:
    return round(min(100.0, max(0.0, 100 * value / end)), 2)

"""Geometry of the small drawings: bars on a line from 0 to 100, and a run's requests over its time."""

from collections.abc import Sequence
from dataclasses import dataclass

from cm4vllm.records.accuracy import Score
from cm4vllm.records.metrics import MetricsSample, ServerMetrics
from cm4vllm.results.model import Latency

#: The most points of a line that are drawn.
MAX_POINTS = 120


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


def score_bar(score: Score) -> Bar | None:
    """Return the bar of a score above its lower target; the line ends beyond the furthest of value and targets."""
    if score.met is None:
        return None
    end = max(score.value, score.lower or 0, score.upper or 0) * 1.08 or 1
    return Bar(
        value=_part(score.value, end),
        low=_part(score.lower or 0, end),
        high=100 if score.upper is None else _part(score.upper, end),
        met=score.met,
    )


@dataclass(frozen=True)
class Trace:
    """A run's requests over its time: `running` and `waiting` are an SVG polyline's points in a box of 100 by 20."""

    name: str
    metrics: ServerMetrics
    running: str
    waiting: str


def trace(name: str, metrics: ServerMetrics, samples: Sequence[MetricsSample]) -> Trace:
    """Return the drawing of a run's samples; if there are many, of an even selection."""
    shown = samples[:: max(1, -(-len(samples) // MAX_POINTS))]
    end = max((sample.at_s for sample in shown), default=0) or 1
    top = max((count for sample in shown for count in (sample.running, sample.waiting)), default=0) or 1
    lines = (
        " ".join(f"{100 * sample.at_s / end:.1f},{19.5 - 19 * count / top:.1f}" for sample, count in counts)
        for counts in (((s, s.running) for s in shown), ((s, s.waiting) for s in shown))
    )
    return Trace(name, metrics, *lines)


def _part(value: float, end: float) -> float:
    return round(min(100.0, max(0.0, 100 * value / end)), 2)

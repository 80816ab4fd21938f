"""The limit of each point of a curve: the load, the server, or both, by the throughput of the next point.

Computed from the client's summaries alone. A limit is named only where its numbers stand out.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.number_texts import percent
from cm4vllm.results.endpoints.curves import Curve, Point
from cm4vllm.results.judgement.bottlenecks import MOST, MOST_DECODING

#: Growth of the logarithm of throughput for that of concurrency: from `_LOAD` on the requests in flight are too few to
#: use the server, up to `_SERVER` more of them gain nothing.
_LOAD, _SERVER = 0.8, 0.2


@dataclass(frozen=True)
class Bound:
    """The limit of a point in a few words, and the evidence."""

    words: str
    evidence: str


def bounds(curve: Curve) -> dict[Path, Bound]:
    """Return the limit of each point at fixed concurrency, by its folder; the highest point is set against the last."""
    points = [
        point
        for point in curve.concurrency_points
        if point.concurrency and (point.figures.value("system_tps") or 0) > 0
    ]
    by_folder = {}
    for place, point in enumerate(points):
        low, high = (point, points[place + 1]) if place + 1 < len(points) else (points[max(place - 1, 0)], point)
        if (more := (high.concurrency or 0) / (low.concurrency or 1)) > 1:
            by_folder[point.folder] = _bound_between(point, low, high, more)
    return by_folder


def _bound_between(point: Point, low: Point, high: Point, more: float) -> Bound:
    """Return what limits a point by the growth of tokens/s from `low` to `high`, `more` times its concurrency."""
    gained = high.figures["system_tps"].value / low.figures["system_tps"].value
    growth = math.log(gained) / math.log(more)
    evidence = (
        f"from {low.concurrency:,} to {high.concurrency:,} requests in flight tokens/s change by "
        f"{'+' if gained >= 1 else '-'}{percent(abs(gained - 1))}"
    )
    phase, share = _phase(point)
    evidence += f"; {share}" if share else ""
    if growth >= _LOAD:
        return Bound("the load", evidence)
    return Bound(f"the server{phase}" if growth <= _SERVER else f"load and server{phase}", evidence)


def _phase(point: Point) -> tuple[str, str]:
    """Return the phase that takes most of a request's time, and its share of the time; empty if no phase stands out."""
    first, whole = point.figures.value("ttft_mean"), point.figures.value("latency_mean")
    if first is None or not whole:
        return "", ""
    share = f"{percent(first / whole)} of a request's mean time pass before its first token"
    if first / whole >= MOST:
        return ": before the first token", share
    return (": decoding" if 1 - first / whole >= MOST_DECODING else ""), share

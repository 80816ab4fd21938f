"""Check that a server did not change its speed between the probes that a search compares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from cm4vllm.results.rate_search_record import ProbeRecord
from cm4vllm.serving.metrics_records import Speed

__all__ = ["drift_words"]

#: The ratio of the times of a step in two probes above which the difference is more than noise.
DRIFT = 1.12
#: Probes are compared whose numbers of running requests overlap, or are so near to each other, as a factor.
NEAR = 1.25


def drift_words(probes: Sequence[ProbeRecord]) -> str:
    """Say by how much the server's speed differed from probe to probe at the same load; empty where it hardly did."""
    worst, words = DRIFT, ""
    for probe, other in combinations(probes, 2):
        if probe.speed is None or other.speed is None or (running := _common(probe.speed, other.speed)) is None:
            continue
        (fast_ms, fast), (slow_ms, slow) = sorted(
            [(probe.speed.step_ms(running), probe.number), (other.speed.step_ms(running), other.number)]
        )
        if slow_ms >= worst * fast_ms > 0:
            worst = slow_ms / fast_ms
            words = (
                f"the server's speed changed during the search: with {running:.0f} requests a step took {fast_ms:.1f} "
                f"ms in probe {fast} and {slow_ms:.1f} ms in probe {slow}"
            )
    return words


def _common(speed: Speed, other: Speed) -> float | None:
    """Return the number of requests at which two speeds are compared: the middle of the common range, or of the gap."""
    begin, end = max(speed.low, other.low), min(speed.high, other.high)
    return (begin + end) / 2 if begin <= NEAR * end else None

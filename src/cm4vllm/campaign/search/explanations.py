"""Explanations of a search's probes by the servers' own metrics.

Of one probe the cause of a missed, or nearly missed, limit, with its numbers; of all the probes that a search compares
whether the server changed its speed between them.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from cm4vllm.records.client import HEADROOM
from cm4vllm.records.doubts import headroom
from cm4vllm.records.metrics import ServerMetrics, Speed
from cm4vllm.records.run import RunRecord
from cm4vllm.records.searches.rate_search import ProbeRecord
from cm4vllm.results.judgement.bottlenecks import FULL, UNEXPLAINED, UNEXPLAINED_MS, Cause

#: The ratio of the times of a step in two probes above which the difference is more than noise.
DRIFT = 1.12
#: Probes are compared whose numbers of running requests overlap, or are so near to each other, as a factor.
NEAR = 1.25


def cause_of(binding: str, ttft_ms: float | None, metrics: ServerMetrics, run: RunRecord | None = None) -> Cause | None:
    """Return the cause that bound a probe whose tightest limit is `binding`; None where the metrics show none.

    `ttft_ms` is the mean that the client saw, `run` the record of a probe that was not ended early: it alone tells how
    much more the client could carry.
    """
    room = headroom(run) if run is not None else None
    if room is not None and room < HEADROOM:
        return Cause.CLIENT
    if metrics.preemptions or (metrics.kv_cache_usage_max >= FULL and metrics.waiting_mean >= 1):
        return Cause.KV_CACHE
    if binding != "TTFT":
        return Cause.DECODE if metrics.decode else None
    if metrics.queue is None or metrics.prefill is None:
        return None
    engine_ms = metrics.queue.mean_ms + metrics.prefill.mean_ms
    if ttft_ms is not None and ttft_ms >= UNEXPLAINED * engine_ms + UNEXPLAINED_MS:
        return Cause.HOST
    return Cause.QUEUE if metrics.queue.mean_ms >= metrics.prefill.mean_ms else Cause.PREFILL


def cause_words(
    binding: str, ttft_ms: float | None, metrics: ServerMetrics | None, run: RunRecord | None = None
) -> str:
    """Return the cause with its numbers, empty for a server without metrics."""
    if metrics is None:
        return ""
    cause = cause_of(binding, ttft_ms, metrics, run)
    numbers = ", ".join(_numbers(metrics))
    return f"{cause}: {numbers}" if cause else numbers


def _numbers(metrics: ServerMetrics) -> Iterator[str]:
    yield f"{metrics.waiting_mean:g} requests waited on average, up to {metrics.waiting_max}"
    yield f"KV cache up to {100 * metrics.kv_cache_usage_max:.0f} % used, {metrics.preemptions} preemptions"
    for name in ("queue", "prefill", "decode"):
        if (timing := getattr(metrics, name)) is not None:
            yield f"mean time in {name} {timing.mean_ms:,.1f} ms"
    if metrics.speed is not None and metrics.speed.slowed:
        yield metrics.speed.words


def drift_words(probes: Sequence[ProbeRecord]) -> str:
    """Return by how much the server's speed differed between probes of the same load; empty where it hardly did."""
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

"""Causes of a probe's missed (or nearly missed) limit, by the server's own metrics: their names and numbers."""

from __future__ import annotations

from collections.abc import Iterator

from cm4vllm.loadgen.doubts import headroom
from cm4vllm.loadgen.records import HEADROOM, RunRecord
from cm4vllm.report.bottlenecks import FULL, UNEXPLAINED, UNEXPLAINED_MS, Cause
from cm4vllm.serving.server_metrics import ServerMetrics

__all__ = ["cause_of", "cause_words"]


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

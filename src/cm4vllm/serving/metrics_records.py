"""The records of a server's metrics: one sample, and the summary of a run."""

from __future__ import annotations

from cm4vllm.common.records import Record
from cm4vllm.serving.step_times import Speed

__all__ = ["MetricsSample", "ServerMetrics", "Timing"]


class MetricsSample(Record, frozen=True, kw_only=True):
    """One sample of a server's metrics, `at_s` seconds after the first. Counters count from the server's start.

    `kv_cache_usage` is in [0..1], `cached_prompt_tokens` are those not computed because a cache of any kind had them,
    `media_cache_hits` are clips or images whose processing a cache had.
    """

    at_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    preemptions: int
    prefix_cache_hits: int
    cached_prompt_tokens: int
    prompt_tokens: int
    generation_tokens: int
    media_cache_hits: int = 0


class Timing(Record, frozen=True, kw_only=True):
    """Times of requests in one phase. `p99_at_most_ms` is the upper edge of the bucket that holds the percentile.

    It is None where that bucket has no upper edge.
    """

    requests: int
    mean_ms: float
    p99_at_most_ms: float | None


class ServerMetrics(Record, frozen=True, kw_only=True):
    """The server's metrics of one run: counts are those of the run alone. `missed` samples had no answer.

    `speed` is that of its steps; None where too few samples tell.
    """

    samples: int
    interval_s: float
    missed: int
    running_max: int
    running_mean: float
    waiting_max: int
    waiting_mean: float
    kv_cache_usage_max: float
    preemptions: int
    prefix_cache_hits: int
    cached_prompt_tokens: int
    prompt_tokens: int
    generation_tokens: int
    queue: Timing | None = None
    prefill: Timing | None = None
    decode: Timing | None = None
    speed: Speed | None = None
    media_cache_hits: int = 0

    @property
    def reused(self) -> str:
        """The reason why the rules do not allow this run, empty if they do (inference_rules, Caching)."""
        if self.media_cache_hits:
            return (
                f"the server took {self.media_cache_hits:,} clips or images from a cache (vllm:mm_cache_hits_total): "
                "nothing may be reused between queries"
            )
        if not self.prefix_cache_hits and not self.cached_prompt_tokens:
            return ""
        return (
            f"the server took {max(self.prefix_cache_hits, self.cached_prompt_tokens):,} prompt tokens from a "
            "cache: nothing may be reused between queries"
        )

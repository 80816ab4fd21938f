"""The records of a server's metrics: one sample, the summary of a run, and the steadiness of the server during it.

Steadiness is that of its steps' times, beyond the part that the number of requests explains. Each step of the engine
gives every running request one token, and takes the longer, the more of them there are. So the time of a step is
running requests / (tokens/s), and a line over the number of requests describes it. What deviates from that line for
long is not the number of requests. Where many prompts are computed, as when the batch of an Offline run is filled,
steps take longer, too: such parts of a run are left out.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from cm4vllm.common.records import Record, read_sample_file

#: A run is compared in so many parts, each from the shortest to the longest time in seconds.
PARTS, SHORTEST_S, LONGEST_S = 20, 10.0, 30.0
#: Fewer parts do not tell what is typical, and fewer times between samples tell no speed.
LEAST_PARTS, LEAST_SPANS = 5, 6
#: A part is slow whose speed is below this, and so many times farther from the median part than the others mostly are.
SLOW, TIMES = 0.88, 4.0
#: A part is left out that computes so many times as many tokens of prompts for each generated one as the median part.
MORE_PROMPTS = 1.5
#: Standard deviations per median absolute deviation, where the deviations have a normal distribution.
_DEVIATIONS = 1.4826
#: A line needs so different numbers of requests, as a part of the highest; else a step has one mean time.
_SPREAD = 0.1
#: The name of the samples' file in a run's folder: one JSON object a line, the first from before the first query.
METRICS_FILE = "server_metrics.jsonl"
#: The name of the file with the samples of the GPUs in a run's folder: one JSON object a line.
GPU_SAMPLES_FILE = "gpu_metrics.jsonl"


class GpuSample(Record, frozen=True, kw_only=True):
    """One GPU at one time. `utilisation` is the part of the last second in which a kernel ran, in [0..1].

    None stands for what the driver does not report.
    """

    index: int
    name: str
    utilisation: float | None = None
    power_w: float | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    sm_mhz: int | None = None


class GpusSample(Record, frozen=True, kw_only=True):
    """All GPUs, `at_s` seconds after the run began."""

    at_s: float
    gpus: list[GpuSample]


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


class Speed(Record, frozen=True, kw_only=True):
    """The time of a server's steps in a run, in ms: `base_ms` + `per_request_ms` * running requests.

    In half of the time in which requests were running there were `low` to `high` of them: of other numbers the line
    says little. `slowest` is the speed in the slowest part of the run, from `slowest_from_s` to `slowest_to_s` after
    the first sample, as a share of that in the median part at the same number of requests; `scatter` is how far the
    parts are from that median, as one standard deviation.
    """

    base_ms: float
    per_request_ms: float
    low: float
    high: float
    parts: int
    slowest: float
    slowest_from_s: float
    slowest_to_s: float
    scatter: float

    def step_ms(self, running: float) -> float:
        """Return the time of a step in ms with so many requests."""
        return self.base_ms + self.per_request_ms * running

    @property
    def slowed(self) -> bool:
        """Return True if a part of the run was slower than the number of requests explains."""
        return self.parts >= LEAST_PARTS and self.slowest < SLOW and 1 - self.slowest > TIMES * self.scatter

    @property
    def words(self) -> str:
        """The slower parts and their times in words; empty if there were none."""
        if not self.slowed:
            return ""
        return (
            f"from {self.slowest_from_s:.0f} to {self.slowest_to_s:.0f} s the server generated "
            f"{100 * (1 - self.slowest):.0f} % fewer tokens/s than in most of the run with as many requests"
        )


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
    def reason_of_reuse(self) -> str:
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


class _Span(Record, frozen=True, kw_only=True):
    """The time between two samples: its end, its length, the requests that were running, and their tokens."""

    end_s: float
    seconds: float
    running: float
    tokens: int
    prompt_tokens: int

    @property
    def step_s(self) -> float:
        """Return the mean time of one step of the engine, in s."""
        return self.running * self.seconds / self.tokens


def speed_of(samples: Sequence[MetricsSample]) -> Speed | None:
    """Return the speed by the samples of a run; None where they are too few, or the server was hardly used."""
    spans = [
        _Span(
            end_s=after.at_s,
            seconds=after.at_s - before.at_s,
            running=(before.running + after.running) / 2,
            tokens=after.generation_tokens - before.generation_tokens,
            prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        )
        for before, after in pairwise(samples)
        if before.running and after.running and after.generation_tokens > before.generation_tokens
    ]
    spans = [span for span in spans if span.seconds > 0]
    if len(spans) < LEAST_SPANS:
        return None
    base_s, per_request_s = _line(spans)
    parts = _speed_of_parts(spans, base_s, per_request_s)
    if not parts:
        return None
    typical = median(parts.values())
    speeds = {part: speed / typical for part, speed in parts.items()}
    slowest = min(speeds, key=lambda part: speeds[part])
    length = _part_s(spans)
    low, _, high = quantiles((span.running for span in spans), n=4)
    return Speed(
        base_ms=round(1000 * base_s / typical, 3),
        per_request_ms=round(1000 * per_request_s / typical, 5),
        low=round(low, 1),
        high=round(high, 1),
        parts=len(parts),
        slowest=round(speeds[slowest], 3),
        slowest_from_s=round(slowest * length, 1),
        slowest_to_s=round(min((slowest + 1) * length, spans[-1].end_s), 1),
        scatter=round(_DEVIATIONS * median(abs(speed - 1) for speed in speeds.values()), 4),
    )


def _line(spans: Sequence[_Span]) -> tuple[float, float]:
    """Return base and slope, in s, of the time of a step over the number of requests, by the outer thirds' medians."""
    ordered = sorted(spans, key=lambda span: span.running)
    third = max(1, len(ordered) // 3)
    low, high = ordered[:third], ordered[-third:]
    apart = median(span.running for span in high) - median(span.running for span in low)
    slope = 0.0
    if apart >= _SPREAD * ordered[-1].running:
        slope = max(0.0, (median(span.step_s for span in high) - median(span.step_s for span in low)) / apart)
    return max(0.0, median(span.step_s - slope * span.running for span in spans)), slope


def _speed_of_parts(spans: Sequence[_Span], base_s: float, per_request_s: float) -> dict[int, float]:
    """Return the speed of each part of the run that the samples mostly cover, as a share of that by the line."""
    length = _part_s(spans)
    parts: dict[int, list[_Span]] = {}
    for span in spans:
        parts.setdefault(int((span.end_s - span.seconds / 2) / length), []).append(span)
    prompts = {number: _prompts(inside) for number, inside in parts.items()}
    most = MORE_PROMPTS * median(prompts.values())
    return {
        number: sum(span.tokens for span in inside)
        / sum(span.seconds * span.running / (base_s + per_request_s * span.running) for span in inside)
        for number, inside in parts.items()
        if sum(span.seconds for span in inside) > length / 2 and prompts[number] <= most
    }


def _prompts(spans: Sequence[_Span]) -> float:
    """Return the tokens of prompts for each generated one."""
    return sum(span.prompt_tokens for span in spans) / sum(span.tokens for span in spans)


def _part_s(spans: Sequence[_Span]) -> float:
    """Return the length of a part; the last one is as long as the others."""
    end_s = spans[-1].end_s
    return end_s / max(1, round(end_s / min(LONGEST_S, max(SHORTEST_S, end_s / PARTS))))


def read_samples(path: Path) -> list[MetricsSample]:
    """Return the samples in a file, oldest first; none where there is no file."""
    return read_sample_file(path, MetricsSample)

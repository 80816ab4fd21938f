"""The /metrics page of a simulated server: it has vLLM's names, so that a run reads it like vLLM's page."""

import time
from bisect import bisect_left
from dataclasses import dataclass, field

#: When this process started, in seconds since 1970.
PROCESS_STARTED_S = time.time()
#: Upper edges of the buckets in s, those of vLLM.
_EDGES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)


@dataclass
class Histogram:
    """Times in s."""

    total: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))

    def add(self, seconds: float) -> None:
        self.total += seconds
        self.counts[bisect_left(_EDGES, seconds)] += 1

    def lines(self, name: str, labels: str) -> list[str]:
        lines, below = [f"# TYPE {name} histogram"], 0
        for edge, count in zip((*_EDGES, float("inf")), self.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{"+Inf" if edge == float("inf") else edge}",{labels}}} {below}')
        return [*lines, f"{name}_sum{{{labels}}} {self.total}", f"{name}_count{{{labels}}} {below}"]


@dataclass
class Counts:
    """Counts of the server's work; `late_s` is its longest delay of a step, caused by this machine being too slow."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    late_s: float = 0.0
    queue: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)


def metrics_page(
    counts: Counts, model: str, *, running: int, waiting: int, kv_cache_usage: float, preemptions: int
) -> str:
    """Return the page in Prometheus' text format."""
    labels = f'engine="0",model_name="{model}"'
    values = (
        ("gauge", "vllm:num_requests_running", running),
        ("gauge", "vllm:num_requests_waiting", waiting),
        ("gauge", "vllm:kv_cache_usage_perc", round(kv_cache_usage, 6)),
        ("gauge", "cm4vllm:late_seconds", f"{counts.late_s:.3f}"),
        ("counter", "vllm:num_preemptions", preemptions),
        ("counter", "vllm:prefix_cache_hits", 0),
        ("counter", "vllm:prompt_tokens_cached", 0),
        ("counter", "vllm:prompt_tokens", counts.prompt_tokens),
        ("counter", "vllm:generation_tokens", counts.generation_tokens),
    )
    lines = [
        f'vllm:cache_config_info{{enable_prefix_caching="False",{labels}}} 1.0',
        f"process_start_time_seconds {PROCESS_STARTED_S:.2f}",
    ]
    for kind, name, value in values:
        lines += [f"# TYPE {name} {kind}", f"{name}{'_total' if kind == 'counter' else ''}{{{labels}}} {value}"]
    for name, timing in (("queue", counts.queue), ("prefill", counts.prefill), ("decode", counts.decode)):
        lines += timing.lines(f"vllm:request_{name}_time_seconds", labels)
    return "\n".join(lines) + "\n"

"""A test peer that shows metrics as vLLM does."""

import threading

from fake_vllm import Behaviour, FakeVllm


class Peer(FakeVllm):
    """Shows the metrics of vLLM at /metrics: its requests are counted, the rest is what a server at work shows."""

    def __init__(self) -> None:
        super().__init__(Behaviour(token_delay_s=0.002, metrics=self.page))
        self._lock = threading.Lock()
        self._looks = 0

    def page(self) -> str:
        with self._lock:
            self._looks += 1
        done = len(self.bodies)
        lines = [
            f'vllm:num_requests_running{{engine="0"}} {min(done, 8 * (self._looks % 3))}',
            f'vllm:num_requests_waiting{{engine="0"}} {self._looks % 2}',
            f'vllm:kv_cache_usage_perc{{engine="0"}} {0.1 * (self._looks % 4)}',
            "vllm:num_preemptions_total 0",
            "vllm:prefix_cache_hits_total 0",
            "vllm:prompt_tokens_cached_total 0",
            f"vllm:prompt_tokens_total {20 * done}",
            f"vllm:generation_tokens_total {40 * done}",
        ]
        for name, mean in (("queue", 0.001), ("prefill", 0.004), ("decode", 0.12)):
            metric = f"vllm:request_{name}_time_seconds"
            lines += [
                f"# TYPE {metric} histogram",
                f'{metric}_bucket{{le="0.3"}} {done}',
                f'{metric}_bucket{{le="+Inf"}} {done}',
                f"{metric}_sum {mean * done}",
                f"{metric}_count {done}",
            ]
        return "\n".join(lines) + "\n"

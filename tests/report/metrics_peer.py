"""A test peer that shows metrics as vLLM does."""

from itertools import count

from fake_vllm import Behaviour, FakeVllm

from cm4vllm.campaign.rehearsal.metrics import Counts, Histogram, metrics_page


class Peer(FakeVllm):
    """Shows the metrics of vLLM at /metrics: its requests are counted, the rest is what a server at work shows."""

    def __init__(self):
        super().__init__(Behaviour(token_delay_s=0.002, metrics=self.page))
        self._looks = count(1)

    def page(self):
        done, look = len(self.bodies), next(self._looks)
        timings = {name: Histogram() for name in ("queue", "prefill", "decode")}
        for timing, mean_s in zip(timings.values(), (0.001, 0.004, 0.12), strict=True):
            for _ in range(done):
                timing.add(mean_s)
        counts = Counts(prompt_tokens=20 * done, generation_tokens=40 * done, **timings)
        working = {"running": min(done, 8 * (look % 3)), "waiting": look % 2, "kv_cache_usage": 0.1 * (look % 4)}
        return metrics_page(counts, "tiny", **working, preemptions=0)

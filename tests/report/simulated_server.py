"""The server metrics of a run on a simulated vLLM of known limits: the batching is that of rehearsals."""

import random
from itertools import repeat

from cm4vllm.campaign.rehearsal.batching import Batch
from cm4vllm.campaign.rehearsal.profile import ServerTimes
from cm4vllm.records.metrics import ServerMetrics, Timing


class SimulatedServer:
    """`run` gives queries of a Poisson process, or all at once where `qps` is 0, and returns the server's metrics.

    `times` has the moments of each query in ms: due, begun, first token, end, and the tokens of its answer.
    """

    def __init__(self, *, sequences=64, step_ms=10.0, prefill_ms_per_token=0.01, kv_tokens=10**9):
        self.sequences, self.step_ms = sequences, step_ms
        limits = {"max_num_seqs": sequences, "max_num_batched_tokens": 10**9, "kv_tokens": kv_tokens}
        times = {"step_s": step_ms / 1e3, "each_s": 0.0, "token_s": prefill_ms_per_token / 1e3, "noise": 0.0}
        self.system = ServerTimes(**times, **limits, max_model_len=10**6)
        self.times: list[tuple[float, float, float, float, int]] = []

    def run(self, *, count=300, qps=0.0, prompt=100, answer=60):
        draw, batch = random.Random(1), Batch(self.system, repeat(1.0))
        gaps = [1000 * draw.expovariate(qps) if qps else 0.0 for _ in range(count)]
        answers = [draw.randint(answer // 2, 3 * answer // 2) for _ in range(count)]
        due, now, seen = [sum(gaps[: number + 1]) for number in range(count)], 0.0, []
        began, first, end = dict[int, float](), dict[int, float](), dict[int, float]()
        while len(end) < count:
            if batch.is_idle:
                now = max(now, due[len(batch.left)])
            while len(batch.left) < count and due[len(batch.left)] <= now:
                batch.add(prompt, answers[len(batch.left)])
            took, ready, done = batch.step()
            began.update((number, now) for number in batch.scheduled if number not in began)
            now += 1000 * took
            first.update((number, now) for number in ready if number not in first)
            end.update((number, now) for number in done)
            seen.append((batch.running + len(done), batch.waiting, min(1.0, batch.used / self.system.kv_tokens)))
        self.times = [(due[n], began[n], first[n], end[n], answers[n]) for n in range(count)]
        running, waiting, used = zip(*seen, strict=True)
        return ServerMetrics(
            samples=len(seen),
            interval_s=self.step_ms / 1e3,
            missed=0,
            running_max=max(running),
            running_mean=sum(running) / len(seen),
            waiting_max=max(waiting),
            waiting_mean=sum(waiting) / len(seen),
            kv_cache_usage_max=max(used),
            preemptions=batch.preemptions,
            prefix_cache_hits=0,
            cached_prompt_tokens=0,
            prompt_tokens=prompt * count,
            generation_tokens=sum(answers),
            queue=self._timing(0, 1),
            prefill=self._timing(1, 2),
            decode=self._timing(2, 3),
        )

    def spans(self, begin, end):
        """Return the times in ms between two moments of the queries, the shortest first."""
        return sorted(times[end] - times[begin] for times in self.times)

    def _timing(self, begin, end):
        spans = self.spans(begin, end)
        return Timing(requests=len(spans), mean_ms=sum(spans) / len(spans), p99_at_most_ms=None)

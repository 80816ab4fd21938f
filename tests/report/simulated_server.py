"""A simulated vLLM server of known limits: which requests run, wait and are preempted, step by step.

A step gives each running request a token, and takes `step_ms` and `prefill_ms_per_token` for each prompt token that it
reads. A request runs when there is a place among `sequences`, and room for its prompt and answer in `kv_tokens`, of
which nothing is kept for later: a running request that finds no room is preempted and begins again.
"""

import random
from dataclasses import dataclass, field

from cm4vllm.records.metrics import ServerMetrics, Timing


@dataclass
class _Request:
    due_ms: float
    prompt: int
    answer: int
    began_ms: float = -1.0
    first_ms: float = -1.0
    end_ms: float = -1.0
    done: int = 0


@dataclass
class SimulatedServer:
    """`run` gives requests of a Poisson process, or all at once where `qps` is 0, and returns the server's metrics."""

    sequences: int = 64
    step_ms: float = 10.0
    prefill_ms_per_token: float = 0.01
    kv_tokens: int = 10**9
    preemptions: int = 0
    requests: list[_Request] = field(default_factory=list)

    def run(self, *, count: int = 300, qps: float = 0.0, prompt: int = 100, answer: int = 60) -> ServerMetrics:
        draw = random.Random(1)
        due = 0.0
        for _ in range(count):
            due += 1000 * draw.expovariate(qps) if qps else 0.0
            self.requests.append(_Request(due, prompt, draw.randint(answer // 2, 3 * answer // 2)))
        waiting, running, now = list(self.requests), [], 0.0
        seen: list[tuple[int, int, float]] = []
        while waiting or running:
            came = [request for request in waiting if request.due_ms <= now]
            if not came and not running:
                now = waiting[0].due_ms
                continue
            step = self.step_ms
            for request in came[: self.sequences - len(running)]:
                if self._held(running) + request.prompt + 1 > self.kv_tokens:
                    break
                waiting.remove(request)
                running.append(request)
                request.began_ms = now if request.began_ms < 0 else request.began_ms
                step += self.prefill_ms_per_token * (request.prompt + request.done)
            while self._held(running) + len(running) > self.kv_tokens and len(running) > 1:
                last = running.pop()
                waiting.insert(0, last)
                self.preemptions += 1
            now += step
            for request in running:
                request.first_ms = now if request.first_ms < 0 else request.first_ms
                request.done += 1
                request.end_ms = now
            seen.append(
                (
                    len(running),
                    len([request for request in waiting if request.due_ms <= now]),
                    min(1.0, self._held(running) / self.kv_tokens),
                )
            )
            running = [request for request in running if request.done < request.answer]
        return self._metrics(seen)

    def mean(self, begin: str, end: str) -> float:
        """Return the mean time in ms between two moments of the requests."""
        return sum(getattr(request, end) - getattr(request, begin) for request in self.requests) / len(self.requests)

    def p99(self, begin: str, end: str) -> float:
        spans = sorted(getattr(request, end) - getattr(request, begin) for request in self.requests)
        return spans[int(0.99 * len(spans))]

    def _held(self, running: list[_Request]) -> int:
        return sum(request.prompt + request.done for request in running)

    def _metrics(self, seen: list[tuple[int, int, float]]) -> ServerMetrics:
        def timing(begin: str, end: str) -> Timing:
            return Timing(requests=len(self.requests), mean_ms=self.mean(begin, end), p99_at_most_ms=None)

        return ServerMetrics(
            samples=len(seen),
            interval_s=self.step_ms / 1e3,
            missed=0,
            running_max=max(sample[0] for sample in seen),
            running_mean=sum(sample[0] for sample in seen) / len(seen),
            waiting_max=max(sample[1] for sample in seen),
            waiting_mean=sum(sample[1] for sample in seen) / len(seen),
            kv_cache_usage_max=max(sample[2] for sample in seen),
            preemptions=self.preemptions,
            prefix_cache_hits=0,
            cached_prompt_tokens=0,
            prompt_tokens=sum(request.prompt for request in self.requests),
            generation_tokens=sum(request.answer for request in self.requests),
            queue=timing("due_ms", "began_ms"),
            prefill=timing("began_ms", "first_ms"),
            decode=timing("first_ms", "end_ms"),
        )

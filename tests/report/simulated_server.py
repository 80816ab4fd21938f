"""A simulated vLLM server of known limits: which requests run, wait and are preempted, step by step.

A step gives each running request a token, and takes `step_ms` and `prefill_ms_per_token` for each prompt token that it
reads. A request runs when there is a place among `sequences`, and room for its prompt and answer in `kv_tokens`, of
which nothing is kept for later: a running request that finds no room is preempted and begins again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cm4vllm.serving.server_metrics import ServerMetrics, Timing


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
            came = [one for one in waiting if one.due_ms <= now]
            if not came and not running:
                now = waiting[0].due_ms
                continue
            step = self.step_ms
            for one in came[: self.sequences - len(running)]:
                if self._held(running) + one.prompt + 1 > self.kv_tokens:
                    break
                waiting.remove(one)
                running.append(one)
                one.began_ms = now if one.began_ms < 0 else one.began_ms
                step += self.prefill_ms_per_token * (one.prompt + one.done)
            while self._held(running) + len(running) > self.kv_tokens and len(running) > 1:
                last = running.pop()
                waiting.insert(0, last)
                self.preemptions += 1
            now += step
            for one in running:
                one.first_ms = now if one.first_ms < 0 else one.first_ms
                one.done += 1
                one.end_ms = now
            seen.append(
                (
                    len(running),
                    len([one for one in waiting if one.due_ms <= now]),
                    min(1.0, self._held(running) / self.kv_tokens),
                )
            )
            running = [one for one in running if one.done < one.answer]
        return self._metrics(seen)

    def mean(self, begin: str, end: str) -> float:
        """Return the mean time in ms between two moments of the requests."""
        return sum(getattr(one, end) - getattr(one, begin) for one in self.requests) / len(self.requests)

    def p99(self, begin: str, end: str) -> float:
        spans = sorted(getattr(one, end) - getattr(one, begin) for one in self.requests)
        return spans[int(0.99 * len(spans))]

    def _held(self, running: list[_Request]) -> int:
        return sum(one.prompt + one.done for one in running)

    def _metrics(self, seen: list[tuple[int, int, float]]) -> ServerMetrics:
        def timing(begin: str, end: str) -> Timing:
            return Timing(requests=len(self.requests), mean_ms=self.mean(begin, end), p99_at_most_ms=None)

        return ServerMetrics(
            samples=len(seen),
            interval_s=self.step_ms / 1e3,
            missed=0,
            running_max=max(one[0] for one in seen),
            running_mean=sum(one[0] for one in seen) / len(seen),
            waiting_max=max(one[1] for one in seen),
            waiting_mean=sum(one[1] for one in seen) / len(seen),
            kv_cache_usage_max=max(one[2] for one in seen),
            preemptions=self.preemptions,
            prefix_cache_hits=0,
            cached_prompt_tokens=0,
            prompt_tokens=0,
            generation_tokens=0,
            queue=timing("due_ms", "began_ms"),
            prefill=timing("began_ms", "first_ms"),
            decode=timing("first_ms", "end_ms"),
        )

"""Continuous batching as vLLM schedules it, step by step, on any clock: what a simulated server has to do.

Times are in s. Nothing measured on it is a result.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cm4vllm.campaign.rehearsal.profile import ServerTimes

#: Random numbers are drawn so many at a time.
_BLOCK = 4096


class Batch:
    """The work of a server with these times: queries are added at any time and handled step by step, on any clock.

    Batching is continuous, with a KV cache and chunked prefill, as vLLM schedules it. A step handles one token of each
    answer under way first, then those of prompts, in the order of arrival. A query is begun when its prompt has room in
    the cache. When the cache is full, the query begun last loses its tokens there, and its prompt and what was answered
    are computed again.

    A query is known by the number that `add` gives it. `answering` are those whose prompt is computed and whose answer
    is not whole; of the answer to query n, `left[n]` tokens are still to come. `used` tokens are in the KV cache,
    `preemptions` counts the queries that lost theirs. `scheduled` are those that the last step has begun with.
    """

    def __init__(self, system: ServerTimes, factors: Iterator[float]) -> None:
        self.left: list[int] = []
        self.answering: list[int] = []
        self.scheduled: list[int] = []
        self.used = self.preemptions = 0
        self._system, self._factors = system, factors
        self._prompts: list[int] = []
        self._tokens: list[int] = []
        self._todo: list[int] = []  # the prompt's tokens that are not computed yet, or were lost by preemption
        self._waiting: deque[int] = deque()
        self._begun: deque[int] = deque()  # queries whose prompt is not wholly computed

    def add(self, prompt: int, tokens: int) -> int:
        """Add a query with a prompt and an answer of so many tokens; return its number."""
        self._prompts.append(prompt)
        self._tokens.append(tokens)
        self._todo.append(prompt)
        self.left.append(tokens)
        self._waiting.append(len(self.left) - 1)
        return len(self.left) - 1

    def drop(self, number: int) -> None:
        """Drop a query that is not answered yet, and what it has in the cache."""
        if number in self._waiting:
            self._waiting.remove(number)
            return
        without_token = number in self._begun
        (self._begun if without_token else self.answering).remove(number)
        self.used -= self._cached_tokens(number) + without_token

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self.answering) + len(self._begun)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._begun or self.answering)

    def step(self) -> tuple[float, list[int], list[int]]:
        """Take a step; return its duration, the requests whose prompts it ends, and those whose answers it ends."""
        system, answering, self.scheduled = self._system, self.answering, []
        while self.used + len(answering) > system.kv_tokens and len(answering) + len(self._begun) > 1:
            self._preempt()
        self.used += len(answering)
        ready, chunk = self._prefill(system.max_num_batched_tokens - len(answering))
        took = (system.step_s + system.each_s * len(answering) + system.token_s * chunk) * next(self._factors)
        left, still, done = self.left, list[int](), list[int]()
        for request in answering + ready:
            left[request] -= 1
            if left[request]:
                still.append(request)
            else:
                done.append(request)
                self.used -= self._prompts[request] + self._tokens[request]
        self.answering = still
        return took, ready, done

    def _prefill(self, budget: int) -> tuple[list[int], int]:
        """Compute prompts within the budget of tokens; return those whose prompt is whole now, and the tokens."""
        system, todo, ready, chunk = self._system, self._todo, list[int](), 0
        while budget > 0:
            if not self._begun:
                if not self._waiting or len(self.answering) + len(ready) >= system.max_num_seqs:
                    break
                needed = todo[self._waiting[0]] + 1
                if self.used + needed > system.kv_tokens and (self.answering or ready):
                    break
                self.used += needed
                self.scheduled.append(self._waiting[0])
                self._begun.append(self._waiting.popleft())
            request = self._begun[0]
            part = min(budget, todo[request])
            todo[request] -= part
            budget -= part
            chunk += part
            if not todo[request]:
                ready.append(self._begun.popleft())
        return ready, chunk

    def _preempt(self) -> None:
        without_token = bool(self._begun)  # room for the token that follows the prompt is taken with it
        request = self._begun.pop() if without_token else self.answering.pop()
        held = self._cached_tokens(request)
        self.used -= held + without_token
        self._todo[request] = held
        self._waiting.appendleft(request)
        self.preemptions += 1

    def _cached_tokens(self, number: int) -> int:
        """Return how many tokens of its prompt and of its answer so far a query has in the cache."""
        return self._prompts[number] + self._tokens[number] - self.left[number]


def drawn_factors(noise: np.random.Generator, spread: float, count: int) -> npt.NDArray[np.float64]:
    """Return factors of mean 1 whose logarithm has the standard deviation `spread`."""
    return np.exp(spread * noise.standard_normal(count) - spread**2 / 2)


def step_factors(noise: np.random.Generator, spread: float) -> Iterator[float]:
    """Yield such factors, those of the steps of a server, without end."""
    while True:
        yield from drawn_factors(noise, spread, _BLOCK).tolist() if spread else [1.0] * _BLOCK

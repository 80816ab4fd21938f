"""Simulated servers on a simulated clock. Nothing measured on them is a result.

Times are in s, rates in queries/s. `lengths` gives what LoadGen's seeds fix, the samples and with them the lengths of
prompts and answers, the same in each run; `noise` gives what differs between runs. The same seeds give the same run.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cm4vllm.loadgen.arrivals import Times

__all__ = ["Batch", "Batching", "Drift", "Drifting", "Paged", "Queue", "Served", "System", "simulated", "step_factors"]

Tokens = npt.NDArray[np.int64]
#: Random numbers are drawn so many at a time.
_BLOCK = 4096


@dataclass(frozen=True)
class Served:
    """What became of the queries, in the order of issue: when they were issued, and when their first and last tokens
    came; and the number of their tokens.
    """

    issued: Times
    first: Times
    done: Times
    tokens: Tokens

    @property
    def ttft_ms(self) -> Times:
        return 1000 * (self.first - self.issued)

    @property
    def tpot_ms(self) -> Times:
        return 1000 * (self.done - self.first) / (self.tokens - 1)


class System(Protocol):
    """A simulated server."""

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        """Return what becomes of the queries. Raises ServerDied."""


@dataclass(frozen=True)
class Drift:
    """A change of a machine's speed: from `at_s` on it does `factor` times as much in a second."""

    at_s: float
    factor: float

    def work(self, times: Times) -> Times:
        """Return the seconds of work, at the first speed, that the machine can do until each time."""
        return np.minimum(times, self.at_s) + self.factor * np.maximum(times - self.at_s, 0)

    def times(self, work: Times) -> Times:
        """Return when the machine has done so much work: the inverse of `work`."""
        return np.minimum(work, self.at_s) + np.maximum(work - self.at_s, 0) / self.factor


@dataclass(frozen=True)
class Drifting:
    """A system on a machine whose speed changes."""

    system: System
    drift: Drift

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        served = self.system.serve(self.drift.work(issued), lengths, noise)
        return Served(issued, self.drift.times(served.first), self.drift.times(served.done), served.tokens)


@dataclass(frozen=True)
class Queue:
    """M/D/c: `servers` that each answer one query at a time in `service_s`, first come, first served.

    `noise` is the standard deviation of the logarithm of a service time, 0 for one that is always the same.
    """

    servers: int
    service_s: float
    tokens: int = 50
    noise: float = 0.0

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        took = np.full(len(issued), self.service_s)
        if self.noise:
            took *= _drawn(noise, self.noise, len(issued))
        free, done = [0.0] * self.servers, []
        for at, one in zip(issued.tolist(), took.tolist(), strict=True):
            now = free[0] if free[0] > at else at
            heapq.heapreplace(free, now + one)
            done.append(now + one)
        end = np.array(done)
        return Served(issued, end - took * (1 - 1 / self.tokens), end, np.full(len(issued), self.tokens))


@dataclass(frozen=True)
class Batching:
    """Continuous batching: a step makes a token of each of at most `sequences` answers.

    A step takes `step_s`, `each_s` more for each running sequence and `prefill_s` for each that begins in it, of which
    there are at most `prefills`. Answers have from `shortest` to `longest` tokens. `noise` is the standard deviation of
    the logarithm of a step's time; one step in `stall_every` takes `stall_s` longer.
    """

    step_s: float = 0.02
    each_s: float = 0.0005
    prefill_s: float = 0.003
    sequences: int = 128
    prefills: int = 16
    shortest: int = 20
    longest: int = 60
    noise: float = 0.0
    stall_every: int = 0
    stall_s: float = 0.0

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        count, at = len(issued), issued.tolist()
        tokens = lengths.integers(self.shortest, self.longest + 1, count)
        each, factors = tokens.tolist(), step_factors(noise, self.noise)
        first, done = [0.0] * count, [0.0] * count
        leaving: dict[int, list[int]] = {}
        now, coming, running, step = 0.0, 0, 0, 0
        while coming < count or running:
            if not running and at[coming] > now:
                now = at[coming]
            begun = coming
            last = min(count, coming + self.prefills, coming + self.sequences - running)
            while coming < last and at[coming] <= now:
                leaving.setdefault(step + each[coming] - 1, []).append(coming)
                coming += 1
            running += coming - begun
            now += self._step(running, coming - begun, step) * next(factors)
            first[begun:coming] = [now] * (coming - begun)
            for one in leaving.pop(step, ()):
                done[one] = now
                running -= 1
            step += 1
        return Served(issued, np.array(first), np.array(done), tokens)

    def _step(self, running: int, begun: int, step: int) -> float:
        took = self.step_s + self.each_s * running + self.prefill_s * begun
        if self.stall_every and step % self.stall_every == self.stall_every - 1:
            took += self.stall_s
        return took


@dataclass(frozen=True)
class Paged:
    """Continuous batching with a KV cache of `blocks` tokens and chunked prefill, as vLLM schedules it.

    A step handles at most `batched` tokens: one of each answer under way first, then those of prompts, in the order of
    arrival. It takes `step_s`, `each_s` for each answer under way and `token_s` for each token of a prompt. A query is
    begun when its prompt has room in the cache. When the cache is full, the query begun last loses its tokens
    there, and its prompt and what was answered are computed again. Prompts have from `prompt_least` to `prompt_most`
    tokens, answers from `shortest` to `longest`.
    """

    step_s: float = 0.01
    each_s: float = 0.0002
    token_s: float = 0.00001
    blocks: int = 16_000
    batched: int = 2048
    sequences: int = 256
    prompt_least: int = 100
    prompt_most: int = 900
    shortest: int = 20
    longest: int = 100
    noise: float = 0.0

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        sizes = lengths.integers(
            (self.prompt_least, self.shortest), (self.prompt_most + 1, self.longest + 1), (len(issued), 2)
        )
        return simulated(Batch(self, step_factors(noise, self.noise)), issued, sizes[:, 0], sizes[:, 1])


class Batch:
    """What a Paged server has to do: queries are added at any time and handled step by step, on any clock.

    A query is known by the number that `add` gives it. `answering` are those whose prompt is computed and whose answer
    is not whole; of the answer to query n, `left[n]` tokens are still to come. `used` tokens are in the KV cache,
    `preemptions` counts the queries that lost theirs. `scheduled` are those that the last step has begun with.
    """

    def __init__(self, system: Paged, factors: Iterator[float]) -> None:
        self.left: list[int] = []
        self.answering: list[int] = []
        self.scheduled: list[int] = []
        self.used = self.preemptions = 0
        self._system, self._factors = system, factors
        self._prompts: list[int] = []
        self._tokens: list[int] = []
        self._todo: list[int] = []  # the prompt's tokens not computed yet, and those that a preempted query lost
        self._waiting: deque[int] = deque()
        self._begun: deque[int] = deque()  # those whose prompt is not wholly computed

    def add(self, prompt: int, tokens: int) -> int:
        """Add a query with a prompt and an answer of so many tokens; return its number."""
        self._prompts.append(prompt)
        self._tokens.append(tokens)
        self._todo.append(prompt)
        self.left.append(tokens)
        self._waiting.append(len(self.left) - 1)
        return len(self.left) - 1

    def drop(self, number: int) -> None:
        """Give up a query that is not answered yet, and what it has in the cache."""
        if number in self._waiting:
            self._waiting.remove(number)
            return
        without_token = number in self._begun
        (self._begun if without_token else self.answering).remove(number)
        self.used -= self._held(number) + without_token

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
        """Take a step; return how long it takes, whose prompts are whole with it, and whose answers."""
        system, answering, self.scheduled = self._system, self.answering, []
        while self.used + len(answering) > system.blocks and len(answering) + len(self._begun) > 1:
            self._preempt()
        self.used += len(answering)
        ready, chunk = self._prefill(system.batched - len(answering))
        took = (system.step_s + system.each_s * len(answering) + system.token_s * chunk) * next(self._factors)
        left, still, done = self.left, list[int](), list[int]()
        for one in answering + ready:
            left[one] -= 1
            if left[one]:
                still.append(one)
            else:
                done.append(one)
                self.used -= self._prompts[one] + self._tokens[one]
        self.answering = still
        return took, ready, done

    def _prefill(self, budget: int) -> tuple[list[int], int]:
        """Compute prompts within the budget of tokens; return those whose prompt is whole now, and the tokens."""
        system, todo, ready, chunk = self._system, self._todo, list[int](), 0
        while budget > 0:
            if not self._begun:
                if not self._waiting or len(self.answering) + len(ready) >= system.sequences:
                    break
                needed = todo[self._waiting[0]] + 1
                if self.used + needed > system.blocks and (self.answering or ready):
                    break
                self.used += needed
                self.scheduled.append(self._waiting[0])
                self._begun.append(self._waiting.popleft())
            one = self._begun[0]
            part = min(budget, todo[one])
            todo[one] -= part
            budget -= part
            chunk += part
            if not todo[one]:
                ready.append(self._begun.popleft())
        return ready, chunk

    def _preempt(self) -> None:
        without_token = bool(self._begun)  # room for the token that follows the prompt is taken with it
        one = self._begun.pop() if without_token else self.answering.pop()
        held = self._held(one)
        self.used -= held + without_token
        self._todo[one] = held
        self._waiting.appendleft(one)
        self.preemptions += 1

    def _held(self, number: int) -> int:
        """Return how many tokens of its prompt and of its answer so far a query has in the cache."""
        return self._prompts[number] + self._tokens[number] - self.left[number]


def simulated(batch: Batch, issued: Times, prompts: Tokens, tokens: Tokens) -> Served:
    """Return what becomes of the queries on a simulated clock."""
    at, sizes = issued.tolist(), list(zip(prompts.tolist(), tokens.tolist(), strict=True))
    first, done = [0.0] * len(at), [0.0] * len(at)
    now, coming, count = 0.0, 0, len(at)
    while coming < count or not batch.is_idle:
        if batch.is_idle and at[coming] > now:
            now = at[coming]
        while coming < count and at[coming] <= now:
            batch.add(*sizes[coming])
            coming += 1
        took, begun, ended = batch.step()
        now += took
        for one in begun:
            first[one] = first[one] or now
        for one in ended:
            done[one] = now
    return Served(issued, np.array(first), np.array(done), tokens)


def _drawn(noise: np.random.Generator, spread: float, count: int) -> Times:
    """Draw factors of mean 1 whose logarithm has the standard deviation `spread`."""
    return np.exp(spread * noise.standard_normal(count) - spread**2 / 2)


def step_factors(noise: np.random.Generator, spread: float) -> Iterator[float]:
    """Give such factors without end."""
    while True:
        yield from _drawn(noise, spread, _BLOCK).tolist() if spread else [1.0] * _BLOCK

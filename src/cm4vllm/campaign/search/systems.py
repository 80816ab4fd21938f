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

from cm4vllm.common.errors import ServerDied
from cm4vllm.loadgen.arrivals import Times

__all__ = ["Batching", "Dying", "Paged", "Queue", "Served", "System"]

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
            took *= _factors(noise, self.noise, len(issued))
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
        each, factors = tokens.tolist(), _each_factor(noise, self.noise)
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
        return _PagedRun(self, issued, sizes[:, 0], sizes[:, 1], _each_factor(noise, self.noise)).served()


class _PagedRun:
    """One run of a Paged server. `todo` are the prompt's tokens not computed yet, `left` those of the answer."""

    def __init__(self, system: Paged, issued: Times, prompts: Tokens, tokens: Tokens, factors: Iterator[float]) -> None:
        self._system, self._issued, self._tokens, self._factors = system, issued, tokens, factors
        self._at, self._prompts = issued.tolist(), prompts.tolist()
        self._todo, self._left = prompts.tolist(), tokens.tolist()
        self._first, self._done = [0.0] * len(issued), [0.0] * len(issued)
        self._waiting: deque[int] = deque()
        self._begun: deque[int] = deque()  # those whose prompt is not wholly computed
        self._answering: list[int] = []
        self._used = 0

    def served(self) -> Served:
        now, coming, count = 0.0, 0, len(self._at)
        while coming < count or self._waiting or self._begun or self._answering:
            if not (self._waiting or self._begun or self._answering) and self._at[coming] > now:
                now = self._at[coming]
            while coming < count and self._at[coming] <= now:
                self._waiting.append(coming)
                coming += 1
            now = self._step(now)
        return Served(self._issued, np.array(self._first), np.array(self._done), self._tokens)

    def _step(self, now: float) -> float:
        system, answering = self._system, self._answering
        while self._used + len(answering) > system.blocks and len(answering) + len(self._begun) > 1:
            self._preempt()
        self._used += len(answering)
        ready, chunk = self._prefill(system.batched - len(answering))
        now += (system.step_s + system.each_s * len(answering) + system.token_s * chunk) * next(self._factors)
        left, still = self._left, []
        for one in answering + ready:
            left[one] -= 1
            if left[one]:
                still.append(one)
            else:
                self._done[one] = now
                self._used -= self._prompts[one] + self._tokens_of(one)
        for one in ready:
            self._first[one] = self._first[one] or now
        self._answering = still
        return now

    def _prefill(self, budget: int) -> tuple[list[int], int]:
        """Compute prompts within the budget of tokens; return those whose prompt is whole now, and the tokens."""
        system, todo, ready, chunk = self._system, self._todo, list[int](), 0
        while budget > 0:
            if not self._begun:
                if not self._waiting or len(self._answering) + len(ready) >= system.sequences:
                    break
                needed = todo[self._waiting[0]] + 1
                if self._used + needed > system.blocks and (self._answering or ready):
                    break
                self._used += needed
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
        one = self._begun.pop() if without_token else self._answering.pop()
        held = self._prompts[one] + self._tokens_of(one) - self._left[one]
        self._used -= held + without_token
        self._todo[one] = held
        self._waiting.appendleft(one)

    def _tokens_of(self, one: int) -> int:
        return int(self._tokens[one])


@dataclass(frozen=True)
class Dying:
    """A server that ends when queries come faster than `above` queries/s."""

    system: System
    above: float

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        if len(issued) > 1 and (len(issued) - 1) / (issued[-1] - issued[0]) > self.above:
            raise ServerDied("the simulated server ended", cause=f"more than {self.above:g} queries/s")
        return self.system.serve(issued, lengths, noise)


def _factors(noise: np.random.Generator, spread: float, count: int) -> Times:
    """Draw factors of mean 1 whose logarithm has the standard deviation `spread`."""
    return np.exp(spread * noise.standard_normal(count) - spread**2 / 2)


def _each_factor(noise: np.random.Generator, spread: float) -> Iterator[float]:
    while True:
        yield from _factors(noise, spread, _BLOCK).tolist() if spread else [1.0] * _BLOCK

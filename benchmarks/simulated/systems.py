"""Simulated servers on a simulated clock. Nothing measured on them is a result.

Times are in s, rates in queries/s. `lengths` gives what LoadGen's seeds fix, the samples and with them the lengths of
prompts and answers, the same in each run; `noise` gives what differs between runs. The same seeds give the same run.
"""

import heapq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cm4vllm.campaign.rehearsal.batching import Batch, drawn_factors, step_factors
from cm4vllm.campaign.rehearsal.profile import ServerTimes
from cm4vllm.records.logs.arrivals import Times

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Served:
    """The times of the queries, in the order of issue: when they were issued, and when their first and last tokens
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
            took *= drawn_factors(noise, self.noise, len(issued))
        free, done = [0.0] * self.servers, []
        for at, seconds in zip(issued.tolist(), took.tolist(), strict=True):
            done.append(max(free[0], at) + seconds)
            heapq.heapreplace(free, done[-1])
        end = np.array(done)
        return Served(issued, end - took * (1 - 1 / self.tokens), end, np.full(len(issued), self.tokens))


@dataclass(frozen=True)
class Batching:
    """Continuous batching: a step makes a token of each of at most `sequences` answers.

    A step takes `step_s`, `each_s` more for each running sequence and `prefill_s` for each that begins in it, of which
    there are at most `prefills`. Answers have from `shortest` to `longest` tokens. `noise` is the standard deviation of
    the logarithm of a step's time.
    """

    step_s: float = 0.02
    each_s: float = 0.0005
    prefill_s: float = 0.003
    sequences: int = 128
    prefills: int = 16
    shortest: int = 20
    longest: int = 60
    noise: float = 0.0

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
            now += (self.step_s + self.each_s * running + self.prefill_s * (coming - begun)) * next(factors)
            first[begun:coming] = [now] * (coming - begun)
            for request in leaving.pop(step, ()):
                done[request] = now
                running -= 1
            step += 1
        return Served(issued, np.array(first), np.array(done), tokens)


class Paged(ServerTimes, frozen=True, kw_only=True):
    """A server with a KV cache, on a simulated clock.

    Prompts have from `prompt_least` to `prompt_most` tokens, answers from `shortest` to `longest`.
    """

    step_s: float = 0.01
    each_s: float = 0.0002
    token_s: float = 0.00001
    noise: float = 0.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1000
    kv_tokens: int = 16_000
    prompt_least: int = 100
    prompt_most: int = 900
    shortest: int = 20
    longest: int = 100

    def serve(self, issued: Times, lengths: np.random.Generator, noise: np.random.Generator) -> Served:
        sizes = lengths.integers(
            (self.prompt_least, self.shortest), (self.prompt_most + 1, self.longest + 1), (len(issued), 2)
        )
        return simulate(Batch(self, step_factors(noise, self.noise)), issued, sizes[:, 0], sizes[:, 1])


def simulate(batch: Batch, issued: Times, prompts: Tokens, tokens: Tokens) -> Served:
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
        for request in begun:
            first[request] = first[request] or now
        for request in ended:
            done[request] = now
    return Served(issued, np.array(first), np.array(done), tokens)

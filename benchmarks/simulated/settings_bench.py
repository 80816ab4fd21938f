"""Candidates of server settings measured on simulated servers, on a simulated clock. Nothing measured is a result."""

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from cm4vllm.campaign.search.possible_gain import PARTS, interval_of_parts
from cm4vllm.campaign.search.projection import FullLength
from cm4vllm.campaign.search.search_space import Candidate
from cm4vllm.campaign.search.server_bench import bracket, first_rate
from cm4vllm.common.errors import InvalidResult
from cm4vllm.records.searches.settings_search import TRIAL, Evaluation, Score, geometric_mean
from cm4vllm.rules import LatencyLimits
from simulated.prober import SimulatedProber
from simulated.systems import Paged

#: The memory that a step's tokens take from the KV cache, in tokens there, and the least cache of a server.
_CACHE_EACH, _LEAST_CACHE = 2, 2000
#: The part of the time after which tokens are counted.
_WARM = 1 / 3


def with_settings(system: Paged, candidate: Candidate) -> Paged | None:
    """Return the system with a candidate's settings, None where its memory is not enough for them."""
    made = replace(system, **{name.replace("-", "_"): int(value) for name, value in candidate.items()})
    cache = system.kv_tokens - _CACHE_EACH * made.max_num_batched_tokens
    return replace(made, kv_tokens=cache) if cache >= _LEAST_CACHE else None


def tokens_of_parts(system: Paged, seconds: float, *, seed: int, noise: int) -> tuple[list[float], float]:
    """Return the tokens/s of PARTS parts of the last two thirds of `seconds`, and the answers/s in all of it, of a
    system that has always enough to do.
    """
    queries = 512
    while True:
        served = system.serve(np.zeros(queries), np.random.default_rng(seed + 1), np.random.default_rng((seed, noise)))
        if served.done.max() > 1.5 * seconds:
            break
        queries *= 2
    edges = np.linspace(_WARM * seconds, seconds, PARTS + 1)
    length = np.maximum(served.done - served.first, 1e-9)
    made = np.array([np.clip((edge - served.first) / length, 0, 1) @ served.tokens for edge in edges])
    rates: list[float] = (np.diff(made) / np.diff(edges)).tolist()
    return rates, float(np.count_nonzero(served.done <= seconds) / seconds)


def tokens_per_s(system: Paged, seconds: float, *, seed: int, noise: int) -> tuple[float, float]:
    """Return tokens/s after a third of `seconds`, and answers/s, of a system that has always enough to do."""
    rates, answers = tokens_of_parts(system, seconds, seed=seed, noise=noise)
    return statistics.fmean(rates), answers


@dataclass
class SimulatedBench:
    """Measures a simulated server with other settings. Each start takes `start_s`, and a measurement `beside_s` more.

    Without `limits` the samples come at once, with them at their own times. No two measurements are quite alike: the
    server is faster or slower by a factor whose logarithm has the standard deviation `spread`. `kept` is what earlier
    commands made.
    """

    system: Paged
    limits: LatencyLimits | None
    full: FullLength
    start_s: float = 60.0
    beside_s: float = 5.0
    spread: float = 0.005
    kept: Mapping[tuple[int, int], Evaluation] = field(default_factory=dict)
    serving: int | None = None
    measured: int = 0
    known: list[Evaluation] = field(default_factory=list)

    def left_over(self, number: int, round_: int) -> Evaluation | None:
        if made := self.kept.get((number, round_)):
            self.known.append(made)
        return made

    def measure(self, number: int, candidate: Candidate, round_: int, seconds: float) -> Evaluation:
        self.measured += 1
        start_s = 0.0 if self.serving == number else self.start_s
        self.serving = number
        system, failure, scores, took = with_settings(self.system, candidate), "", list[Score](), start_s
        if system is None:
            failure, self.serving = "no room for the KV cache", None
        else:
            try:
                score, measuring_s = self._score(self._another(system, number, round_), (number, round_), seconds)
                scores, took = [score], start_s + self.beside_s + measuring_s
            except InvalidResult as error:
                failure = error.what
        self.known.append(
            made := Evaluation(
                number=number,
                round=round_,
                options=dict(candidate),
                seconds=seconds,
                took_s=took,
                start_s=start_s,
                scenarios=scores,
                score=geometric_mean(scores) if scores else None,
                failure=failure,
            )
        )
        return made

    def _another(self, system: Paged, number: int, round_: int) -> Paged:
        """Return the system as it is at this measurement."""
        draw = random.Random(f"{self.full.seed} {number} {round_}")  # noqa: S311 - a simulation
        factor = math.exp(self.spread * draw.gauss(0, 1))
        return replace(
            system, step_s=system.step_s * factor, each_s=system.each_s * factor, token_s=system.token_s * factor
        )

    def _score(self, system: Paged, asked: tuple[int, int], seconds: float) -> tuple[Score, float]:
        noise = 7000 + self.measured
        if self.limits is None:
            rates, _ = tokens_of_parts(system, seconds, seed=self.full.seed, noise=noise)
            low, high = interval_of_parts(rates) or (None, None)
            return Score(
                scenario="Offline", value=statistics.fmean(rates), unit="tokens/s", low=low, high=high
            ), seconds
        start, spent = first_rate(self.known, asked[0], "Server"), 0.0
        if start is None:
            spent = seconds if asked[1] == TRIAL else seconds / 2
            _, start = tokens_per_s(system, spent, seed=self.full.seed, noise=noise)
            if not start:
                raise InvalidResult(f"no answer within {spent:.0f} s")
            if asked[1] == TRIAL:
                return Score(scenario="Server", value=start, unit="queries/s"), spent
        prober = SimulatedProber(system, self.limits, self.full)
        return bracket(prober, "Server", start, self.limits, seconds - spent), spent + prober.clock_s

"""The search for a target rate on simulated servers: `python benchmarks/search.py [--rounds=N] [--json=FILE]`.

Each of N systems of each kind has its own seed: M/D/c queues, queues with noise, continuous batching bound by TTFT (a
cliff) and by TPOT (smooth). The true limit is the highest rate at which most full-length runs of 600 s are valid, found
by trying. The run that follows a search goes down as the job does, at most twice. All times are on the simulated clock.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from cm4vllm.campaign.search.algorithm import SearchPlan, queueing_estimate, search
from cm4vllm.campaign.search.simulation import (
    Batching,
    Queue,
    SimulatedProber,
    System,
    full_length_run_is_valid,
    offline_rate,
)
from cm4vllm.rules import LatencyLimits
from figures import arguments, figure, report

FULL_S = 600.0
WIDE = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="llama3.1-8b Server")
TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="llama3.1-8b Interactive")
#: How often the job makes a full-length run again, and noises by which the truth is judged.
BACK_OFFS, NOISES = 2, 3


@dataclass(frozen=True)
class Case:
    kind: str
    system: System
    limits: LatencyLimits
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What came of a search: ratio of found to true rate, searching time and all time as multiples of a full run."""

    found: float
    ratio: float
    first_valid: bool
    last_valid: bool
    search_cost: float


def cases(rounds: int) -> Iterator[Case]:
    """Give `rounds` systems of each kind."""
    for seed in range(1, rounds + 1):
        draw = random.Random(seed)  # noqa: S311 - a simulation
        yield Case("queue", Queue(draw.randint(1, 16), draw.uniform(0.05, 0.4)), WIDE, seed)
        yield Case("noisy queue", Queue(draw.randint(2, 16), draw.uniform(0.1, 0.4), noise=0.6), WIDE, seed)
        yield Case("cliff", Batching(draw.uniform(0.015, 0.03), 0.0002, 0.003, draw.choice((32, 64))), WIDE, seed)
        yield Case("smooth", Batching(0.005, draw.uniform(0.0005, 0.001), 0.002, 256, 16, 40, 80), TIGHT, seed)


def valid(case: Case, rate: float, noise: int) -> bool:
    """Say whether a full-length run is valid, with the noise of the number `noise`."""
    return full_length_run_is_valid(case.system, case.limits, rate, FULL_S, seed=case.seed, noise=9000 + noise)


def truth(case: Case, near: float) -> float:
    """Return the true limit, which is looked for around `near`."""
    low, high = near / 1.4, near * 1.4
    while high / low > 1.004:
        middle = math.sqrt(low * high)
        if 2 * sum(valid(case, middle, noise) for noise in range(NOISES)) > NOISES:
            low = middle
        else:
            high = middle
    return low


def outcome(case: Case) -> Outcome:
    """Search on one system, and hold what was found against the truth."""
    plan = SearchPlan(full_s=FULL_S)
    prober = SimulatedProber(case.system, case.limits, seed=case.seed)
    found = search(prober, queueing_estimate(offline_rate(case.system), case.limits), plan)
    tried = [found.rate / (1 + plan.precision) ** (2**times - 1) for times in range(BACK_OFFS + 1)]
    runs = [valid(case, rate, 100 + times) for times, rate in enumerate(tried)]
    return Outcome(found.rate, found.rate / truth(case, found.rate), runs[0], any(runs), prober.clock_s / FULL_S)


def main() -> int:
    """Print each outcome and the table; return the exit code."""
    options = arguments("The search for a target rate on simulated servers", rounds=2).parse_args()
    kinds: dict[str, list[Outcome]] = {}
    for case in cases(options.rounds):
        kinds.setdefault(case.kind, []).append(one := outcome(case))
        print(f"{case.kind} {case.seed}: found {one.found:.4g}, {one.ratio:.3f} of the true rate; full-length run "
              f"{'valid' if one.first_valid else 'valid after going down' if one.last_valid else 'NOT VALID'}; search "
              f"{one.search_cost:.2f} full-length runs", flush=True)
    figures = []
    for kind, found in kinds.items():
        figures += [
            figure(f"{kind}: found / true rate", [one.ratio for one in found], "x", at_least=0.95),
            figure(f"{kind}: searching", [one.search_cost for one in found], "full-length runs", at_most=2.5),
            figure(f"{kind}: first run valid", [float(one.first_valid) for one in found], "share"),
            figure(f"{kind}: a run valid", [float(one.last_valid) for one in found], "share", at_least=1.0)]
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())

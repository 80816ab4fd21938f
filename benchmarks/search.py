"""The search for a target rate on simulated servers: `python benchmarks/search.py [--rounds=N] [--json=FILE]`.

Each of N systems of each kind has its own seed, which is also LoadGen's seed of the schedule: M/D/c queues, queues with
noise, continuous batching bound by TTFT (a cliff) and by TPOT (smooth), and a KV cache with chunked prefill and
preemption. The true rate is that at which a full-length run of 600 s with this very schedule is valid with probability
1/2 over the server's noise: the median, over NOISES noises, of the rate up to which the run is valid. All times are on
the simulated clock. The cost is that of the whole search, with its full-length runs, of which one is the result.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cm4vllm.campaign.search.algorithm import SearchPlan, queueing_estimate, search
from cm4vllm.campaign.search.full_length import FullLength
from cm4vllm.campaign.search.simulation import SimulatedProber, full_length_run_is_valid, offline_rate
from cm4vllm.campaign.search.systems import Batching, Paged, Queue
from cm4vllm.common.errors import CmError
from cm4vllm.rules import LatencyLimits
from figures import arguments, figure, report

FULL_S = 600.0
WIDE = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="llama3.1-8b Server")
TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="llama3.1-8b Interactive")
#: Noises by which the true rate is found, and other ones by which full-length runs at the rate found are repeated.
NOISES, REPEATS = 9, 5
#: How far a rate may be from the true one, how much a search may cost, and the share of the systems that must be near.
NEAR, MOST_COST, MOST_SYSTEMS = 0.03, 2.5, 48 / 50


@dataclass(frozen=True)
class Case:
    kind: str
    system: Queue | Batching | Paged
    limits: LatencyLimits
    full: FullLength


@dataclass(frozen=True)
class Outcome:
    """What came of a search; `ratio` is that of found to true rate, 0 where no full-length run passed."""

    found: float
    ratio: float
    repeats: int
    cost: float
    probes: int

    @property
    def near(self) -> bool:
        return abs(self.ratio - 1) <= NEAR


def cases(rounds: int, first: int = 1) -> Iterator[Case]:
    """Give `rounds` systems of each kind."""
    for seed in range(first, first + rounds):
        draw, full = random.Random(seed), FullLength(FULL_S, seed)  # noqa: S311 - a simulation
        yield Case("queue", Queue(draw.randint(1, 16), draw.uniform(0.05, 0.4)), WIDE, full)
        yield Case("noisy queue", Queue(draw.randint(2, 16), draw.uniform(0.1, 0.4), noise=0.6), WIDE, full)
        yield Case(
            "cliff", Batching(draw.uniform(0.015, 0.03), 0.0002, 0.003, draw.choice((32, 64)), noise=0.05), WIDE, full
        )
        yield Case(
            "smooth", Batching(0.005, draw.uniform(0.0005, 0.001), 0.002, 256, 16, 40, 80, noise=0.05), TIGHT, full
        )
        yield Case(
            "KV cache",
            Paged(
                draw.uniform(0.01, 0.02),
                draw.uniform(0.0001, 0.0005),
                draw.uniform(5e-6, 3e-5),
                draw.choice((8000, 16000, 32000)),
                noise=0.05,
            ),
            draw.choice((WIDE, TIGHT)),
            full,
        )


def valid(case: Case, rate: float, noise: int) -> bool:
    """Say whether a full-length run is valid, with the noise of the number `noise`."""
    return full_length_run_is_valid(case.system, case.limits, rate, case.full, noise=9000 + noise)


def edge(case: Case, noise: int, low: float, high: float) -> float:
    """Return up to which rate full-length runs of one noise are valid."""
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if valid(case, middle, noise) else (low, middle)
    return math.sqrt(low * high)


def truth(case: Case, offline: float) -> float:
    """Return the true rate."""
    first = edge(case, 0, offline / 8, offline * 1.3)
    noises = range(1, NOISES) if case.system != replace(case.system, noise=0.0) else ()
    return statistics.median([first, *(edge(case, noise, first / 1.06, first * 1.06) for noise in noises)])


def outcome(case: Case) -> Outcome:
    """Search on one system, and hold what was found against the truth."""
    offline = offline_rate(case.system, seed=case.full.seed)
    true, prober = truth(case, offline), SimulatedProber(case.system, case.limits, case.full)
    try:
        found = search(prober, queueing_estimate(offline, case.limits), SearchPlan(case.limits))
    except CmError:
        return Outcome(0.0, 0.0, 0, prober.clock_s / FULL_S, 0)
    repeats = sum(valid(case, found.rate, 100 + number) for number in range(REPEATS))
    return Outcome(
        found.rate, found.rate / true if found.confirmed else 0.0, repeats, prober.clock_s / FULL_S, len(found.probes)
    )


def main() -> int:
    """Print each outcome and the table; return the exit code."""
    parser = arguments("The search for a target rate on simulated servers", rounds=10)
    parser.add_argument("--first", type=int, default=1, help="first seed (%(default)s)")
    options = parser.parse_args()
    kinds: dict[str, list[Outcome]] = {}
    for case in cases(options.rounds, options.first):
        kinds.setdefault(case.kind, []).append(one := outcome(case))
        print(
            f"{case.kind} {case.full.seed}: {f'found {one.found:.4g}' if one.ratio else 'no run passed'}, "
            f"{one.ratio:.3f} of the true rate{'' if one.near else ' MISSED'}; cost {one.cost:.2f} full-length runs, "
            f"{one.probes} probes; {one.repeats} of {REPEATS} repeats valid",
            flush=True,
        )
    every = [one for found in kinds.values() for one in found]
    print(
        f"within {NEAR:.0%}: {sum(one.near for one in every)} of {len(every)}; a full-length run passed at the rate "
        f"found: {sum(bool(one.ratio) for one in every)} of {len(every)}; repeats with other noise valid: "
        f"{sum(one.repeats for one in every)} of {REPEATS * len(every)}"
    )
    figures = [
        figure(
            "within 3 % of the true rate", [sum(one.near for one in every) / len(every)], "share", at_least=MOST_SYSTEMS
        ),
        figure("dearest search", [max(one.cost for one in every)], "full-length runs", at_most=MOST_COST),
    ]
    for kind, found in kinds.items():
        figures += [
            figure(f"{kind}: found / true rate", [one.ratio for one in found], "x"),
            figure(f"{kind}: cost", [one.cost for one in found], "full-length runs"),
        ]
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())

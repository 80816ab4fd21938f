"""The searches on simulated servers: `python benchmarks/search.py [--rounds=N] [--drift=N] [--settings=N]`.
--json=FILE keeps the figures.

Each of N systems of each kind has its own seed, which is also LoadGen's seed of the schedule: M/D/c queues, queues with
noise, continuous batching bound by TTFT (a cliff) and by TPOT (smooth), and a KV cache with chunked prefill and
preemption. The true rate is that at which a full-length run of 600 s with this very schedule is valid with probability
1/2 over the server's noise: the median, over NOISES noises, of the rate up to which the run is valid. All times are on
the simulated clock. The cost is that of the whole search, with its full-length runs, of which one is the result.

With --drift=N the same systems, N of each kind, lose 10 to 30 % of their speed for good, at a time from 60 to 500 s
after the search has begun. What is found is compared with the true rate of the slower system.

With --settings=N alone the search over server settings is made on N systems with a KV cache, half of them with samples
that come at once, half with queries at their own times. Each has its own seed, and the settings of the best candidate
are compared with those of the best of all by what long runs of each of them do, without the noise of short ones.
"""

import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cm4vllm.campaign.search.halving import HalvingPlan, halve
from cm4vllm.campaign.search.possible_gain import rivals
from cm4vllm.campaign.search.projection import FullLength
from cm4vllm.campaign.search.rate_search import SearchPlan, queueing_estimate, search
from cm4vllm.campaign.search.search_space import Space
from cm4vllm.common.errors import CmError
from cm4vllm.rules import LatencyLimits
from figures import Figure, arguments, figure, report
from simulated.prober import SimulatedProber, full_length_run_is_valid, offline_rate
from simulated.settings_bench import SimulatedBench, tokens_per_s, with_settings
from simulated.systems import Batching, Drift, Drifting, Paged, Queue, System

FULL_S = 600.0
WIDE = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="llama3.1-8b Server")
TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="llama3.1-8b Interactive")
#: Noises by which the true rate is found, and other ones by which full-length runs at the rate found are repeated.
NOISES, REPEATS = 9, 5
#: The distance of a rate from the true one that counts as near, the cost of a search, and the share that must be near.
NEAR, MOST_COST, MOST_SYSTEMS = 0.03, 2.5, 48 / 50
#: When a machine becomes slower, in s after the search has begun, and its speed then.
SLOWER_AT_S, SLOWER = (60.0, 500.0), (0.7, 0.9)
#: The factor to which the rate is found up to which a run is valid.
EQUAL = 1.002


@dataclass(frozen=True)
class Case:
    kind: str
    system: Queue | Batching | Paged
    limits: LatencyLimits
    full: FullLength
    drift: Drift | None = None

    @property
    def in_the_end(self) -> System:
        """The system at the speed that it keeps."""
        return Drifting(self.system, replace(self.drift, at_s=0.0)) if self.drift else self.system


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search. `ratio` is the rate found over the true rate, 0 where no full-length run passed.

    `low` and `high` are the ends of the interval over the true rate, both 0 where the search had none.
    """

    ratio: float = 0.0
    repeats: int = 0
    cost: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def near(self) -> bool:
        return abs(self.ratio - 1) <= NEAR

    @property
    def covered(self) -> bool:
        """Return True if the interval holds the true rate."""
        return self.low <= 1 <= self.high

    @property
    def report_line(self) -> str:
        """The outcome, for people."""
        interval = f"interval {self.low:.3f} to {self.high:.3f} of it" if self.high else "no interval"
        return (
            f"{self.ratio:.3f} of the true rate{'' if self.near else ' MISSED'}, {interval}"
            f"{'' if self.covered else ' NOT COVERED'}; cost {self.cost:.2f} full-length runs; "
            f"{self.repeats} of {REPEATS} repeats valid"
        )


def cases(rounds: int, first: int = 1) -> Iterator[Case]:
    """Yield `rounds` systems of each kind."""
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
                step_s=draw.uniform(0.01, 0.02),
                each_s=draw.uniform(0.0001, 0.0005),
                token_s=draw.uniform(5e-6, 3e-5),
                kv_tokens=draw.choice((8000, 16000, 32000)),
                noise=0.05,
            ),
            draw.choice((WIDE, TIGHT)),
            full,
        )


def drifting(case: Case) -> Case:
    """Return the case on a machine that becomes slower while it is searched."""
    draw = random.Random(f"drift {case.full.seed}")  # noqa: S311 - a simulation
    return replace(case, drift=Drift(draw.uniform(*SLOWER_AT_S), draw.uniform(*SLOWER)))


def valid(case: Case, rate: float, noise: int) -> bool:
    """Return True if a full-length run is valid, with the noise of the number `noise`."""
    return full_length_run_is_valid(case.in_the_end, case.limits, rate, case.full, noise=9000 + noise)


def edge(case: Case, noise: int, low: float, high: float) -> float:
    """Return up to which rate full-length runs of one noise are valid."""
    while high / low > EQUAL:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if valid(case, middle, noise) else (low, middle)
    return math.sqrt(low * high)


def truth(case: Case, offline: float) -> float:
    """Return the true rate."""
    first = edge(case, 0, offline / 8, offline * 1.3)
    noises = range(1, NOISES) if case.system.noise else ()
    return statistics.median([first, *(edge(case, noise, first / 1.06, first * 1.06) for noise in noises)])


def outcome(case: Case) -> Outcome:
    """Search on one system, and compare the rate found with the true one."""
    offline = offline_rate(case.system, seed=case.full.seed)
    true, prober = truth(case, offline), SimulatedProber(case.system, case.limits, case.full, case.drift)
    try:
        made = search(prober, queueing_estimate(offline, case.limits), SearchPlan(case.limits))
    except CmError:
        return Outcome(cost=prober.clock_s / FULL_S)
    return Outcome(
        ratio=made.rate / true if made.confirmed else 0.0,
        repeats=sum(valid(case, made.rate, 100 + number) for number in range(REPEATS)),
        cost=prober.clock_s / FULL_S,
        low=made.interval.low / true if made.interval else 0.0,
        high=made.interval.high / true if made.interval else 0.0,
    )


def rate_figures(asked: Iterable[Case], *, drifts: bool) -> list[Figure]:
    """Search on each system, print the outcome, and return the figures of all."""
    kinds: dict[str, list[Outcome]] = {}
    for case in asked:
        kinds.setdefault(case.kind, []).append(trial := outcome(case))
        print(f"{case.kind} {case.full.seed}: {trial.report_line}", flush=True)
    every = [trial for outcomes in kinds.values() for trial in outcomes]
    print(
        f"of {len(every)}: a full-length run passed at the rate found: {sum(bool(trial.ratio) for trial in every)}; "
        f"of {REPEATS * len(every)} repeats with other noise valid: {sum(trial.repeats for trial in every)}"
    )
    wanted = None if drifts else MOST_SYSTEMS
    figures = [
        figure("within 3 % of the true rate", [share(trial.near for trial in every)], "share", at_least=wanted),
        figure("interval holds the true rate", [share(trial.covered for trial in every)], "share"),
        figure("dearest search", [max(trial.cost for trial in every)], "full-length runs", at_most=MOST_COST),
    ]
    for kind, outcomes in kinds.items():
        figures += [
            figure(f"{kind}: found / true rate", [trial.ratio for trial in outcomes], "x"),
            figure(f"{kind}: cost", [trial.cost for trial in outcomes], "full-length runs"),
        ]
    return figures


def share(holds: Iterable[bool]) -> float:
    """Return the part of them that hold."""
    return statistics.fmean(holds)


# --- server settings -------------------------------------------------------------------------------------------------

SPACE = Space.parse("max-num-seqs:32..256,max-num-batched-tokens:512..2048")
#: The length of the runs by which candidates are truly compared, in s; the minutes of a search, and what a start takes.
SETTINGS_S, MINUTES, START_S = 200.0, 60.0, (30.0, 90.0)


def settings_systems(count: int, first: int = 1) -> Iterator[tuple[Paged, LatencyLimits | None, int]]:
    """Yield `count` systems, the limits of every other one, and their seeds."""
    for seed in range(first, first + count):
        draw = random.Random(1000 + seed)  # noqa: S311 - a simulation
        system = Paged(
            step_s=draw.uniform(0.01, 0.03),
            each_s=draw.uniform(0.0001, 0.0006),
            token_s=draw.uniform(5e-6, 4e-5),
            kv_tokens=draw.choice((8000, 16000, 32000)),
            max_num_batched_tokens=draw.choice((512, 2048)),
            max_num_seqs=draw.choice((32, 256)),
            prompt_least=50,
            prompt_most=draw.choice((250, 900)),
            noise=0.05,
        )
        yield system, draw.choice((WIDE, TIGHT)) if seed % 2 else None, seed


def true_score(system: Paged, limits: LatencyLimits | None, seed: int) -> float:
    """Return the tokens/s of a long run, or the rate up to which one keeps its limits."""
    tokens, answers = tokens_per_s(system, SETTINGS_S, seed=seed, noise=9000)
    if limits is None:
        return tokens
    case = Case("settings", system, limits, FullLength(SETTINGS_S, seed))
    low, high = answers / 2.5, answers * 1.3
    while not valid(case, low, 0):  # a limit of TPOT may bind far below the rate of samples that come at once
        low, high = low / 2, low
        if low < answers / 100:
            return 0.0
    return edge(case, 0, low, high)


@dataclass(frozen=True)
class SettingsOutcome:
    """The outcome of a search over server settings, by true scores.

    `part` is the score of the chosen candidate over the best candidate's, `tried` over the best of those that were
    tried, `gain` over the server's without the search; `said` is the gain that the search itself reports. `bound` is
    the ratio by which another tried candidate may be better according to the search's records, None where they have
    no bound. `cost` is in minutes.
    """

    part: float
    tried: float
    gain: float
    said: float
    bound: float | None
    cost: float

    @property
    def covered(self) -> bool:
        """Return True if the best of the tried candidates is within the bound."""
        return self.bound is not None and 1 / self.tried <= self.bound * EQUAL

    @property
    def report_line(self) -> str:
        """The outcome, for people."""
        bound = "no bound" if self.bound is None else f"up to {self.bound:.3f} times as much"
        return (
            f"chosen does {self.part:.3f} of the best{'' if self.part >= 1 - NEAR else ' MISSED'}, {self.gain:.3f} "
            f"times the server as it is (said: {self.said:.3f}); another tried one does {1 / self.tried:.3f} times as "
            f"much, by the records {bound}{'' if self.covered else ' NOT COVERED'}; "
            f"{self.cost:.1f} of {MINUTES:g} minutes"
        )


def settings_outcome(system: Paged, limits: LatencyLimits | None, seed: int) -> SettingsOutcome:
    """Search for settings on one system, and compare the chosen candidate with the best one."""
    start_s = random.Random(seed).uniform(*START_S)  # noqa: S311 - a simulation
    candidates, full = SPACE.candidates({}), FullLength(SETTINGS_S, seed)
    made = halve(candidates, SimulatedBench(system, limits, full, start_s=start_s), HalvingPlan(60 * MINUTES))
    systems = [with_settings(system, candidate) for candidate in candidates]
    scores = [true_score(each, limits, seed) if each else 0.0 for each in systems]
    chosen, others = scores[made.best.number], rivals(made.evaluations, made.best.number)
    bounds = [other.most for other in others if other.most is not None]
    return SettingsOutcome(
        part=chosen / max(scores),
        tried=chosen / max([chosen, *(scores[other.number] for other in others)]),
        gain=chosen / scores[0],
        said=(made.best.score or 0.0) / (made.as_it_is.score or 1.0) if made.as_it_is else 0.0,
        bound=max([1.0, *bounds]) if len(bounds) == len(others) else None,
        cost=sum(evaluation.took_s for evaluation in made.evaluations) / 60,
    )


def settings_figures(count: int, first: int) -> list[Figure]:
    """Search for settings on each system, print the outcome, and return the figures of all."""
    outcomes = []
    for system, limits, seed in settings_systems(count, first):
        outcomes.append(trial := settings_outcome(system, limits, seed))
        print(f"settings {seed} ({'Server' if limits else 'Offline'}): {trial.report_line}", flush=True)
    longest = max(trial.cost for trial in outcomes)
    return [
        figure("settings within 3 % of the best", [share(trial.part >= 1 - NEAR for trial in outcomes)], "share"),
        figure("settings: chosen / best", [trial.part for trial in outcomes], "x"),
        figure("settings: chosen / as it is", [trial.gain for trial in outcomes], "x"),
        figure("settings: best tried one within the bound", [share(trial.covered for trial in outcomes)], "share"),
        figure("settings: longest search", [longest], "minutes", at_most=MINUTES),
    ]


def main() -> int:
    """Print each outcome and the table; return the exit code."""
    parser = arguments("The search for a target rate on simulated servers", rounds=10)
    parser.add_argument("--first", type=int, default=1, help="first seed (%(default)s)")
    parser.add_argument("--drift", type=int, default=0, help="systems of each kind that become slower, alone")
    parser.add_argument("--settings", type=int, default=0, help="systems of the search over server settings alone")
    options = parser.parse_args()
    if options.settings:
        return report(settings_figures(options.settings, options.first), options.json)
    asked = cases(options.drift or options.rounds, options.first)
    drifts = bool(options.drift)
    return report(rate_figures(map(drifting, asked) if drifts else asked, drifts=drifts), options.json)


if __name__ == "__main__":
    sys.exit(main())

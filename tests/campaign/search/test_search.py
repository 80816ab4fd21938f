"""The search over simulated servers, on a simulated clock: its rate is near the highest of a full-length run."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.campaign.search.projection import FullLength, Point, meeting_point, project
from cm4vllm.campaign.search.rate_search import SearchPlan, queueing_estimate, search
from cm4vllm.common.errors import InvalidResult, ServerDied
from cm4vllm.records.logs.arrivals import arrivals
from cm4vllm.records.logs.early_stopping import most_over
from cm4vllm.records.searches.rate_search import Boundary, Verdict
from cm4vllm.rules import LatencyLimits
from simulated.prober import SimulatedProber, full_length_run_is_valid, offline_rate
from simulated.systems import Batch, Batching, Drift, Drifting, Paged, Queue, System, step_factors

LIMITS = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="the test's")
TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="the test's")
WHOLE = LatencyLimits(ttft_ms=None, tpot_ms=None, latency_ms=3000, source="the test's")
FULL = FullLength(600.0, 3)
SYSTEMS = {
    "whole answers": (Batching(0.02, 0.0002, 0.003, 64), WHOLE),
    "whole answers, M/D/c": (Queue(4, 0.05), WHOLE),
    "M/D/c": (Queue(4, 0.05), LIMITS),
    "cliff": (Batching(0.02, 0.0002, 0.003, 64), LIMITS),
    "smooth": (Batching(0.005, 0.0006, 0.002, 256, 16, 40, 80), TIGHT),
    "noisy": (Queue(8, 0.2, noise=0.6), LIMITS),
    "KV cache": (Paged(), LIMITS),
}


def found_by(system, limits, seed, **plan):
    prober = SimulatedProber(system, limits, FullLength(plan.pop("full_s", 600.0), seed))
    start = queueing_estimate(offline_rate(system), limits)
    return search(prober, start, SearchPlan(limits, **plan)), prober


@cache
def search_of(name):
    """Return the search of a system of the list at the same seed each time, and its prober: made once, to be read."""
    return found_by(*SYSTEMS[name], seed=3)


def valid(system, limits, rate, seed):
    return full_length_run_is_valid(system, limits, rate, FullLength(600.0, seed), noise=99)


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_found_is_near_the_highest_rate_that_a_full_length_run_passes(name):
    system, limits = SYSTEMS[name]
    result, prober = search_of(name)
    assert result.confirmed
    assert valid(system, limits, 0.97 * result.rate, 3)
    assert not valid(system, limits, 1.04 * result.rate, 3)
    assert prober.clock_s == pytest.approx(sum(probe.took_s for probe in result.probes))
    assert prober.clock_s <= 2.5 * 600
    run = result.probes[result.run - 1]
    assert (run.rate, run.sure, run.verdict) == (result.rate, True, Verdict.PASSES)
    assert run.planned_s >= 600
    assert run.queries > 600 * result.rate * 0.95
    assert result.interval.low < result.interval.high
    assert 0.9 * result.rate < result.interval.rate < 1.1 * result.rate
    assert all(probe.projected for probe in result.probes if probe.sure)


def test_a_limit_that_ends_probes_too_soon_to_say_where_it_is_counts():
    """Probes above it fail by TPOT at once, while what a slow probe says of TTFT points far above them."""
    system = Batching(0.005, 0.00059233, 0.002, 256, 16, 40, 80, noise=0.05)
    result, _ = found_by(system, TIGHT, seed=11)
    assert result.confirmed
    assert valid(system, TIGHT, 0.97 * result.rate, 11)
    assert not valid(system, TIGHT, 1.04 * result.rate, 11)


def test_the_limit_that_binds_is_named():
    assert search_of("M/D/c")[0].binding == "TTFT"
    assert search_of("smooth")[0].binding == "TPOT"
    again = found_by(*SYSTEMS["whole answers"], seed=3)[0]
    assert again == search_of("whole answers")[0], "the same seed gives the same search"


def test_a_rate_far_beyond_the_server_costs_seconds():
    system, limits = SYSTEMS["cliff"]
    probe, _ = SimulatedProber(system, limits, FullLength(600.0, 0)).probe(200, ProbePlan(120.0, 5.0, 600.0))
    assert (probe.verdict, probe.ended_early) == (Verdict.FAILS, True)
    assert probe.took_s < 20


def test_a_full_length_run_that_cannot_pass_any_more_is_ended():
    system, limits = SYSTEMS["cliff"]
    full = FullLength(600.0, 0)
    plan = ProbePlan(600.0, 0.0, 600.0, sure=True, most_late=full.most_late(50.0))
    probe, window = SimulatedProber(system, limits, full).probe(50.0, plan)
    assert (probe.verdict, probe.ended_early) == (Verdict.FAILS, True)
    assert probe.took_s < 120
    assert probe.limits[0].over > full.most_late(50.0) - 50
    assert window.whole


def test_probes_grow_longer_until_the_rate_is_settled_by_full_length_runs():
    result, _ = search_of("M/D/c")
    assert [probe.sure for probe in result.probes] == sorted(probe.sure for probe in result.probes)
    short = [probe.planned_s for probe in result.probes if not probe.sure]
    assert short == sorted(short)
    assert short[0] <= 30


@dataclass(frozen=True)
class Dying:
    """A server that ends when queries come faster than `above` queries/s."""

    system: System
    above: float

    def serve(self, issued, lengths, noise):
        if len(issued) > 1 and (len(issued) - 1) / (issued[-1] - issued[0]) > self.above:
            raise ServerDied("the simulated server ended", cause=f"more than {self.above:g} queries/s")
        return self.system.serve(issued, lengths, noise)


def test_a_server_that_dies_ends_the_search_with_its_error():
    system, limits = SYSTEMS["M/D/c"]
    seen = []
    prober = SimulatedProber(Dying(system, 60), limits, FullLength(600.0, 1))
    with pytest.raises(ServerDied):
        search(prober, 20, SearchPlan(limits), seen.append)
    assert seen
    assert all(probe.rate < 60 for probe in seen)


def test_where_no_rate_passes_the_search_says_what_was_seen():
    never = LatencyLimits(ttft_ms=2000, tpot_ms=0.01, latency_ms=None, source="the test's")
    prober = SimulatedProber(Queue(4, 0.05), never, FullLength(600.0, 1))
    with pytest.raises(InvalidResult, match="no rate that keeps the latency limits was found") as caught:
        search(prober, 20, SearchPlan(never))
    assert "TPOT p99" in caught.value.cause
    assert "--server_target_qps" in caught.value.remedy
    assert prober.clock_s < 2.5 * 600


def test_a_search_for_a_rate_that_no_server_has_ends_when_its_time_is_spent():
    never = LatencyLimits(ttft_ms=0.01, tpot_ms=100, latency_ms=None, source="the test's")
    rates = []

    class Noting(SimulatedProber):
        def probe(self, rate, plan):
            rates.append(rate)
            return super().probe(rate, plan)

    prober = Noting(Queue(1, 2.0), never, FullLength(10.0, 1))
    with pytest.raises(InvalidResult):
        search(prober, 20, SearchPlan(never, probes_s=(3.0, 5.0), approach_s=20.0, budget_s=60))
    assert prober.clock_s < 100
    assert max(rates) == rates[0] == 20, "a server that fails is asked for no more"


def test_a_search_whose_time_is_spent_says_so():
    result, prober = found_by(*SYSTEMS["M/D/c"], seed=3, runs=1.0, approach_s=60.0)
    assert not result.confirmed
    assert (result.run, result.stopped) == (0, "its time budget was used up")
    assert result.boundary in Boundary
    assert prober.clock_s < 100


def test_probes_in_which_no_query_counts_were_too_short():
    prober = SimulatedProber(Queue(1, 60.0), LIMITS, FullLength(10.0, 1))
    with pytest.raises(InvalidResult, match="too short to count a query") as caught:
        search(prober, 20, SearchPlan(LIMITS, probes_s=(3.0, 5.0), approach_s=20.0, budget_s=30.0))
    assert "probes of up to 10 s" in caught.value.cause
    assert "let nothing else compute" in caught.value.remedy


@pytest.mark.parametrize("start", [20, 500])
def test_a_search_that_starts_far_too_high_or_too_low_comes_to_the_same(start):
    system, limits = SYSTEMS["M/D/c"]
    prober = SimulatedProber(system, limits, FULL)
    result = search(prober, start, SearchPlan(limits))
    assert result.confirmed
    assert result.rate == pytest.approx(search_of("M/D/c")[0].rate, rel=0.03)
    assert prober.clock_s <= 2.5 * 600


@pytest.mark.parametrize("start", [20, 500])
def test_no_rate_is_tried_above_the_highest_that_the_machine_allows(start):
    system, limits = SYSTEMS["M/D/c"]
    prober = SimulatedProber(system, limits, FULL)
    result = search(prober, start, SearchPlan(limits, highest=40.0, why_highest="20,000 files are allowed"))
    assert (result.rate, result.confirmed, result.lowest_failing) == (40.0, True, None)
    assert max(probe.rate for probe in result.probes) == 40.0
    assert result.stopped == "no higher rate can be tried: 20,000 files are allowed"
    assert prober.clock_s < 1.5 * 600


def test_a_server_that_becomes_slower_is_found_at_the_speed_that_it_has_in_the_end():
    system, limits = SYSTEMS["cliff"]
    prober = SimulatedProber(system, limits, FullLength(600.0, 3), Drift(at_s=300.0, factor=0.8))
    result = search(prober, queueing_estimate(offline_rate(system), limits), SearchPlan(limits))
    slow = Drifting(system, Drift(at_s=0.0, factor=0.8))
    assert result.confirmed
    assert valid(slow, limits, result.rate, 3)
    assert not valid(slow, limits, 1.05 * result.rate, 3)
    assert prober.clock_s < 2.5 * 610
    first = result.probes[result.since - 1]
    assert first.sure
    assert min(first.projected.values()) < 0.9 * first.rate


def test_a_run_that_misses_a_limit_by_little_contradicts_no_probe():
    """The probes still count after such a run: otherwise a single crowded passage of the schedule would decide."""
    result, _ = search_of("KV cache")
    failed = [probe for probe in result.probes if probe.sure and probe.verdict is Verdict.FAILS]
    assert failed
    assert result.since == 1
    assert all(min(probe.projected.values()) > 0.9 * probe.rate for probe in failed)


def test_a_run_of_whole_datasets_is_searched_for_at_its_own_length():
    """LoadGen issues whole datasets of most language models: at a low rate that takes longer than 600 s."""
    system, limits = SYSTEMS["M/D/c"]
    full = FullLength(60.0, 3, whole=13368)
    prober = SimulatedProber(system, limits, full)
    result = search(prober, queueing_estimate(offline_rate(system), limits), SearchPlan(limits))
    assert result.confirmed
    assert result.probes[result.run - 1].queries == 13368
    assert prober.clock_s <= 2.5 * 13368 / result.rate


def test_the_queueing_estimate_lies_below_the_capacity_and_grows_with_the_limit():
    slow = LatencyLimits(ttft_ms=6000, tpot_ms=None, latency_ms=None, source="")
    assert 0.9 * 20 < queueing_estimate(20, LIMITS) < queueing_estimate(20, slow) < 20
    assert queueing_estimate(20, LatencyLimits(ttft_ms=None, tpot_ms=1, latency_ms=None, source="")) == 20


def test_a_full_kv_cache_computes_again_what_it_has_lost():
    """All queries get all their tokens, in more time than a cache with room for all of them takes."""
    issued = np.arange(200) / 20
    runs = [
        Paged(kv_tokens=size).serve(issued, np.random.default_rng(1), np.random.default_rng(2))
        for size in (2500, 100_000)
    ]
    assert (runs[0].tokens == runs[1].tokens).all()
    assert all((run.issued < run.first).all() and (run.first < run.done).all() for run in runs)
    assert runs[0].done[-1] > runs[1].done[-1]
    assert (runs[0].done >= runs[1].done - 1e-9).mean() > 0.9


def test_what_is_given_up_leaves_the_kv_cache_empty():
    """Queries are dropped while they wait, while their prompts are computed, while they are answered."""
    batch = Batch(Paged(kv_tokens=2500, max_num_batched_tokens=200), step_factors(np.random.default_rng(1), 0.0))
    numbers = [batch.add(300, 40) for _ in range(12)]
    for _ in range(12):
        batch.step()
    assert batch.answering and batch.waiting and batch.running > len(batch.answering)
    for number in numbers[1::2]:
        batch.drop(number)
    done = []
    while not batch.is_idle:
        done += batch.step()[2]
    assert batch.used == 0
    assert set(done) == set(numbers[::2])


# --- the run that a search predicts is the one that LoadGen makes


def test_a_rehearsal_of_a_slow_server_lasts_until_its_least_queries_are_issued():
    run = FullLength(10.0, 1, whole=256, least=662)
    assert run.queries(5.0) == 768
    assert run.duration(5.0) == pytest.approx(768 / 5)
    assert run.most_late(5.0) == 1
    assert run.queries(500.0) > 4_000


# --- projections from short probes, compared with full-length runs on simulated servers


WHOLE_RUN = LatencyLimits(ttft_ms=None, tpot_ms=None, latency_ms=4000, source="the test's")


def edge(system, limits, full, low, high):
    """Return up to which rate a full-length run is valid, by trying."""
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if full_length_run_is_valid(system, limits, middle, full, noise=1) else (low, middle)
    return low


@pytest.mark.parametrize(
    ("name", "system", "limits", "capacity", "seed"),
    [
        ("TTFT", Queue(4, 0.2), LIMITS, 20.0, 1),
        ("TTFT", Batching(0.02, 0.0002, 0.003, 64), LIMITS, 43.0, 2),
        ("latency", Queue(4, 0.2), WHOLE_RUN, 20.0, 2),
        ("TPOT", Batching(0.005, 0.0006, 0.002, 256, 16, 40, 80), TIGHT, 20.0, 1),
    ],
)
def test_a_minute_near_the_limit_says_what_ten_minutes_can_do(name, system, limits, capacity, seed):
    full = FullLength(600.0, seed)
    true = edge(system, limits, full, capacity / 3, capacity * 1.3)
    probe, window = SimulatedProber(system, limits, full).probe(0.98 * true, ProbePlan(60.0, 10.0, 600.0))
    assert probe.took_s < 70
    projected = project(window, {name: limits.by_name[name]}, full)
    assert projected[name] == pytest.approx(true, rel=0.04)


def test_a_probe_far_below_the_limit_says_nothing_and_one_of_few_queries_neither():
    full, prober = FullLength(600.0, 1), SimulatedProber(Queue(4, 0.05), LIMITS, FullLength(600.0, 1))
    _, window = prober.probe(10.0, ProbePlan(60.0, 10.0, 600.0))
    assert project(window, {"TTFT": 2000, "TPOT": 100}, full) == {}
    _, window = prober.probe(10.0, ProbePlan(4.0, 1.0, 600.0))
    assert project(window, {"TTFT": 1.0}, full) == {}


def test_points_that_agree_are_taken_at_their_word_and_points_that_differ_are_joined_by_a_line():
    agreed = [Point(9.0, 10.0, 60.0), Point(9.9, 10.0, 60.0), Point(10.4, 10.0, 300.0)]
    assert meeting_point(agreed) == pytest.approx(10.0, rel=1e-3)
    # The first one is wrong by the half about rates far above it: between them lies the rate that is its own edge.
    apart = [Point(5.0, 8.0, 600.0), Point(6.0, 5.0, 100.0)]
    assert 5.4 < meeting_point(apart) < 5.9


def test_a_full_length_run_has_loadgens_queries_and_whole_datasets_where_it_issues_those():
    full = FullLength(600.0, 12345)
    before, last = arrivals(20.0, 12345, full.queries(20.0))[-2:]
    assert before < 600 <= last
    assert full.arrivals(20.0) == pytest.approx(arrivals(20.0, 12345, full.queries(20.0)), abs=1e-4)
    assert full.most_late(20.0) == most_over(full.queries(20.0))
    assert 600 <= full.duration(20.0) < 615
    whole = replace(full, whole=13368)
    assert whole.queries(20.0) == 13368
    assert whole.duration(20.0) == pytest.approx(13368 / 20)
    assert FullLength(100.0, 1).most_late(3.0) == 3, "too short for LoadGen's test"

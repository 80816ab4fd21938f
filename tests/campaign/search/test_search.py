"""The search over simulated servers, on a simulated clock: what is found is near what a full-length run can do."""

import pytest

from cm4vllm.campaign.search.algorithm import SearchPlan, queueing_estimate, search
from cm4vllm.campaign.search.judge import Judge, ProbePlan
from cm4vllm.campaign.search.records import Boundary, Verdict
from cm4vllm.campaign.search.simulation import (
    Batching,
    Dying,
    Queue,
    SimulatedProber,
    full_length_run_is_valid,
    offline_rate,
)
from cm4vllm.common.errors import InvalidResult, ServerDied
from cm4vllm.loadgen.messages import Latencies, Timed
from cm4vllm.rules import LatencyLimits

LIMITS = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="the test's")
TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="the test's")
SYSTEMS = {
    "M/D/c": (Queue(4, 0.05), LIMITS),
    "cliff": (Batching(0.02, 0.0002, 0.003, 64), LIMITS),
    "smooth": (Batching(0.005, 0.0006, 0.002, 256, 16, 40, 80), TIGHT),
    "noisy": (Queue(8, 0.2, noise=0.8), LIMITS),
}


def found_by(system, limits, seed, **plan):
    prober = SimulatedProber(system, limits, seed=seed)
    start = queueing_estimate(offline_rate(system), limits)
    return search(prober, start, SearchPlan(**plan)), prober


def valid(system, limits, rate, seed):
    return full_length_run_is_valid(system, limits, rate, 600, seed=seed, noise=99)


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_found_is_near_the_highest_rate_that_a_full_length_run_passes(name):
    system, limits = SYSTEMS[name]
    found, prober = found_by(system, limits, seed=3)
    assert found.confirmed
    assert valid(system, limits, 0.94 * found.rate, 3)
    assert not valid(system, limits, 1.07 * found.rate, 3)
    assert prober.clock_s == pytest.approx(sum(one.took_s for one in found.probes))
    assert prober.clock_s < 2.5 * 600
    assert found.lowest_failing > found.rate


def test_the_same_seed_gives_the_same_search():
    system, limits = SYSTEMS["noisy"]
    assert found_by(system, limits, seed=1)[0] == found_by(system, limits, seed=1)[0]


def test_the_limit_that_binds_is_named():
    assert found_by(*SYSTEMS["M/D/c"], seed=3)[0].binding == "TTFT"
    assert found_by(*SYSTEMS["smooth"], seed=3)[0].binding == "TPOT"


def test_a_rate_far_beyond_the_server_costs_seconds():
    system, limits = SYSTEMS["cliff"]
    probe = SimulatedProber(system, limits).probe(200, ProbePlan(seconds=120, warm_up_s=5, full_s=600))
    assert (probe.verdict, probe.ended_early) == (Verdict.FAILS, True)
    assert probe.took_s < 20


def test_probes_grow_longer_as_the_bracket_narrows():
    found, _ = found_by(*SYSTEMS["M/D/c"], seed=3)
    assert found.probes[0].planned_s < 30
    assert found.probes[-1].planned_s > 300
    assert found.probes[-1].sure


def test_a_server_that_dies_ends_the_search_with_its_error():
    system, limits = SYSTEMS["M/D/c"]
    seen = []
    with pytest.raises(ServerDied):
        search(SimulatedProber(Dying(system, 60), limits), 20, SearchPlan(), seen.append)
    assert seen
    assert all(one.rate < 60 for one in seen)


def test_where_no_rate_passes_the_search_says_what_was_seen():
    never = LatencyLimits(ttft_ms=2000, tpot_ms=0.01, latency_ms=None, source="the test's")
    with pytest.raises(InvalidResult, match="no rate that keeps the latency limits was found") as caught:
        search(SimulatedProber(Queue(4, 0.05), never), 20, SearchPlan(shortest_s=10, longest_s=20))
    assert "TPOT p99" in caught.value.cause
    assert "--server_target_qps" in caught.value.remedy


def test_a_search_for_a_rate_that_no_server_has_ends_when_its_time_is_spent():
    never = LatencyLimits(ttft_ms=0.01, tpot_ms=100, latency_ms=None, source="the test's")
    prober = SimulatedProber(Queue(1, 2.0), never)
    with pytest.raises(InvalidResult):
        search(prober, 20, SearchPlan(full_s=10, shortest_s=3, longest_s=10, budget_s=60))
    assert prober.clock_s < 100


def test_a_search_whose_time_is_spent_says_so():
    found, prober = found_by(*SYSTEMS["M/D/c"], seed=3, budget_s=60)
    assert not found.confirmed
    assert found.stopped == "its time budget was used up"
    assert found.boundary in Boundary
    assert prober.clock_s < 200


def test_a_search_that_starts_too_high_or_too_low_comes_to_the_same():
    system, limits = SYSTEMS["M/D/c"]
    rates = [search(SimulatedProber(system, limits, seed=3), start, SearchPlan()).rate for start in (8, 500)]
    assert rates[0] == pytest.approx(rates[1], rel=0.03)


def test_the_queueing_estimate_lies_below_the_capacity_and_grows_with_the_limit():
    slow = LatencyLimits(ttft_ms=6000, tpot_ms=None, latency_ms=None, source="")
    assert 0.9 * 20 < queueing_estimate(20, LIMITS) < queueing_estimate(20, slow) < 20
    assert queueing_estimate(20, LatencyLimits(ttft_ms=None, tpot_ms=1, latency_ms=None, source="")) == 20


# --- the judge -------------------------------------------------------------------------------------------------------


def judged(answers, *, elapsed_s=60.0, issued=None, overdue=0, oldest=None, seconds=60.0, rate=20.0, sure=False):
    judge = Judge(LIMITS, rate, ProbePlan(seconds=seconds, warm_up_s=10, full_s=600, sure=sure))
    news = Latencies(elapsed_s=elapsed_s, answers=answers, issued=len(answers) if issued is None else issued,
                     overdue=overdue, oldest_open_s=oldest)
    return judge, judge.take(news)


def answers(count, ttft_ms=lambda number: 50.0, seconds=60.0):
    return [Timed(number * seconds / count, ttft_ms(number), 10.0, 500.0) for number in range(count)]


def test_queries_of_the_warm_up_do_not_count():
    judge, verdict = judged(answers(1200, lambda number: 5000.0 if number < 200 else 50.0))
    assert judge.queries == 1000
    assert verdict is Verdict.PASSES
    assert [one.over for one in judge.limits()] == [0, 0]


def test_what_is_open_is_not_forgotten():
    """Slow answers come last: only what was issued before the oldest open query counts as known."""
    judge, verdict = judged(answers(1200), oldest=12.0)
    assert verdict is None
    assert judge.queries == 40


def test_queries_without_a_first_token_beyond_the_limit_are_late():
    assert judged(answers(600, seconds=30.0), elapsed_s=40.0, issued=800, overdue=150, oldest=30.0)[1] is Verdict.FAILS


def test_a_growing_queue_does_not_pass_though_it_is_within_the_limit_so_far():
    judge, verdict = judged(answers(1200, lambda number: 20.0 + number))
    assert judge.growing
    assert verdict is None
    assert judge.verdict() is Verdict.UNDECIDED


def test_a_sure_probe_keeps_a_margin():
    steady = answers(1200, lambda number: 1900.0)
    waves = answers(1200, lambda number: 1900.0 if number // 150 % 2 else 100.0)
    assert judged(steady, sure=True)[1] is Verdict.PASSES
    assert judged(waves)[1] is Verdict.PASSES
    assert judged(waves, sure=True)[1] is None


def test_a_sure_probe_fails_only_where_a_full_length_run_could_not_pass_any_more():
    late = answers(1200, lambda number: 5000.0 if number >= 1140 else 50.0)
    assert judged(late)[1] is Verdict.FAILS
    assert judged(late, sure=True)[1] is None
    assert judged(answers(1200, lambda number: 5000.0 if number >= 1050 else 50.0), sure=True)[1] is Verdict.FAILS

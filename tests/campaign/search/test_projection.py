"""Projections from short probes, compared with full-length runs on simulated servers."""

import math
from dataclasses import replace

import pytest

from cm4vllm.campaign.search.full_length import FullLength
from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.campaign.search.projection import Point, meeting_point, project
from cm4vllm.records.logs.arrivals import arrivals
from cm4vllm.records.logs.early_stopping import most_over
from cm4vllm.rules import LatencyLimits
from simulated.prober import SimulatedProber, full_length_run_is_valid
from simulated.systems import Batching, Queue

WIDE = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="the test's")
TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="the test's")
WHOLE = LatencyLimits(ttft_ms=None, tpot_ms=None, latency_ms=4000, source="the test's")


def edge(system, limits, full, low, high):
    """Return up to which rate a full-length run is valid, by trying."""
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if full_length_run_is_valid(system, limits, middle, full, noise=1) else (low, middle)
    return low


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "system", "limits", "capacity"),
    [
        ("TTFT", Queue(4, 0.2), WIDE, 20.0),
        ("TTFT", Batching(0.02, 0.0002, 0.003, 64), WIDE, 43.0),
        ("latency", Queue(4, 0.2), WHOLE, 20.0),
        ("latency", Batching(0.02, 0.0002, 0.003, 64), WHOLE, 43.0),
        ("TPOT", Batching(0.005, 0.0006, 0.002, 256, 16, 40, 80), TIGHT, 20.0),
    ],
)
def test_a_minute_near_the_limit_says_what_ten_minutes_can_do(seed, name, system, limits, capacity):
    full = FullLength(600.0, seed)
    true = edge(system, limits, full, capacity / 3, capacity * 1.3)
    probe, window = SimulatedProber(system, limits, full).probe(0.98 * true, ProbePlan(60.0, 10.0, 600.0))
    assert probe.took_s < 70
    projected = project(window, {name: limits.by_name[name]}, full)
    assert projected[name] == pytest.approx(true, rel=0.04)


def test_a_probe_far_below_the_limit_says_nothing_and_one_of_few_queries_neither():
    full, prober = FullLength(600.0, 1), SimulatedProber(Queue(4, 0.05), WIDE, FullLength(600.0, 1))
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

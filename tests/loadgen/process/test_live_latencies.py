"""Latencies while a run goes on: the same as those of the whole record, whatever order the events are noted in."""

import random

import numpy as np
import pytest

from cm4vllm.loadgen.client.sample_times import SampleTimes
from cm4vllm.loadgen.process.live_latencies import LiveLatencies, Tally
from cm4vllm.records.logs.early_stopping import missing_queries, most_over, percentile
from cm4vllm.rules import LatencyLimits

LIMITS = LatencyLimits(ttft_ms=100.0, tpot_ms=10.0, latency_ms=None, source="the test's")


@pytest.fixture
def times():
    return SampleTimes()


def test_events_that_come_before_their_issue_wait_for_it(times):
    live = LiveLatencies(times, LIMITS)
    times.first_tokens(3_000_000, [(7, 0, 1)])
    times.completed(13_000_000, [(7, 0, 11, 0, 0)])
    assert live.take().answers == []
    assert live.status() == ()
    times.issued(1_000_000, [(7, 0, 5)])
    (answer,) = live.take().answers
    assert (answer.issued_s, answer.ttft_ms, answer.tpot_ms, answer.latency_ms) == (0, 2, 1, 12)


def test_what_waits_for_longer_than_the_limit_is_overdue(times):
    live = LiveLatencies(times, LatencyLimits(ttft_ms=0.001, tpot_ms=None, latency_ms=None, source="the test's"))
    times.issued(1, [(1, 0, 5), (2, 0, 5)])
    times.first_tokens(1_000_000, [(2, 0, 1)])
    news = live.take(answers=False)
    assert (news.issued, news.overdue, news.oldest_open_s) == (2, 1, 0)
    times.completed(2_000_000, [(1, 0, 1, 0, 0), (2, 0, 1, 0, 0)])
    news = live.take()
    assert [answer.tpot_ms for answer in news.answers] == [None, None]
    assert (news.overdue, news.oldest_open_s) == (0, None)


def test_no_answer_is_lost_or_counted_twice_however_the_events_are_read(times):
    """More events than a piece of memory holds, in disorder, read at random moments."""
    draw, live = random.Random(1), LiveLatencies(times, LIMITS)
    wanted, got, open_ = {}, {}, []
    for key in range(100, 40_100):
        at = key * 1_000
        early = draw.random() < 0.1
        if early:
            times.first_tokens(at + 2_000_000, [(key, 0, 1)])
        times.issued(at, [(key, key % 7, 5)])
        if not early:
            times.first_tokens(at + 2_000_000, [(key, 0, 1)])
        open_.append(key)
        if len(open_) > 50:
            done = open_.pop(draw.randrange(len(open_)))
            times.completed(done * 1_000 + 12_000_000, [(done, 0, 11, 0, 0)])
            wanted[done] = (2.0, 1.0, 12.0)
        if draw.random() < 0.001:
            collect(live, got)
    collect(live, got)
    assert len(live._open) == len(open_)
    assert got == wanted
    assert [latency.queries for latency in live.status()] == [len(wanted)] * 3


def collect(live, got):
    for answer in live.take().answers:
        key = round(answer.issued_s * 1e6) + 100
        assert key not in got
        got[key] = tuple(round(value, 9) for value in (answer.ttft_ms, answer.tpot_ms, answer.latency_ms))


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_a_tally_gives_percentiles_and_the_bound_of_the_early_stopping_test_to_one_percent(spread):
    values = np.random.default_rng(2).lognormal(4.0, spread, 30_000)
    tally = Tally("TTFT", float(np.quantile(values, 0.993)))
    for part in np.array_split(values, 20):
        tally.add(part)
        said = tally.status()
    over = int(np.count_nonzero(values > tally.limit_ms))
    assert said.over == over and said.missing == missing_queries(len(values), over) == 0
    assert said.p50_ms == pytest.approx(percentile(values, 0.5), rel=0.01)
    assert said.p99_ms == pytest.approx(percentile(values, 0.99), rel=0.01)
    bound = sorted(values)[len(values) - 1 - most_over(len(values))]
    assert bound < said.p99_at_most_ms < 1.04 * bound


def test_a_tally_says_how_many_queries_are_missing():
    tally = Tally("TPOT", 10.0)
    tally.add(np.array([1.0] * 99 + [11.0]))
    assert tally.status().missing == missing_queries(100, 1) > 0
    assert tally.status().p99_at_most_ms is None  # too few for any bound
    tally.add(np.array([11.0] * 100))
    assert tally.status().missing == 101 * 100 - 200  # what the percentile itself asks for, at least

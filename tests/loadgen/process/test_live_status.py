"""The status of a run under way: progress, remaining time and LoadGen's plan."""

import random
import time

import numpy as np
import pytest
from fake_vllm import Behaviour, FakeVllm, Fault
from msgspec.structs import replace

from cm4vllm.common import progress
from cm4vllm.loadgen.client.sample_times import SampleTimes
from cm4vllm.loadgen.process import runner
from cm4vllm.loadgen.process.first_rate import first_rate, whole_s
from cm4vllm.loadgen.process.live_latencies import LiveLatencies, Tally
from cm4vllm.loadgen.process.live_status import LiveStatus, Plan, plan_of, time_left
from cm4vllm.loadgen.process.messages import LatencyStatus, Progress, TimeLeft
from cm4vllm.loadgen.process.process_monitor import ClockWatch
from cm4vllm.records.client import SelfCheck
from cm4vllm.records.logs.early_stopping import missing_queries, most_over, percentile
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.rules import LatencyLimits


class NoWatch:
    samples = ()


def marks_of(rate, seconds, spread=0.0, seed=1):
    draw, done, marks = random.Random(seed), 0.0, [(0.0, 0)]
    for second in range(1, seconds + 1):
        done += max(0.0, draw.gauss(rate, spread))
        marks.append((float(second), int(done)))
    return marks


def test_a_steady_rate_leaves_no_doubt_and_a_varying_one_does():
    left = time_left(marks_of(100, 60), 3000, 60.0)
    assert left == TimeLeft(seconds=30.0, low=30.0, high=30.0)
    marks = marks_of(100, 60, spread=40)
    left = time_left(marks, 3000, 60.0)
    assert left.low < left.seconds < left.high
    assert left.seconds == pytest.approx(3000 / marks[-1][1] * 60, abs=0.1)


def test_the_bounds_of_the_time_left_hold_about_as_often_as_they_say():
    held = 0
    for seed in range(200):
        whole = marks_of(100, 300, spread=60, seed=seed)
        left = time_left(whole[:101], whole[-1][1] - whole[100][1], 100.0)
        held += left.low - 1 <= 200 <= left.high + 1
    assert 175 <= held <= 200


def test_nothing_is_said_of_the_time_left_of_what_has_hardly_begun():
    assert time_left([(0.0, 0)], 100, 5.0) is None
    assert time_left(marks_of(10, 3), 100, 3.0) is None
    assert time_left(marks_of(10, 3), 0, 3.0) == TimeLeft(seconds=0.0, low=0.0, high=0.0)
    # a run that stands still takes no less time the longer it does
    assert time_left(marks_of(100, 60), 3000, 75.0).seconds == 15.0


def test_rates_are_those_of_the_last_ten_seconds(make_settings, tmp_path):
    live = LiveStatus(make_settings("http://a", "Offline", "accuracy"), tmp_path, NoWatch())
    busy = {"busiest": "x", "busiest_share": 0.1, "server_share": 0.1}
    live.take_self_check(SelfCheck(workers=1, tokens=50, queries=9, qps=9.0, capacity_qps=800.0, **busy))
    for second in range(1, 41):
        done = 10 * second if second <= 20 else 200 + 40 * (second - 20)
        status = live.take(Progress(done=done, waiting=5, total=5000, elapsed_s=float(second), tokens=100 * done))
    assert (status.samples_per_second, status.tokens_per_second) == (40.0, 4000.0)
    assert (status.done, status.total, status.in_flight) == (1000, 5000, 5)
    assert status.left.low < 160 < status.left.high
    assert status.client.headroom == 16.0  # 50 tokens an answer make 2 answers of each sample: 50 a second


def test_a_paced_run_ends_when_its_queries_are_issued_and_answered(make_settings, tmp_path):
    seen = []
    # The last answers are not there before others were shown.
    behaviour = Behaviour(held=lambda number, _: number >= 100 and not (seen and seen[-1].latencies))
    with FakeVllm(behaviour) as server:
        settings = make_settings(server.endpoint, "Server", "performance", target_qps=100, test_query_count=150)

        def look(update, *texts):
            shown = progress.under_way()[-1]
            if shown.facts is not None:
                seen.append(shown.facts)
            return update(*texts)

        with pytest.MonkeyPatch.context() as patch:
            update = progress.Step.update
            patch.setattr(progress.Step, "update", lambda self, text: look(lambda: update(self, text)))
            runner.run(settings, tmp_path / "run")
    result = read_performance(tmp_path / "run")
    plan = plan_of(tmp_path / "run", settings)
    assert plan.samples == result.figures["queries"]
    assert plan.seconds == pytest.approx(result.duration, rel=0.1)
    last = seen[-1]
    assert (last.title, last.total) == ("Server performance", result.figures["queries"])
    assert [latency.name for latency in last.latencies] == ["TTFT", "TPOT", "answer"]
    assert last.latencies[0].limit_ms == 2000
    assert last.left is None or 0 <= last.left.low <= last.left.seconds <= last.left.high


def test_the_answers_still_to_come_count_into_the_time_left(make_settings, tmp_path):
    live = LiveStatus(make_settings("http://a", "Server", "performance"), tmp_path, NoWatch())
    live._plan = Plan(1000, 100.0)
    answer = LatencyStatus(name="answer", queries=300, p50_ms=4000.0, p99_ms=9000.0)
    news = Progress(done=0, waiting=9, total=None, elapsed_s=20.0, tokens=9)
    assert live.take(news).left is None  # nothing has been answered
    live.take(replace(news, elapsed_s=31.0, done=210))
    status = live.take(replace(news, elapsed_s=40.0, done=300, waiting=40, latencies=(answer,)))
    assert status.left == TimeLeft(seconds=64.0, low=62.0, high=69.0)  # 10 samples/s, 40 in flight
    status = live.take(replace(news, elapsed_s=40.0, done=300, waiting=400, latencies=(answer,)))
    assert status.left == TimeLeft(seconds=100.0, low=80.0, high=140.0)


# --- latencies while a run goes on: the same as those of the whole record, whatever order the events are noted in


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


# --- the first estimate of a server's rate: what it asks for, and what it makes of the times


@pytest.mark.parametrize(("scenario", "count", "at_a_time"), [("Offline", 8, 8), ("Server", 2, 1)])
def test_it_asks_for_short_answers_to_the_first_samples(make_settings, scenario, count, at_a_time):
    with FakeVllm(Behaviour(token_delay_s=0.002)) as server:
        rate = first_rate(
            make_settings(server.endpoint, scenario, "performance"), count, at_a_time=at_a_time, longest_s=60
        )
    assert [body["max_tokens"] for body in server.bodies] == [1] * count + [16] * count
    assert server.most_in_flight <= at_a_time
    assert rate > 0


def test_requests_that_take_too_long_count_as_if_they_were_answered_then(make_settings):
    with FakeVllm(Behaviour(held=lambda number, events: True)) as server:
        rate = first_rate(make_settings(server.endpoint, "Offline", "accuracy"), 8, at_a_time=8, longest_s=1.0)
    assert 0 < rate <= 8 / 0.5
    with FakeVllm(Behaviour(fault=lambda number: Fault.STATUS_400)) as server:
        settings = make_settings(server.endpoint, "Offline", "accuracy")
        assert first_rate(settings, 8, at_a_time=8, longest_s=60) is None  # the server refuses them all


@pytest.mark.parametrize(
    ("few_s", "more_s", "more", "tokens", "seconds"),
    [
        (1.0, 2.5, 16, 128, 2.5 + 112 * 0.1),
        (26.0, 27.0, 16, 128, 27.0 + 112 * 0.25 * 27 / 16),  # long prompts, or a machine that was busy at first
        (30.0, 20.0, 16, 16, 20.0),
        (2.0, 2.0, 1, 1, 2.0),
    ],
)
def test_the_time_of_a_whole_answer_follows_from_two_lengths(few_s, more_s, more, tokens, seconds):
    assert whole_s(few_s, more_s, more, tokens) == pytest.approx(seconds)


# --- a clock that is set during a run is noticed, in both directions; one that is read late is not


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose first value is by how many ns the time of day is set forward."""
    shift, now_ns = [0], time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + shift[0])
    return shift


@pytest.mark.parametrize(("seconds", "words"), [(3600, "forward by 3,600.00 s"), (-0.05, "back by 0.05 s")])
def test_a_clock_that_is_set_makes_a_run_invalid(clock, seconds, words):
    watch = ClockWatch()
    assert watch.fault("Offline performance") is None
    clock[0] = int(seconds * 1e9)
    fault = watch.fault("Offline performance")
    assert fault is not None
    assert fault.what == f"the clock was set {words}: the Offline performance run is INVALID"


def test_an_interrupted_reading_is_no_jump(monkeypatch):
    watch, now_ns, late = ClockWatch(), time.time_ns, iter([0.2])
    monkeypatch.setattr(time, "time_ns", lambda: time.sleep(next(late, 0)) or now_ns())
    assert watch.fault("Offline performance") is None

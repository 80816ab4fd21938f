"""The status of a run under way: progress, remaining time and LoadGen's plan."""

import random

import pytest
from fake_vllm import Behaviour, FakeVllm
from msgspec.structs import replace

from cm4vllm.common import progress
from cm4vllm.loadgen.process import runner
from cm4vllm.loadgen.process.live_status import LiveStatus, Plan, plan_of, time_left
from cm4vllm.loadgen.process.messages import Progress
from cm4vllm.loadgen.process.run_status import LatencyStatus, TimeLeft
from cm4vllm.records.client import SelfCheck
from cm4vllm.records.logs.run_logs import read_performance


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
    live.take_self_check(
        SelfCheck(
            workers=1,
            tokens=50,
            queries=9,
            qps=9.0,
            capacity_qps=800.0,
            busiest="x",
            busiest_share=0.1,
            server_share=0.1,
        )
    )
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

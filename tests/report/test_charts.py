from collections.abc import Callable

import msgspec

from cm4vllm.common.units import Milliseconds
from cm4vllm.records.accuracy import Score
from cm4vllm.records.metrics import MetricsSample, ServerMetrics
from cm4vllm.report.pictures.charts import MAX_POINTS, latency_bar, score_bar, trace
from cm4vllm.results.model import Latency

Metrics = Callable[..., ServerMetrics]


def sample(at_s: float, running: int, waiting: int) -> MetricsSample:
    return MetricsSample(
        at_s=at_s,
        running=running,
        waiting=waiting,
        kv_cache_usage=0.0,
        preemptions=0,
        prefix_cache_hits=0,
        cached_prompt_tokens=0,
        prompt_tokens=0,
        generation_tokens=0,
    )


def latency(p99: float, limit: float | None) -> Latency:
    return Latency("TTFT", Milliseconds(p99), None, None if limit is None else Milliseconds(limit))


def test_a_latency_below_its_limit_ends_before_the_line_does() -> None:
    bar = latency_bar(latency(500, 2000))
    assert bar is not None and (bar.value, bar.high, bar.met) == (25, 100, True)


def test_a_latency_beyond_its_limit_shows_where_the_limit_was() -> None:
    bar = latency_bar(latency(4000, 2000))
    assert bar is not None and (bar.value, bar.high, bar.met) == (100, 50, False)


def test_a_latency_at_its_limit_misses_it() -> None:
    assert latency(2000, 2000).met is False and latency(2000, 2000).headroom == 0


def test_a_runs_requests_are_drawn_over_its_time_to_the_most_of_them(server_metrics: Metrics) -> None:
    drawn = trace("run", server_metrics(), [sample(0, 0, 0), sample(5, 10, 40), sample(10, 20, 0)])
    assert drawn.running == "0.0,19.5 50.0,14.8 100.0,10.0"
    assert drawn.waiting == "0.0,19.5 50.0,0.5 100.0,19.5"


def test_of_many_samples_as_many_are_drawn_as_can_be_seen(server_metrics: Metrics) -> None:
    drawn = trace("run", server_metrics(), [sample(float(i), i, 0) for i in range(1000)])
    assert 60 < len(drawn.running.split()) <= MAX_POINTS
    assert trace("run", server_metrics(), []).running == ""


def test_no_limit_no_bar() -> None:
    assert latency_bar(latency(500, None)) is None and latency(500, None).headroom is None


def test_a_score_is_drawn_against_its_window() -> None:
    score = Score(metric="GEN_LEN", label="gen_len", value=50.0, lower=80.0, upper=100.0, met=False)
    bar = score_bar(score)
    assert 0 < bar.value < bar.low < bar.high < 100 and not bar.met
    assert score_bar(msgspec.structs.replace(score, met=None)) is None
    open_ended = score_bar(Score(metric="ROUGE1", label="rouge1", value=0.0, lower=38.0, upper=None, met=False))
    assert open_ended.value == 0 and open_ended.high == 100

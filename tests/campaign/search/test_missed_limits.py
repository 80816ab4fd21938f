"""The cause of a missed limit: named from the server's metrics, and left out where they do not show it."""

import pytest

from cm4vllm.campaign.search.explanations import cause_of, cause_words
from cm4vllm.records.metrics import ServerMetrics, Speed, Timing
from cm4vllm.results.judgement.bottlenecks import Cause


def timing(mean_ms):
    return Timing(requests=100, mean_ms=mean_ms, p99_at_most_ms=None)


def metrics(queue=10.0, prefill=5.0, **fields):
    return ServerMetrics(
        **{
            "samples": 9,
            "interval_s": 2.0,
            "missed": 0,
            "running_max": 8,
            "running_mean": 4.0,
            "waiting_max": 3,
            "waiting_mean": 0.5,
            "kv_cache_usage_max": 0.2,
            "preemptions": 0,
            "prefix_cache_hits": 0,
            "cached_prompt_tokens": 0,
            "prompt_tokens": 10,
            "generation_tokens": 10,
            "queue": timing(queue),
            "prefill": timing(prefill),
            "decode": timing(200.0),
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("binding", "ttft_ms", "seen", "cause"),
    [
        ("TTFT", 16.0, metrics(), Cause.QUEUE),
        ("TTFT", 16.0, metrics(queue=1.0, prefill=14.0), Cause.PREFILL),
        ("TPOT", 16.0, metrics(), Cause.DECODE),
        ("TTFT", 16.0, metrics(preemptions=1), Cause.KV_CACHE),
        ("TPOT", 16.0, metrics(kv_cache_usage_max=0.99, waiting_mean=2.0), Cause.KV_CACHE),
        ("TPOT", 16.0, metrics(kv_cache_usage_max=0.99), Cause.DECODE),  # full, and nobody waits for room
        ("TTFT", 500.0, metrics(), Cause.HOST),
        ("TTFT", 16.0, metrics(queue=1.0, prefill=1.0), Cause.QUEUE),
    ],
)
def test_the_cause_is_named(binding, ttft_ms, seen, cause):
    assert cause_of(binding, ttft_ms, seen) is cause
    assert cause_words(binding, ttft_ms, seen).startswith(f"{cause}: ")


def test_what_the_metrics_do_not_tell_is_not_named():
    assert cause_words("TTFT", 10.0, None) == ""
    without = ServerMetrics(
        **{**{name: getattr(metrics(), name) for name in ServerMetrics.__struct_fields__}, "queue": None}
    )
    assert cause_of("TTFT", 10.0, without) is None
    assert cause_words("TTFT", 10.0, without).startswith("0.5 requests waited on average")


def test_a_server_that_lost_speed_in_a_probe_is_told_with_its_cause():
    slower = Speed(
        base_ms=4.0,
        per_request_ms=0.1,
        low=90.0,
        high=110.0,
        parts=10,
        slowest=0.69,
        slowest_from_s=330.0,
        slowest_to_s=347.0,
        scatter=0.02,
    )
    assert cause_words("TTFT", 16.0, metrics(speed=slower)).endswith(
        ", from 330 to 347 s the server generated 31 % fewer tokens/s than in most of the run with as many requests"
    )

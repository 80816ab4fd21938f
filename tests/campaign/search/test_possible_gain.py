"""The possible gain of other settings over the chosen one, computed from the records of a search alone."""

import math

import pytest
from msgspec.structs import replace

from cm4vllm.campaign.search.possible_gain import evidence_words, interval_of_parts, rivals
from cm4vllm.campaign.search.probing import cause_of, cause_words, drift_words
from cm4vllm.records.metrics import ServerMetrics, Speed, Timing
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict
from cm4vllm.records.searches.settings_search import Evaluation, Score, geometric_mean
from cm4vllm.results.judgement.bottlenecks import Cause


def evaluation(number, round_, *scores):
    """Return an evaluation; a score is (value, low, high), or None of a candidate that could not be measured."""
    names = ("Server", "Interactive")
    made = [
        Score(scenario=name, value=value, unit="queries/s", low=low, high=high)
        for name, (value, low, high) in zip(names, scores, strict=False)
    ]
    outcome = {"score": geometric_mean(made) if made else None, "failure": "" if made else "out of memory"}
    times = {"options": {"max-num-seqs": 8 * number} if number else {}, "seconds": 10.0, "took_s": 70.0}
    return Evaluation(number=number, round=round_, start_s=60.0, scenarios=made, **outcome, **times)


def test_the_upper_end_of_another_bracket_over_the_lower_end_of_the_chosen_one_is_the_bound():
    others = rivals([evaluation(0, 0, (9.0, 8.8, 9.2)), evaluation(1, 0, (10.0, 9.5, 10.5))], 1)
    (rival,) = others
    assert (rival.number, rival.round, rival.ratio, rival.standing) == (0, 0, 0.9, "at least 3.2 % below")
    assert rival.most == pytest.approx(9.2 / 9.5, abs=1e-4)
    assert "reaches 9.2 queries/s" in rival.why and "begins at 9.5" in rival.why
    assert evidence_words(others, 0).startswith("By the records no other tried setting is better")
    wide = rivals([evaluation(0, 0, (9.0, 8.8, 9.9)), evaluation(1, 0, (10.0, 9.5, 10.5))], 1)
    assert wide[0].standing == "up to 4.2 % better"
    words = evidence_words(wide, 3)
    assert "may be up to 4.2 % better than the chosen one by the records, the server as it is: its Server" in words
    assert words.endswith("Settings that were not tried are not covered, 3 of the candidates among them.")


@pytest.mark.parametrize(
    ("other", "chosen", "words"),
    [
        ((9.0, 9.0, None), (10.0, 9.5, 10.5), "it failed at no Server rate"),
        ((9.0, 8.8, 9.2), (10.0, None, 10.0), "the chosen one passed at no Server rate"),
        ((9.0, None, None), (10.0, None, None), "value has no interval"),
    ],
)
def test_what_the_records_do_not_bound_has_no_bound(other, chosen, words):
    others = rivals([evaluation(0, 0, other), evaluation(1, 0, chosen), evaluation(2, 0, (8.0, 7.9, 8.1))], 1)
    rival = next(rival for rival in others if rival.number == 0)
    assert (rival.most, rival.standing) == (None, "no bound")
    assert words in rival.why
    assert others[0].most is None, "those without a bound come first"
    assert "no bound, as for the server as it is: " in evidence_words(others, 0)


def test_a_candidate_that_failed_at_each_rate_is_bounded_by_the_lowest():
    others = rivals([evaluation(0, 0, (9.0, None, 9.0)), evaluation(1, 0, (10.0, 9.5, 10.5))], 1)
    assert others[0].most == pytest.approx(9.0 / 9.5, abs=1e-4)


def test_values_that_change_from_round_to_round_widen_the_bound():
    """Three candidates, whose values rise by 10 %, 0 and -10 % (logarithms), in three rounds."""
    first = [evaluation(number, 0, (10.0, 9.99, 10.01)) for number in range(3)]
    changes = (0.1, 0.0, -0.1)
    second = []
    for number, change in enumerate(changes):
        value = 10.0 * math.exp(change)
        second.append(evaluation(number, 1, (value, 0.999 * value, 1.001 * value)))
    (best, *_) = others = rivals([*first, *second], 0)
    assert {rival.round for rival in others} == {1}
    assert best.number == 1
    assert best.most == pytest.approx(math.exp(-0.1 + 2.920 * math.sqrt(2) * 0.1), abs=1e-3)
    assert "from round to round" in best.why
    alone = rivals(second, 0)
    assert alone[0].most == pytest.approx(math.exp(-0.1) * 1.001 / 0.999, abs=1e-3), "one round says nothing of that"


def test_the_last_round_beside_the_chosen_one_counts_and_trials_and_failures_do_not():
    made = [
        evaluation(0, -1, (5.0, None, None)),
        evaluation(0, 0, (9.0, 8.0, 9.9)),
        evaluation(1, 0, (10.0, 9.5, 10.5)),
        evaluation(2, 0),
        evaluation(1, 1, (10.2, 10.1, 10.3)),
        evaluation(0, 1, (9.0, 8.9, 9.1)),
    ]
    (rival,) = rivals(made, 1)
    assert (rival.number, rival.round) == (0, 1)
    assert rivals(made[1:2], 0) == []
    assert evidence_words([], 2).startswith("No other setting was measured beside the chosen one")


def test_over_several_scenarios_the_geometric_mean_of_their_bounds_counts():
    made = [evaluation(0, 0, (9.0, 8.8, 9.2), (4.0, 3.9, 4.4)), evaluation(1, 0, (10.0, 9.5, 10.5), (4.0, 3.9, 4.1))]
    assert rivals(made, 1)[0].most == pytest.approx(math.sqrt(9.2 / 9.5 * 4.4 / 3.9), abs=1e-4)
    open_ = [evaluation(0, 0, (9.0, 8.8, 9.2), (4.0, 3.9, None)), made[1]]
    assert rivals(open_, 1)[0].most is None


def test_the_interval_of_five_parts_is_that_of_their_mean():
    low, high = interval_of_parts([98.0, 99.0, 100.0, 101.0, 102.0])
    assert (low + high) / 2 == pytest.approx(100)
    assert high - 100 == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=1e-3)
    assert interval_of_parts([98.0, 99.0]) is None


# --- a server that is slower or faster than in the probes before


def speed(base_ms=4.0, per_request_ms=0.1, low=80.0, high=120.0, slowest=1.0):
    slow = {"slowest": slowest, "slowest_from_s": 330.0, "slowest_to_s": 347.0, "scatter": 0.02, "parts": 10}
    return Speed(base_ms=base_ms, per_request_ms=per_request_ms, low=low, high=high, **slow)


def probes(*speeds):
    times = {"planned_s": 30.0, "took_s": 20.0, "warm_up_s": 5.0, "ended_early": False}
    seen = {"rate": 10.0, "queries": 100, "limits": [], "verdict": Verdict.PASSES}
    return [ProbeRecord(number=number, speed=measured, **times, **seen) for number, measured in enumerate(speeds, 1)]


def test_a_server_that_was_slower_in_another_probe_is_told():
    assert drift_words(probes(speed(), None, speed(8.0, 0.1, 60.0, 140.0), speed(4.4, 0.1, 70.0))) == (
        "the server's speed changed during the search: with 100 requests a step took 14.0 ms in probe 1 and 18.0 ms in "
        "probe 3"
    )
    assert drift_words(probes(speed(8.0), speed())).endswith("took 14.0 ms in probe 2 and 18.0 ms in probe 1")


def test_noise_is_no_change_of_speed_and_other_loads_are_not_compared():
    assert drift_words(probes(speed(), speed(4.5, 0.105))) == ""
    assert drift_words(probes(speed(low=10.0, high=20.0), speed(9.0))) == ""
    assert drift_words(probes(None, speed())) == ""


# --- the cause of a missed limit: named from the server's metrics, and left out where they do not show it


def timing(mean_ms):
    return Timing(requests=100, mean_ms=mean_ms, p99_at_most_ms=None)


def metrics(queue=10.0, prefill=5.0, **fields):
    whole = dict.fromkeys(("missed", "preemptions", "prefix_cache_hits", "cached_prompt_tokens"), 0)
    whole |= {"samples": 9, "running_max": 8, "waiting_max": 3, "prompt_tokens": 10, "generation_tokens": 10}
    means = {"interval_s": 2.0, "running_mean": 4.0, "waiting_mean": 0.5, "kv_cache_usage_max": 0.2}
    times = {"queue": timing(queue), "prefill": timing(prefill), "decode": timing(200.0)}
    return ServerMetrics(**{**whole, **means, **times, **fields})


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
    without = replace(metrics(), queue=None)
    assert cause_of("TTFT", 10.0, without) is None
    assert cause_words("TTFT", 10.0, without).startswith("0.5 requests waited on average")


def test_a_server_that_lost_speed_in_a_probe_is_told_with_its_cause():
    slower = speed(low=90.0, high=110.0, slowest=0.69)
    assert cause_words("TTFT", 16.0, metrics(speed=slower)).endswith(
        ", from 330 to 347 s the server generated 31 % fewer tokens/s than in most of the run with as many requests"
    )

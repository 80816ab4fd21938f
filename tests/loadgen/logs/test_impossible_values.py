"""Values that no run has make a result INVALID, with the value among the reasons."""

import json

import pytest

from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.impossible_values import impossible_values
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.results.log_folders import Reader

PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
ONE_TOKEN = "Number of tokens need to be greater than 1"


def spread(least, percentile, largest, mean, unit):
    return {
        least: unit,
        **{percentile.format(name): (2 + place) * unit for place, name in enumerate(PERCENTILES)},
        largest: 9 * unit,
        mean: 3 * unit,
    }


def latencies(name, unit):
    least, percentile, largest, mean = map(name.format, ("min", "{}_percentile", "max", "mean"))
    return spread(least, percentile, largest, mean, unit)


SERVER = {
    "loadgen_version": "6.0.17 @ d6147c7eb7",
    "effective_scenario": "Server",
    "effective_min_duration_ms": 10_000,
    "effective_target_qps": 4,
    "effective_qsl_rng_seed": 1,
    "effective_sample_index_rng_seed": 2,
    "effective_schedule_rng_seed": 3,
    "power_begin": "11-28-2026 10:00:00.000",
    "power_end": "11-28-2026 10:00:11.000",
    "result_validity": "VALID",
    "result_perf_constraints_met": True,
    "result_min_duration_met": True,
    "result_min_queries_met": True,
    "early_stopping_met": True,
    "result_query_count": 41,
    "result_overlatency_query_count": 41,
    "result_completed_samples_per_sec": 4.0,
    "result_completed_tokens_per_second": 160.0,
    **latencies("result_{}_latency_ns", 90_000_000),
    **latencies("result_first_token_{}_latency_ns", 6_300_000),
    **spread(
        "result_time_to_output_token_min",
        "result_time_per_output_token_{}_percentile_ns",
        "result_time_to_output_token_max",
        "result_time_to_output_token_mean",
        2_100_000,
    ),
    "num_errors": 0,
}
TTFT = [key for key in SERVER if key.startswith("result_first_token")]
TPOT = [key for key in SERVER if key.startswith("result_time_")]
SINGLE_STREAM = {
    "effective_scenario": "SingleStream",
    "result_qps_with_loadgen_overhead": 3.8,
    "result_qps_without_loadgen_overhead": 3.9,
    "early_stopping_latency_ss": 400_000_000,
    "early_stopping_latency_ms": 0,  # too few queries for an estimate of the 99th percentile
}
MULTI_STREAM = {
    "effective_scenario": "MultiStream",
    "generated_samples_per_query": 8,
    "result_completed_samples_per_sec": 32.0,
    "early_stopping_latency_ms": 800_000_000,
    **spread(
        "result_min_query_latency_ns",
        "result_{}_percentile_per_query_latency_ns",
        "result_max_query_latency_ns",
        "result_mean_query_latency_ns",
        90_000_000,
    ),
}
OFFLINE = {
    "effective_scenario": "Offline",
    "generated_samples_per_query": 41,
    "result_query_count": 1,
    "result_samples_per_second": 50.6,
    "result_tokens_per_second": 2024.0,
}


def log(folder, changes=(), *, errors=(), late=""):
    """Write a log with some of its values changed, `errors` as LoadGen's, and the entry `late` logged too early."""
    values = SERVER | dict(changes)
    entries = [(key, value, False) for key, value in values.items()]
    entries[-1:-1] = [("error_runtime", text, True) for text in errors]
    lines = [
        {"key": key, "value": value, "time_ms": 5.0 if key == late else 10.0 + number, "metadata": {"is_error": error}}
        for number, (key, value, error) in enumerate(entries)
    ]
    (folder / DETAIL_LOG).write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))
    return folder


@pytest.mark.parametrize("scenario", [{}, SINGLE_STREAM, MULTI_STREAM, OFFLINE], ids=str)
def test_a_possible_result_is_valid(tmp_path, scenario):
    result = read_performance(log(tmp_path, scenario))
    assert (result.valid, result.reasons) == (True, ())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict.fromkeys(TTFT, 0), "result_first_token_max_latency_ns is 0"),
        ({"result_time_to_output_token_min": -107_815}, "result_time_to_output_token_min is -107815"),
        ({"result_completed_tokens_per_second": 0.0}, "result_completed_tokens_per_second is 0"),
        (
            {"result_99.90_percentile_latency_ns": 10**9},
            "result_max_latency_ns is 810000000, where a run has 1000000000",
        ),
        ({"result_time_per_output_token_99.00_percentile_ns": 10**8}, "a percentile is below a lower one"),
        ({"result_mean_latency_ns": 10**9}, "a mean is not between least and largest value"),
        ({"result_first_token_mean_latency_ns": 3 * 10**8}, "first tokens come after whole answers"),
        ({"result_overlatency_query_count": 42}, "more queries are late than were issued"),
        ({"power_end": "11-28-2026 09:59:59.000"}, "power_end is 2026-11-28T09:59:59+00:00"),
        ({"power_end": "11-28-2026 10:00:01.000"}, "power_begin, power_end is 1.000 s, where a run has 10 s or more"),
        ({"result_max_latency_ns": 12 * 10**9}, "is 11.000 s, where a run has 12 s or more, result_max_latency_ns"),
        (dict.fromkeys(TPOT, 0), "result_time_to_output_token_max is 0"),
        (dict.fromkeys(TPOT[1:-2], 0), "result_time_per_output_token_99.90_percentile_ns is 0"),
        ({TTFT[0]: 0}, "result_first_token_min_latency_ns is 0"),
        ({"result_inferred_completed_tokens_per_second": 0}, "result_inferred_completed_tokens_per_second is 0"),
        ({"result_scheduled_samples_per_sec": 0.0}, "result_scheduled_samples_per_sec is 0"),
        ({"result_token_throughput": -1.0}, "result_token_throughput is -1"),
        ({"result_token_throughput_with_loadgen_overhead": 0}, "result_token_throughput_with_loadgen_overhead is 0"),
        ({"result_query_count": 0}, "no queries were issued: result_query_count is 0"),
        ({"result_98.00_percentile_latency_ns": 10**9}, "result_99.00_percentile_latency_ns is 540000000"),
        (dict.fromkeys(TPOT, 10**9), "a token takes longer than whole answers"),
        (SINGLE_STREAM | {"result_qps_with_loadgen_overhead": 0.0}, "result_qps_with_loadgen_overhead is 0"),
        (SINGLE_STREAM | {"result_qps_without_loadgen_overhead": -4}, "result_qps_without_loadgen_overhead is -4"),
        (
            SINGLE_STREAM | {"early_stopping_latency_ss": 0},
            "early_stopping_latency_ss is 0, where a run has 6300000 to",
        ),
        (SINGLE_STREAM | {"early_stopping_latency_ss": 10**9}, "early_stopping_latency_ss is 1000000000"),
        (SINGLE_STREAM | {"early_stopping_latency_ms": -1}, "early_stopping_latency_ms is -1"),
        (MULTI_STREAM | {"early_stopping_latency_ms": 0}, "early_stopping_latency_ms is 0"),
        (MULTI_STREAM | {"result_max_query_latency_ns": 0}, "result_max_query_latency_ns is 0"),
        (OFFLINE | {"result_inferred_tokens_per_second": 0}, "result_inferred_tokens_per_second is 0"),
        (OFFLINE | {"result_samples_per_second": 0}, "result_samples_per_second is 0"),
    ],
)
def test_a_value_that_no_run_has_makes_the_result_invalid_and_is_named(tmp_path, changes, said):
    result = read_performance(log(tmp_path, changes))
    assert not result.valid
    assert any(reason.startswith("impossible: ") and said in reason for reason in result.reasons), result.reasons


def test_times_that_go_backwards_make_the_result_invalid(tmp_path):
    result = read_performance(log(tmp_path, late="result_query_count"))
    assert result.reasons == (
        "impossible: an entry is older than the one before it: result_query_count is 5.000000 ms, where a run has a "
        "later time",
    )


def test_the_times_of_answers_of_one_token_are_the_error_that_loadgen_logs_and_nothing_more(tmp_path):
    negative = dict.fromkeys(TPOT, -107_815)
    result = read_performance(log(tmp_path, negative | {"num_errors": 1}, errors=[ONE_TOKEN]))
    assert result.reasons == (f"LoadGen error: {ONE_TOKEN}",)
    assert not {name for name in result.figures if name.startswith("tpot")}
    below = read_performance(log(tmp_path, negative | {TTFT[0]: -1, "num_errors": 1}, errors=[ONE_TOKEN]))
    assert f"impossible: a figure is below 0: {TTFT[0]} is -1, where a run has 0 or more" in below.reasons


def test_a_run_and_a_tree_are_judged_by_the_same_comparisons(tmp_path):
    log(tmp_path, {"result_completed_tokens_per_second": 0.0})
    part = Reader(tmp_path).performance(tmp_path, None)
    named = [f"impossible: {value}" for value in impossible_values(read_detail_log(tmp_path / DETAIL_LOG))]
    assert list(part.loadgen_reasons) == named == list(read_performance(tmp_path).reasons)


@pytest.mark.parametrize(
    ("scenario", "zeros"),
    [({}, [TPOT[0], "result_overlatency_query_count"]), (SINGLE_STREAM, ["early_stopping_latency_ms"])],
    ids=["Server", "SingleStream"],
)
def test_what_may_be_zero_is_not_impossible(tmp_path, scenario, zeros):
    assert read_performance(log(tmp_path, scenario | dict.fromkeys(zeros, 0))).valid


def test_an_estimate_that_early_stopping_could_not_make_is_no_further_reason(tmp_path):
    too_few = {"early_stopping_latency_ss": 0, "early_stopping_met": False}
    (reason,) = read_performance(log(tmp_path, SINGLE_STREAM | too_few)).reasons
    assert reason.startswith("early stopping not satisfied")


def test_offline_without_tokens_has_one_reason(tmp_path):
    none = read_performance(log(tmp_path, OFFLINE | {"result_tokens_per_second": 0}))
    assert none.reasons == (
        "impossible: no tokens were made: result_tokens_per_second is 0, where a run has more than 0",
    )

"""LoadGen's logs: those of the published v4.1 submission, and spoiled ones. Fresh ones are read in test_runner."""

import json

import numpy as np
import pytest

from cm4vllm.common.errors import RunFailed
from cm4vllm.records.logs.detail_log import KEPT_TEXTS, read_detail_log
from cm4vllm.records.logs.figures import figures
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, DETAIL_LOG, read_accuracy_log, read_performance
from cm4vllm.rules import Scenario, round_terms

H100 = "4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config/llama2-70b-99/server"
L40S = "vLLM_8xL40S-reference-cpu-pytorch-v2.3.1-default_config/llama2-70b-99.9/offline"


@pytest.fixture
def published(neural_magic):
    return neural_magic / "results"


def test_a_published_server_result(published):
    result = read_performance(published / H100 / "performance/run_1")
    assert result.scenario == Scenario.SERVER
    assert result.valid
    assert result.reasons == ()
    assert result.samples == result.figures["queries"] == 24576
    assert str(result.figures["tokens_per_second"]) == "1,468.24 tokens/s"
    assert str(result.samples_per_second) == "4.99 samples/s"
    assert str(result.figures["scheduled_samples_per_second"]) == "5.01 samples/s"
    assert str(result.figures["ttft_p99"]) == "502.1 ms"
    assert str(result.figures["ttft_mean"]) == "210.3 ms"
    assert str(result.figures["tpot_mean"]) == "75.2 ms"
    assert result.target_qps == 5
    assert result.duration == pytest.approx(4922.6, abs=0.1)
    assert result.min_duration == 600
    assert result.errors == 0
    seeds = round_terms("v4.1").seeds
    assert result.seeds == (seeds.qsl, seeds.sample_index, seeds.schedule)
    assert result.loadgen_version.startswith("4.0")


def test_a_published_offline_result_has_tokens_and_samples_apart(published):
    result = read_performance(published / L40S / "performance/run_1")
    assert result.scenario == Scenario.OFFLINE
    assert str(result.figures["tokens_per_second"]) == "923.33 tokens/s"
    assert str(result.samples_per_second) == "3.15 samples/s"
    assert (result.samples, result.figures["queries"]) == (24576, 1)
    assert result.duration == pytest.approx(7795.34, abs=0.01)
    assert not {"ttft_p99", "tpot_p99", "scheduled_samples_per_second"} & result.figures.keys()


@pytest.mark.parametrize(("name", "tokens"), [(H100, 294.1), (L40S, 292.9)])
def test_the_tokens_of_a_sample_follow_from_the_rate_of_tokens(published, name, tokens):
    derived = figures(read_detail_log(published / name / "performance/run_1" / DETAIL_LOG))["tokens_per_sample"]
    assert (derived.value.unit, round(float(derived.value), 1)) == ("tokens/sample", tokens)


def test_an_accuracy_log_that_was_truncated_for_submission_is_refused(published):
    with pytest.raises(RunFailed, match="not a whole accuracy log"):
        list(read_accuracy_log(published / L40S / "accuracy" / ACCURACY_LOG))


def detail(folder, **changes):
    """Write a detail log with the entries of a short Server run, some changed; None leaves one out."""
    entries = {
        "loadgen_version": "6.0.17 @ d6147c7eb7",
        "effective_scenario": "Server",
        "effective_min_duration_ms": 600000,
        "effective_target_qps": 4,
        "effective_qsl_rng_seed": 1,
        "effective_sample_index_rng_seed": 2,
        "effective_schedule_rng_seed": 3,
        "result_validity": "INVALID",
        "result_perf_constraints_met": True,
        "result_min_duration_met": True,
        "result_min_queries_met": True,
        "early_stopping_met": True,
        "early_stopping_ttft_result": "",
        "early_stopping_tpot_result": "",
        "result_query_count": 41,
        "result_scheduled_samples_per_sec": 4.1,
        "result_completed_samples_per_sec": 4.0,
        "result_first_token_99.00_percentile_latency_ns": 16_600_000,
        "result_first_token_mean_latency_ns": 6_300_000,
        "result_time_per_output_token_99.00_percentile_ns": 990_000,
        "result_time_to_output_token_mean": 900_000,
        "result_completed_tokens_per_second": 160.0,
        "num_errors": 0,
        **changes,
    }
    lines = [
        f":::MLLOG {json.dumps({'key': key, 'value': value, 'metadata': {'is_error': False}})}"
        for key, value in entries.items()
        if value is not None
    ]
    (folder / DETAIL_LOG).write_text("\n".join(["not ours", *lines]) + "\n")
    return folder


def test_each_reason_of_an_invalid_result_is_named(tmp_path):
    result = read_performance(
        detail(
            tmp_path,
            result_min_duration_met=False,
            result_min_queries_met=False,
            result_perf_constraints_met=False,
            early_stopping_met=False,
            early_stopping_tpot_result=" * Run unsuccessful.\n * Processed 41 queries.\n * Needs 418 more",
        )
    )
    assert not result.valid
    assert result.reasons == (
        "minimum duration not met: 10.0 s of 600.0 s",
        "minimum number of queries not met: the test ended early",
        "latency limits exceeded: TTFT p99 16.6 ms, TPOT p99 1.0 ms",
        "early stopping not satisfied: TPOT: Processed 41 queries. Needs 418 more",
    )


@pytest.mark.parametrize(("counted", "logged"), [(1, False), (1, True), (0, True)])
def test_an_error_that_loadgen_counted_or_logged_makes_a_valid_result_invalid(tmp_path, counted, logged):
    path = detail(tmp_path, result_validity="VALID", num_errors=counted) / DETAIL_LOG
    assert read_performance(tmp_path).valid is (counted == 0)
    error = {"key": "error_runtime", "value": "Ran out of queries", "metadata": {"is_error": True}}
    if logged:
        path.write_text(f":::MLLOG {json.dumps(error)}\n" + path.read_text())
    result = read_performance(tmp_path)
    assert (result.valid, result.errors) == (False, 1)
    assert result.reasons == ("LoadGen error: Ran out of queries" if logged else "LoadGen counted 1 errors",)


def test_a_log_without_a_result_is_refused(tmp_path):
    with pytest.raises(RunFailed, match="not the log of a performance run that ended"):
        read_performance(detail(tmp_path, result_validity=None))
    with pytest.raises(RunFailed, match="cannot read"):
        read_performance(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "reason", ["result_min_duration_met", "result_min_queries_met", "result_perf_constraints_met", "early_stopping_met"]
)
def test_a_result_that_its_own_log_contradicts_is_not_valid(tmp_path, reason):
    result = read_performance(detail(tmp_path, result_validity="VALID", **{reason: False}))
    assert not result.valid
    assert len(result.reasons) == 1


def test_of_very_many_errors_all_are_counted_and_some_kept(tmp_path):
    detail(tmp_path)
    path = tmp_path / DETAIL_LOG
    last = path.read_text().splitlines()[-1]
    error = {"key": "error_x", "value": "lost", "metadata": {"is_error": True}}
    entry = json.loads(last.removeprefix(":::MLLOG ")) | error
    with path.open("a") as file:
        file.writelines(f":::MLLOG {json.dumps(entry)}\n" for _ in range(KEPT_TEXTS + 7))
    log = read_detail_log(path)
    assert (len(log.errors), log.error_count) == (KEPT_TEXTS, KEPT_TEXTS + 7)


def test_a_line_that_fills_the_memory_is_refused(tmp_path, monkeypatch):
    detail(tmp_path)
    monkeypatch.setattr("cm4vllm.records.logs.detail_log._LONGEST_LINE", 40)
    with pytest.raises(RunFailed) as caught:
        read_performance(tmp_path)
    assert "has more than" in caught.value.cause


def test_two_logs_in_one_file_are_refused(tmp_path):
    invalid = (detail(tmp_path, result_validity="INVALID") / DETAIL_LOG).read_text()
    valid = (detail(tmp_path, result_validity="VALID") / DETAIL_LOG).read_text()
    half = "".join(invalid.splitlines(True)[:6])
    for text in (invalid + valid, valid + half, half + valid):
        (tmp_path / DETAIL_LOG).write_text(text)
        with pytest.raises(RunFailed, match="more than the log of one run"):
            read_performance(tmp_path)


def test_entries_of_another_process_are_refused(tmp_path):
    path = detail(tmp_path, result_validity="VALID") / DETAIL_LOG
    for pid in (7, 8):
        entry = {"key": "generic_message", "value": "", "metadata": {"is_error": False, "pid": pid}}
        with path.open("a") as file:
            file.write(f":::MLLOG {json.dumps(entry)}\n")
    with pytest.raises(RunFailed, match="more than the log of one run"):
        read_performance(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("result_min_duration_met", "false"),
        ("early_stopping_met", 0),
        ("result_validity", True),
        ("result_query_count", 41.5),
        ("result_completed_samples_per_sec", "4"),
        ("effective_qsl_rng_seed", "1"),
        ("result_first_token_mean_latency_ns", "x"),
        ("result_completed_samples_per_sec", 10**400),
        ("effective_scenario", "Elsewhere"),
        ("loadgen_version", 6),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path, key, value):
    with pytest.raises(RunFailed) as failure:
        read_performance(detail(tmp_path, **{"result_validity": "VALID", key: value}))
    assert key in failure.value.cause or "Elsewhere" in failure.value.what


@pytest.mark.parametrize(
    "line",
    [
        b":::MLLOG []",
        b":::MLLOG " + b"[" * 100_000,
        b':::MLLOG {"key": "\xff"}',
        b":::MLL",
        b':::MLLOG {"key": "num_errors", "value": ' + b"9" * 5000 + b"}",
        b':::MLLOG {"key": "x", "value": NaN}',
        b':::MLLOG {"key": "x", "value": 1, "metadata": {"is_error": "false"}}',
        b':::MLLOG {"key": "x", "value": ' + b"[" * 100_000 + b'NaN, "metadata": {"is_error": false}}',
    ],
)
def test_a_line_that_is_no_entry_is_refused(tmp_path, line):
    path = detail(tmp_path, result_validity="VALID") / DETAIL_LOG
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(RunFailed, match="not a whole log"):
        read_performance(tmp_path)


def test_a_figure_without_a_value_is_no_number_and_others_are_read(tmp_path):
    path = detail(tmp_path, result_validity="VALID", num_errors=None) / DETAIL_LOG
    whole = path.read_text() + ':::MLLOG {"key": "num_errors", "value": 0, "metadata": {"is_error": false}}\n'
    for key, value in (("result_token_throughput", "Infinity"), ("result_other", "NaN")):
        entry = f':::MLLOG {{"key": "{key}", "value": {value}, "metadata": {{"is_error": false}}}}\n'
        path.write_text(whole + entry)
        assert read_performance(tmp_path).valid
    path.write_text(
        whole.replace(
            '"result_time_to_output_token_mean", "value": 900000', '"result_time_to_output_token_mean", "value": NaN'
        )
    )
    result = read_performance(tmp_path)
    assert (result.valid, "tpot_mean" in result.figures) == (False, False)
    assert "no value for result_time_to_output_token_mean" in result.reasons[0]


def test_a_log_that_ends_before_its_count_of_errors_is_refused(tmp_path):
    with pytest.raises(RunFailed, match="is not whole"):
        read_performance(detail(tmp_path, result_validity="VALID", num_errors=None))
    assert read_performance(detail(tmp_path, result_validity="VALID", num_errors=None, loadgen_version="4.0 @ 9")).valid


def accuracy_log(folder, *tokens, dtype=np.int32, **more):
    entries = [
        {"seq_id": i, "qsl_idx": i, "data": np.array(ids, dtype).tobytes().hex().upper(), **more}
        for i, ids in enumerate(tokens)
    ]
    path = folder / ACCURACY_LOG
    path.write_text(json.dumps(entries))
    return path


def test_tokens_come_back_as_they_were_written(tmp_path):
    path = accuracy_log(tmp_path, [1, 0, 128009], [7])
    assert [(i, ids.tolist(), n) for i, ids, n in read_accuracy_log(path)] == [(0, [1, 0, 128009], 3), (1, [7], 1)]


@pytest.mark.parametrize(
    ("tokens", "more", "words"),
    [
        (([1, 2, 3], [4, 5]), {"dtype": np.int64}, "every second"),
        (([1, 2**40 + 7, 3], [4, 5]), {"dtype": np.int64}, ""),  # an id exceeds 32 bits
        (([1, 2, 3],), {"token_count": 2}, "token_count"),
        (([1, -2, 3],), {}, "negative"),
    ],
)
def test_tokens_that_are_not_32_bit_ids_are_refused(tmp_path, tokens, more, words):
    with pytest.raises(RunFailed, match="not 32-bit") as failure:
        list(read_accuracy_log(accuracy_log(tmp_path, *tokens, **more)))
    assert words in failure.value.cause


def test_a_zero_token_alone_is_no_sign_of_64_bits(tmp_path):
    assert len(list(read_accuracy_log(accuracy_log(tmp_path, [5, 0], [5, 6])))) == 2


def test_64_bit_tokens_are_recognised_where_a_sample_has_odd_length(tmp_path):
    path = accuracy_log(tmp_path, [1, 2, 3], [4, 5], dtype=np.int64)
    entries = json.loads(path.read_text())
    entries[1]["data"] = np.array([4, 0, 5], np.int32).tobytes().hex()
    path.write_text(json.dumps(entries))
    with pytest.raises(RunFailed, match="not 32-bit"):
        list(read_accuracy_log(path))


@pytest.mark.parametrize(
    "text",
    [
        '[{"seq_id": 0, "qsl_idx": 0, "data": "' + "0" * 7 + '"}]',
        "[" * 100_000,
        '[{"seq_id": ' + "9" * 5000 + ', "qsl_idx": 0, "data": ""}]',
        "\xff",
    ],
)
def test_an_accuracy_log_that_is_none_is_refused(tmp_path, text):
    (tmp_path / ACCURACY_LOG).write_bytes(text.encode("latin-1"))
    with pytest.raises(RunFailed, match="not a whole accuracy log"):
        list(read_accuracy_log(tmp_path / ACCURACY_LOG))

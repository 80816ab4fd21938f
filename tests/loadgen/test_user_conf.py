"""user.conf as LoadGen reads it."""

import os
import subprocess
import sys

import pytest

from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.logs.early_stopping import passes
from cm4vllm.rules import ExecutionMode, Mode, Scenario, benchmark_terms, terms

READ = """
import sys, mlperf_loadgen as lg
s = lg.TestSettings()
assert s.FromConfig(sys.argv[1], sys.argv[3], sys.argv[2], 1) in (0, None)
print(s.min_duration_ms, s.min_query_count, s.offline_expected_qps, s.server_target_qps,
      s.performance_sample_count_override, s.use_token_latencies, s.ttft_latency, s.tpot_latency, s.qsl_rng_seed)
"""


def run_of(scenario, mode):
    return terms("v6.1", "llama3.1-8b", scenario, mode)


def as_loadgen_reads(conf, tmp_path):
    """Return what LoadGen makes of it, in a process of its own: mlperf.conf counts only once in a process."""
    path = tmp_path / "user.conf"
    path.write_text(conf.text)
    argv = [sys.executable, "-c", READ, path, conf.terms.loadgen_scenario, conf.terms.loadgen_name]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_valid_offline_run_keeps_what_the_rules_say(tmp_path):
    conf = user_conf(run_of(Scenario.OFFLINE, Mode.PERFORMANCE), ExecutionMode.VALID, target_qps=430.5)
    assert as_loadgen_reads(conf, tmp_path) == [
        "600000",
        "13368",
        "430.5",
        "1.0",
        "13368",
        "True",
        "2000000000",
        "100000000",
        "2085463073848966840",
    ]
    assert conf.samples == 13368
    assert not conf.rehearsal


def test_what_mlperf_conf_lacks_stands_in_user_conf(tmp_path):
    run_terms = terms("v6.1", "gpt-oss-120b", Scenario.OFFLINE, Mode.PERFORMANCE)
    read = as_loadgen_reads(user_conf(run_terms, ExecutionMode.VALID, target_qps=2), tmp_path)
    assert (read[1], read[4]) == ("6396", "6396")  # without it LoadGen would take 100 samples at a low rate
    old = user_conf(terms("v4.1", "mixtral-8x7b", Scenario.SERVER, Mode.PERFORMANCE), ExecutionMode.VALID, target_qps=2)
    assert "mixtral-8x7b.*.performance_sample_count_override = 15000\n" in old.text


@pytest.mark.parametrize(
    ("round_name", "rate", "pages", "doubled"),
    [
        ("v4.1", 10, 2**20, True),  # 4 GiB: too little for the 19 GB of 24,576 times 24,576 samples
        ("v4.1", 10, 2**24, False),
        ("v4.1", 50, 2**20, False),
        ("v5.0", 10, 2**20, False),
    ],
)
def test_an_offline_run_of_exactly_the_dataset_fits_into_the_memory(
    monkeypatch, capsys, round_name, rate, pages, doubled
):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)
    run_terms = terms(round_name, "llama2-70b-99", Scenario.OFFLINE, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.VALID, target_qps=rate)
    assert ("llama2-70b.Offline.min_query_count = 24577" in conf.text) is doubled
    assert ("asked for 49,152," in capsys.readouterr().out) is doubled


def test_a_valid_server_run_has_its_rate(tmp_path):
    conf = user_conf(run_of(Scenario.SERVER, Mode.PERFORMANCE), ExecutionMode.VALID, target_qps=60)
    read = as_loadgen_reads(conf, tmp_path)
    assert (read[0], read[3], read[4]) == ("600000", "60.0", "13368")


def test_a_rehearsal_is_short_small_and_says_so(tmp_path):
    conf = user_conf(run_of(Scenario.OFFLINE, Mode.PERFORMANCE), ExecutionMode.TEST, target_qps=50)
    assert conf.text.startswith("# A rehearsal")
    assert as_loadgen_reads(conf, tmp_path)[:5] == ["10000", "2", "50.0", "1.0", "256"]


def test_a_rehearsal_can_be_bounded_by_time_and_by_queries():
    def rehearsal(**bounds):
        return user_conf(run_of(Scenario.SERVER, Mode.PERFORMANCE), ExecutionMode.TEST, target_qps=20, **bounds)

    assert rehearsal(max_test_duration_s=3).min_duration_ms == 3000
    assert rehearsal(max_test_duration_s=300).min_duration_ms == 10_000
    assert (rehearsal(test_query_count=10).min_query_count, rehearsal(test_query_count=10).min_duration_ms) == (10, 0)
    assert rehearsal(test_query_count=10).performance_sample_count == 10
    assert rehearsal(test_query_count=1000, max_test_duration_s=5).min_query_count == 100


@pytest.mark.parametrize("round_name", ["v4.1", "v5.1", "v6.0", "v6.1"])
def test_a_rehearsal_has_queries_enough_for_the_early_stopping_test_wherever_latencies_have_limits(round_name):
    limited = 0
    for name in runnable_benchmarks(round_name):
        for scenario in benchmark_terms(round_name, name).scenarios:
            run_terms = terms(round_name, name, scenario, Mode.PERFORMANCE)
            conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=0.1)
            tested = run_terms.paced and run_terms.limits is not None
            limited += tested
            assert passes(conf.min_query_count, 1) is tested, (name, scenario)
    assert limited


def test_the_queries_that_a_user_asks_for_come_first():
    def queries(**bounds):
        run_terms = run_of(Scenario.SERVER, Mode.PERFORMANCE)
        return user_conf(run_terms, ExecutionMode.TEST, target_qps=20, **bounds).min_query_count

    assert (queries(), queries(test_query_count=24), queries(max_test_duration_s=5)) == (662, 24, 100)


def test_a_rehearsal_never_asks_for_more_samples_than_there_are():
    conf = user_conf(run_of(Scenario.SERVER, Mode.ACCURACY), ExecutionMode.TEST, target_qps=20, dataset_samples=100)
    assert conf.samples == conf.performance_sample_count == 100


def test_an_offline_accuracy_run_needs_no_rate():
    conf = user_conf(run_of(Scenario.OFFLINE, Mode.ACCURACY), ExecutionMode.VALID)
    assert "target_qps" not in conf.text


@pytest.mark.parametrize(
    ("scenario", "mode"),
    [(Scenario.OFFLINE, Mode.PERFORMANCE), (Scenario.SERVER, Mode.PERFORMANCE), (Scenario.SERVER, Mode.ACCURACY)],
)
@pytest.mark.parametrize("execution", list(ExecutionMode))
def test_where_loadgen_needs_a_rate_it_must_be_given(scenario, mode, execution):
    with pytest.raises(UsageError, match="target_qps"):
        user_conf(run_of(scenario, mode), execution)


def test_a_valid_run_needs_the_whole_dataset():
    with pytest.raises(DatasetError, match="13368"):
        user_conf(run_of(Scenario.OFFLINE, Mode.ACCURACY), ExecutionMode.VALID, dataset_samples=13367)


@pytest.mark.parametrize(
    "bad",
    [
        {"target_qps": 0},
        {"target_qps": -1},
        {"target_qps": float("nan")},
        {"test_query_count": 0},
        {"max_test_duration_s": 0},
    ],
)
def test_impossible_values_are_refused(bad):
    with pytest.raises(UsageError, match="greater than 0"):
        user_conf(run_of(Scenario.SERVER, Mode.PERFORMANCE), ExecutionMode.TEST, **{"target_qps": 5, **bad})


def test_a_rehearsal_covers_as_many_samples_as_it_is_asked_for():
    for count, samples in ((None, 256), (600, 600), (10, 10), (20_000, 13_368)):
        conf = user_conf(run_of(Scenario.OFFLINE, Mode.ACCURACY), ExecutionMode.TEST, test_query_count=count)
        assert conf.samples == conf.performance_sample_count == samples
        assert conf.rehearsal


def test_a_single_stream_run_is_sized_by_the_latency_that_is_expected():
    edge = terms("v6.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM, Mode.PERFORMANCE)
    valid = user_conf(edge, ExecutionMode.VALID, target_qps=1 / 0.3)
    assert valid.text == (
        "llama3_1-8b-edge.SingleStream.target_latency = 300.0\nllama3_1-8b-edge.SingleStream.min_duration = 600000\n"
    )
    assert valid.samples == 5000
    for execution in ExecutionMode:
        with pytest.raises(UsageError, match="no expected latency for the SingleStream performance run") as refused:
            user_conf(edge, execution)
        assert "--target_latency" in refused.value.remedy
    answers = terms("v6.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM, Mode.ACCURACY)
    assert user_conf(answers, ExecutionMode.VALID).text == "llama3_1-8b-edge.SingleStream.min_duration = 600000\n"


@pytest.mark.parametrize(
    ("given", "samples", "queries"),
    [
        ({"test_query_count": 96}, 96, 95),
        ({"test_query_count": 96, "max_test_duration_s": 5, "target_qps": 10}, 50, 49),
        ({"target_qps": 200}, 256, 1),
        ({"target_qps": 12}, 120, 1),
        ({"target_qps": 0.5}, 64, 1),
        ({"target_qps": 1, "dataset_samples": 20}, 20, 1),
    ],
)
def test_a_rehearsal_of_a_single_stream_is_one_whole_pass(given, samples, queries):
    """LoadGen rounds up to whole passes over the samples: a slow server's rehearsal has few of them."""
    edge = terms("v6.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM, Mode.PERFORMANCE)
    conf = user_conf(edge, ExecutionMode.TEST, **given)
    assert (conf.samples, conf.min_query_count) == (samples, queries)
    assert ("target_latency" in conf.text) is ("target_qps" in given)
    assert "target_qps" not in conf.text

"""user.conf as LoadGen reads it."""

import os
import re
import subprocess
import sys

import pytest
from fake_vllm import FakeVllm, prompt
from msgspec.structs import replace

from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.compliance.audit import audit_config, require_applied
from cm4vllm.loadgen.given_conf import rate_in, require_usable_conf
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.loadgen.wheel import LoadGenSettings, provide
from cm4vllm.records.logs.answers import read_answers
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.early_stopping import passes
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_performance
from cm4vllm.rules import ExecutionMode, Mode, Scenario, audit, benchmark_terms, round_names, terms

READ = """
import sys, mlperf_loadgen as lg
s = lg.TestSettings()
accepted = s.FromConfig(sys.argv[1], sys.argv[3], sys.argv[2], 1) in (0, None)
print(s.min_duration_ms, s.min_query_count, s.offline_expected_qps, s.server_target_qps,
      s.performance_sample_count_override, s.use_token_latencies, s.ttft_latency, s.tpot_latency, s.qsl_rng_seed,
      1e9 / s.single_stream_expected_latency_ns, accepted)
"""


def run_of(scenario, mode):
    return terms("v6.1", "llama3.1-8b", scenario, mode)


def as_loadgen_reads(text, of, tmp_path):
    """Return what LoadGen makes of it, in a process of its own: mlperf.conf counts only once in a process."""
    path = tmp_path / "user.conf"
    path.write_text(text, encoding="utf-8", newline="")
    argv = [sys.executable, "-c", READ, path, of.loadgen_scenario, of.loadgen_name]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def loadgens_rate(text, of, tmp_path):
    """Return whether LoadGen accepts a user.conf, and its rate."""
    read = as_loadgen_reads(text, of, tmp_path)
    return read[-1] == "True", float(read[{"Offline": 2, "Server": 3}.get(of.loadgen_scenario, -2)])


def test_a_valid_offline_run_keeps_what_the_rules_say(tmp_path):
    conf = user_conf(run_of(Scenario.OFFLINE, Mode.PERFORMANCE), ExecutionMode.VALID, target_qps=430.5)
    read = as_loadgen_reads(conf.text, conf.terms, tmp_path)
    assert read[:-2] == "600000 13368 430.5 1.0 13368 True 2000000000 100000000 2085463073848966840".split()
    assert conf.samples == 13368
    assert not conf.rehearsal


def test_what_mlperf_conf_lacks_stands_in_user_conf(tmp_path):
    run_terms = terms("v6.1", "gpt-oss-120b", Scenario.OFFLINE, Mode.PERFORMANCE)
    text = user_conf(run_terms, ExecutionMode.VALID, target_qps=2).text
    read = as_loadgen_reads(text, run_terms, tmp_path)
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


def test_a_rehearsal_is_short_small_and_says_so(tmp_path):
    conf = user_conf(run_of(Scenario.OFFLINE, Mode.PERFORMANCE), ExecutionMode.TEST, target_qps=50)
    assert conf.text.startswith("# A rehearsal")
    assert as_loadgen_reads(conf.text, conf.terms, tmp_path)[:5] == ["10000", "2", "50.0", "1.0", "256"]


def test_a_rehearsal_can_be_bounded_by_time_and_by_queries():
    def rehearsal(**bounds):
        return user_conf(run_of(Scenario.SERVER, Mode.PERFORMANCE), ExecutionMode.TEST, target_qps=20, **bounds)

    assert rehearsal(max_test_duration_s=3).min_duration_ms == 3000
    assert rehearsal(max_test_duration_s=300).min_duration_ms == 10_000
    assert (rehearsal(test_query_count=10).min_query_count, rehearsal(test_query_count=10).min_duration_ms) == (10, 0)
    assert rehearsal(test_query_count=10).performance_sample_count == 10
    assert rehearsal(test_query_count=1000, max_test_duration_s=5).min_query_count == 100
    assert (rehearsal().min_query_count, rehearsal(max_test_duration_s=5).min_query_count) == (662, 100)
    assert rehearsal(dataset_samples=100).samples == 100


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


@pytest.mark.parametrize(
    ("scenario", "mode"),
    [(Scenario.OFFLINE, Mode.PERFORMANCE), (Scenario.SERVER, Mode.PERFORMANCE), (Scenario.SERVER, Mode.ACCURACY)],
)
@pytest.mark.parametrize("execution", list(ExecutionMode))
def test_where_loadgen_needs_a_rate_it_must_be_given(scenario, mode, execution):
    with pytest.raises(UsageError, match="target_qps"):
        user_conf(run_of(scenario, mode), execution)


def test_a_valid_run_needs_the_whole_dataset_and_one_of_accuracy_no_rate():
    assert "target_qps" not in user_conf(run_of(Scenario.OFFLINE, Mode.ACCURACY), ExecutionMode.VALID).text
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


# --- a run with the LoadGen of each round: its own wheel, whose log carries the round's seeds and limits


BOTH = (Scenario.OFFLINE, Scenario.SERVER)
CELLS = [
    ("v4.1", "llama2-70b-99.9", Scenario.OFFLINE),
    ("v6.1", "llama2-70b-99.9", Scenario.OFFLINE),
    ("v6.1", "llama3.1-8b", Scenario.INTERACTIVE),
    ("v5.0", "llama3.1-405b", Scenario.SERVER),
    ("v6.0", "llama3.1-405b", Scenario.INTERACTIVE),
    ("v5.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM),
    ("v4.1", "mixtral-8x7b", Scenario.SERVER),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Install each round's LoadGen in a folder of its own; give the folders by round."""
    folder = tmp_path_factory.mktemp("wheels")
    return {name: provide(LoadGenSettings(round=name), folder / name).pythonpath for name in round_names()}


@pytest.mark.parametrize(("round_name", "benchmark", "scenario"), CELLS)
def test_the_log_is_of_the_round_the_benchmark_and_the_scenario(
    tmp_path, make_settings, wheels, round_name, benchmark, scenario
):
    run_terms = terms(round_name, benchmark, scenario, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=50, test_query_count=64, dataset_samples=64)
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server" if run_terms.first_token else "Offline", "performance")
        settings = replace(settings, terms=run_terms, user_conf=conf.text, target_qps=50)
        record = run(settings, tmp_path / "run", pythonpath=wheels[round_name])
    programs = [prompt(index) for index in range(2, 64, 3)] if run_terms.stops else []
    assert all(body.get("stop") == (["\n```\n"] if body["prompt"] in programs else None) for body in server.bodies)
    result = read_performance(tmp_path / "run")
    assert result.seeds == (run_terms.seeds.qsl, run_terms.seeds.sample_index, run_terms.seeds.schedule)
    assert result.scenario == run_terms.loadgen_scenario
    assert result.target_qps == pytest.approx(50, rel=0.2)
    assert record.versions["mlcommons-loadgen"] in (run_terms.loadgen.wheel, run_terms.loadgen.first)
    if run_terms.at_once:  # 64 samples of 64
        generated = re.findall(r'"generated_query_count", "value": (\d+)', (tmp_path / "run" / DETAIL_LOG).read_text())
        assert generated == ["64" if run_terms.loadgen.repeats_whole_datasets else "1"]


@pytest.mark.parametrize(
    ("round_name", "scenario"), [(name, BOTH[(place + 1) % 2]) for place, name in enumerate(round_names())]
)
def test_loadgen_applies_the_settings_of_a_compliance_test(tmp_path, make_settings, wheels, round_name, scenario):
    run_terms = terms(round_name, "llama2-70b-99.9", scenario, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=200, test_query_count=64, dataset_samples=64)
    with FakeVllm() as server:
        settings = make_settings(
            server.endpoint, scenario, "performance", compliance_test="TEST06", audit_config=audit_config("TEST06")
        )
        run(replace(settings, terms=run_terms, user_conf=conf.text), tmp_path / "run", pythonpath=wheels[round_name])
    require_applied(read_detail_log(tmp_path / "run" / DETAIL_LOG), audit("TEST06"))
    answers = read_answers(tmp_path / "run" / ACCURACY_LOG)
    assert len(answers) >= 100  # LoadGen of v4.1 issues whole passes over the samples, and draws
    assert all(bool(answer.first) == run_terms.first_token and answer.tokens for answer in answers)


# --- a user.conf of the user's own: what LoadGen takes of it, and what is named before a run


def run_given(scenario="Offline", benchmark="llama3.1-8b", round_="v6.1"):
    return terms(round_, benchmark, Scenario(scenario), Mode.PERFORMANCE)


@pytest.mark.parametrize(
    ("text", "scenario", "words"),
    [
        ("llama2-70b.Offline.target_qps = 200\n", "Offline", "LoadGen's name of this benchmark is llama3_1-8b"),
        ("*.Offline.target_qsp = 200\n", "Offline", "no setting target_qsp of Offline; did you mean 'target_qps'"),
        ("*.offline.target_qps = 200\n", "Offline", "no scenario offline; did you mean 'Offline'"),
        ("*.Offline.target_qps=200\n\nbert.Offline.target_qps = 3\n", "Offline", "\nline 3, 'bert.Offline"),  # all
        ("target_qps = 200\n", "Server", "it is not NAME.SCENARIO.SETTING = NUMBER"),
        ("# ours\n\n*.Offline.target_latency = 9\n", "Offline", "line 3, '*.Offline.target_latency = 9'"),
        ("*.Offline.target_qps = 200 # per GPU 25\n", "Offline", "nor a comment that begins with '# '"),
        ("#our system\n", "Offline", "nor a comment that begins with '# '"),
        ("*.*.schedule_rng_seed = 1\n", "Server", "from its own mlperf.conf alone"),
        ("*.Server.ttft_latency = 5000\n", "Server", "the rules of llama3.1-8b have 2000"),
        ("*.*.use_token_latencies = 0\n", "Server", "the rules of llama3.1-8b have 1"),
        ("*.Server.target_latency_percentile = 50\n", "Server", "the rules of llama3.1-8b have 99"),
        ("*.*.infer_token_latencies = 1\n", "Server", "the rules fix it"),
        ("*.*.token_latency_scaling_factor = 3\n", "Server", "the rules fix it"),
        ("*.*.performance_issue_same = 1\n", "Offline", "it is for compliance tests"),
        ("*.Server.accuracy_log_sampling_target = 100\n", "Server", "it is for compliance tests"),
        ("*.*.sample_concatenate_permutation = 0\n", "Offline", "the rules of llama3.1-8b have 1"),
        ("*.*.mode = 2\n", "Offline", "each run has the mode"),
        ("*.Server.target_qps = 0\n", "Server", "greater than 0"),
        ("*.Offline.target_qps = nan\n", "Offline", "greater than 0"),
        ("*.Offline.target_qps = inf\n", "Offline", "greater than 0"),
        ("*.Offline.min_duration = -1\n", "Offline", "of 0 or more"),
        ("*.Server.target_qps\xa0=\xa050\n", "Server", r"'*.Server.target_qps\xa0=\xa050': it is not NAME"),
    ],
)
def test_a_line_that_sets_nothing_or_another_limit_is_named(text, scenario, words):
    with pytest.raises(UsageError) as caught:
        require_usable_conf(text, run_given(scenario))
    assert words in caught.value.cause
    assert f"llama3_1-8b.{scenario}.SETTING = NUMBER" in caught.value.remedy


@pytest.mark.parametrize(
    ("line", "scenario", "words"),
    [
        ("*.Server.min_duration = 1", "Server", "have 600000 at least"),
        ("*.*.max_duration = 60000", "Server", "have 600000 at least"),
        ("*.Offline.min_query_count = 100", "Offline", "have 13368 at least"),
        ("*.*.performance_sample_count_override = 64", "Offline", "have 13368; a run"),
    ],
)
def test_a_valid_run_has_the_least_length_of_the_rules_and_a_rehearsal_not(line, scenario, words):
    require_usable_conf(line, run_given(scenario))
    with pytest.raises(UsageError) as caught:
        require_usable_conf(line, run_given(scenario), ExecutionMode.VALID)
    assert words in caught.value.cause


@pytest.mark.parametrize("execution", ExecutionMode)
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_the_values_of_the_rules_and_longer_runs_are_usable(execution, scenario):
    """None of the lines is refused."""
    lines = (
        "*.Server.target_latency_percentile = 99",
        "*.*.sample_concatenate_permutation = 1",
        "*.*.performance_issue_same = 0",
        "*.*.min_duration = 700000",
        "*.*.max_duration = 0",
        "*.*.performance_sample_count_override = 13368",
        f"*.{scenario}.target_qps = 0.01",
        "*.*.min_query_count = 300000",
    )
    text = "\n".join(lines)
    require_usable_conf(text, run_given(scenario), execution)
    assert rate_in(text, run_given(scenario)) == 0.01


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        ("*.Offline.target_qps = 200\n*.Server.target_qps = 150\n*.SingleStream.target_latency = 12.5\n", "Offline"),
        ("*.Offline.target_qps = 200\n*.Server.target_qps = 150\n*.SingleStream.target_latency = 12.5\n", "Server"),
        ("*.Offline.target_qps = 200\n*.SingleStream.target_latency = 12.5\n", "SingleStream"),
        ("# two models\nllama3_1-8b.Server.target_qps = 7\nllama2-70b.Server.target_qps = 3\n", "Server"),
        ("*.*.target_qps = 4\nllama3_1-8b.*.target_qps = 5\n*.Server.target_qps = 6\n", "Server"),
        ("*.Offline.target_qps = 1e2\n*.Offline.target_qps = 0x20\n", "Offline"),
        ("#*.Server.target_qps = 9\n#old\n*.Server.min_duration = 1000\n", "Server"),
        ("", "Offline"),
    ],
)
def test_the_rate_is_the_one_that_loadgen_reads(tmp_path, text, scenario):
    of = run_given(scenario, "llama3.1-8b" if scenario != "SingleStream" else "llama3.1-8b-edge")
    text = text if scenario != "SingleStream" else text.replace("llama3_1-8b", of.loadgen_name)
    require_usable_conf(text, of)
    assert loadgens_rate(text, of, tmp_path) == (True, pytest.approx(rate_in(text, of), rel=1e-6))


@pytest.mark.parametrize(("value", "whole"), [("6e5", "6"), ("0700000", "229376"), ("700000.5", "700000"), (".7", "0")])
def test_a_whole_number_is_refused_where_loadgen_reads_another(tmp_path, value, whole):
    text = f"*.Server.min_duration = {value}\n"
    assert as_loadgen_reads(text, run_given("Server"), tmp_path)[0] == whole
    with pytest.raises(UsageError, match=f"would take {whole} for it"):
        require_usable_conf(text, run_given("Server"))


@pytest.mark.parametrize(
    "text",
    [
        "*.Offline.target_qps = 200 # per GPU 25\n",
        "#our system\n",
        "*.Offline.a = 1_0\n",
        "*.Offline.target_qps = \u0665\n",
        "*.Offline.target_qps = 5\r*.Offline.min_duration = 1\r",
        "*.Offline.target_qps = 5\u2028*.Offline.min_duration = 1\n",
    ],
)
def test_files_that_loadgen_refuses_are_refused_before(tmp_path, text):
    assert not loadgens_rate(text, run_given(), tmp_path)[0]
    with pytest.raises(UsageError):
        require_usable_conf(text, run_given())


@pytest.mark.parametrize("round_", ["v5.0", "v5.1", "v6.0", "v6.1"])
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_every_user_conf_that_is_written_here_is_usable(round_, scenario):
    for execution in ExecutionMode:
        of = run_given(scenario, "llama2-70b-99.9", round_)
        text = user_conf(of, execution, target_qps=12.3456789).text
        require_usable_conf(text, of, execution)
        assert rate_in(text, of) == 12.3456789

"""A user.conf of the user's own: what LoadGen takes of it, and what is named before a run."""

import subprocess
import sys

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.loadgen.given_conf import rate_in, require_usable_conf
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms

READ = """
import sys, mlperf_loadgen as lg
s = lg.TestSettings()
accepted = s.FromConfig(sys.argv[1], sys.argv[3], sys.argv[2], 1) in (0, None)
rates = {"Offline": s.offline_expected_qps, "Server": s.server_target_qps}
print(accepted, rates.get(sys.argv[2], 1e9 / s.single_stream_expected_latency_ns))
"""


def run_of(scenario="Offline", benchmark="llama3.1-8b", round_="v6.1"):
    return terms(round_, benchmark, Scenario(scenario), Mode.PERFORMANCE)


def loadgens_rate(text, of, tmp_path):
    """Return whether LoadGen accepts a user.conf, and its rate; in a process of its own, as it needs."""
    path = tmp_path / "user.conf"
    path.write_text(text)
    argv = [sys.executable, "-c", READ, path, of.loadgen_scenario, of.loadgen_name]
    accepted, rate = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return accepted == "True", float(rate)


@pytest.mark.parametrize(
    ("text", "scenario", "words"),
    [
        ("llama2-70b.Offline.target_qps = 200\n", "Offline", "LoadGen's name of this benchmark is llama3_1-8b"),
        ("llama3.1-8b.Offline.target_qps = 200\n", "Offline", "LoadGen's name of this benchmark is llama3_1-8b"),
        ("*.Offline.target_qsp = 200\n", "Offline", "no setting target_qsp of Offline; did you mean 'target_qps'"),
        ("*.offline.target_qps = 200\n", "Offline", "no scenario offline; did you mean 'Offline'"),
        ("*.Offline.target_qps=200\n", "Offline", "line 1, '*.Offline.target_qps=200'"),
        ("target_qps = 200\n", "Server", "it is not NAME.SCENARIO.SETTING = NUMBER"),
        ("# ours\n\n*.Offline.target_latency = 9\n", "Offline", "line 3, '*.Offline.target_latency = 9'"),
        ("*.Offline.target_qps = 200 # per GPU 25\n", "Offline", "nor a comment that begins with '# '"),
        ("#our system\n", "Offline", "nor a comment that begins with '# '"),
        ("*.*.schedule_rng_seed = 1\n", "Server", "from its own mlperf.conf alone"),
        ("*.Server.ttft_latency = 5000\n", "Server", "the rules of llama3.1-8b have 2000"),
        ("llama3_1-8b.*.tpot_latency = 1\n", "Server", "the rules of llama3.1-8b have 100"),
        ("*.*.use_token_latencies = 0\n", "Server", "the rules of llama3.1-8b have 1"),
        ("*.Server.target_latency_percentile = 50\n", "Server", "the rules of llama3.1-8b have 99"),
        ("*.Server.target_latency_percentile = 0.99\n", "Server", "the rules of llama3.1-8b have 99"),
        ("*.*.infer_token_latencies = 1\n", "Server", "the rules fix it"),
        ("*.*.infer_token_latencies = 0\n", "Offline", "the rules fix it"),
        ("*.*.token_latency_scaling_factor = 3\n", "Server", "the rules fix it"),
        ("*.*.performance_issue_same = 1\n", "Offline", "it is for compliance tests"),
        ("llama3_1-8b.*.performance_issue_unique = 1\n", "Server", "it is for compliance tests"),
        ("*.Server.accuracy_log_sampling_target = 100\n", "Server", "it is for compliance tests"),
        ("*.*.sample_concatenate_permutation = 0\n", "Offline", "the rules of llama3.1-8b have 1"),
        ("*.*.mode = 2\n", "Offline", "each run has the mode"),
        ("*.Server.mode = 0\n", "Server", "each run has the mode"),
        ("*.Server.target_qps = 0\n", "Server", "greater than 0"),
        ("*.Offline.target_qps = nan\n", "Offline", "greater than 0"),
        ("*.Server.target_qps = -5\n", "Server", "greater than 0"),
        ("*.Offline.target_qps = inf\n", "Offline", "greater than 0"),
        ("*.Offline.min_duration = -1\n", "Offline", "of 0 or more"),
        ("*.*.max_query_count = nan\n", "Server", "of 0 or more"),
    ],
)
def test_a_line_that_sets_nothing_or_another_limit_is_named(text, scenario, words):
    with pytest.raises(UsageError) as caught:
        require_usable_conf(text, run_of(scenario))
    assert words in caught.value.cause
    assert f"llama3_1-8b.{scenario}.SETTING = NUMBER" in caught.value.remedy


@pytest.mark.parametrize(
    ("line", "scenario", "words"),
    [
        ("*.Server.min_duration = 1", "Server", "have 600000 at least"),
        ("*.*.min_duration = 599999", "Offline", "have 600000 at least"),
        ("*.*.max_duration = 60000", "Server", "have 600000 at least"),
        ("*.Offline.min_query_count = 100", "Offline", "have 13368 at least"),
        ("*.Offline.max_query_count = 100", "Offline", "have 13368 at least"),
        ("*.*.performance_sample_count_override = 64", "Offline", "have 13368; a run"),
    ],
)
def test_a_valid_run_has_the_least_length_of_the_rules_and_a_rehearsal_not(line, scenario, words):
    require_usable_conf(line, run_of(scenario))
    with pytest.raises(UsageError) as caught:
        require_usable_conf(line, run_of(scenario), ExecutionMode.VALID)
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
    require_usable_conf(text, run_of(scenario), execution)
    assert rate_in(text, run_of(scenario)) == 0.01


def test_all_lines_are_named_at_once():
    with pytest.raises(UsageError) as caught:
        require_usable_conf("*.Offline.min_durations = 1\nbert.Offline.target_qps = 3\n", run_of())
    assert len(caught.value.cause.splitlines()) == 2


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
        ("*.Server.ttft_latency = 2000\n", "Server"),
        ("", "Offline"),
    ],
)
def test_the_rate_is_the_one_that_loadgen_reads(tmp_path, text, scenario):
    of = run_of(scenario, "llama3.1-8b" if scenario != "SingleStream" else "llama3.1-8b-edge")
    text = text if scenario != "SingleStream" else text.replace("llama3_1-8b", of.loadgen_name)
    require_usable_conf(text, of)
    assert loadgens_rate(text, of, tmp_path) == (True, pytest.approx(rate_in(text, of), rel=1e-6))


@pytest.mark.parametrize("text", ["*.Offline.target_qps = 200 # per GPU 25\n", "#our system\n", "*.Offline.a = 1_0\n"])
def test_files_that_loadgen_refuses_are_refused_before(tmp_path, text):
    assert not loadgens_rate(text, run_of(), tmp_path)[0]
    with pytest.raises(UsageError):
        require_usable_conf(text, run_of())


@pytest.mark.parametrize("round_", ["v5.0", "v5.1", "v6.0", "v6.1"])
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_every_user_conf_that_is_written_here_is_usable(round_, scenario):
    for execution in ExecutionMode:
        of = run_of(scenario, "llama2-70b-99.9", round_)
        text = user_conf(of, execution, target_qps=12.3456789).text
        require_usable_conf(text, of, execution)
        assert rate_in(text, of) == 12.3456789

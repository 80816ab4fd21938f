"""audit.config: the official settings and thresholds, setting by setting; and that LoadGen used them."""

import pytest
from compliance_logs import OFFICIAL

from cm4vllm.common.errors import RunFailed, UsageError
from cm4vllm.compliance.audit import audit_config, require_applied
from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.rules import audit

#: LoadGen's lines on the settings of TEST06 (6.0.17).
LOGGED = {
    "effective_scenario": "Server",
    "effective_test_mode": "PerformanceOnly",
    "effective_min_sample_count": 100,
    "effective_accuracy_log_rng_seed": 720381539243781796,
    "effective_accuracy_log_sampling_target": 100,
    "effective_accuracy_log_probability": 0,
    "effective_min_duration_ms": 0,
    "effective_sample_concatenate_permutation": False,
}


def settings_of(text):
    """Return the values of an audit.config by key, as numbers."""
    lines = (line.partition("#")[0].partition("=") for line in text.splitlines())
    return {key.strip(): float(value) for key, _, value in lines if value.strip()}


@pytest.mark.parametrize(
    ("commit", "test", "inside"),
    [
        ("newest", "TEST06", ""),
        ("v4.1", "TEST06", ""),
        ("newest", "TEST07", "gpt-oss-120b/"),
        ("newest", "TEST09", "gpt-oss-120b/"),
    ],
)
def test_it_has_the_settings_of_the_official_file(official_file, commit, test, inside):
    name, folder = OFFICIAL[commit]
    text = official_file(name, f"{folder}/{test}/{inside}audit.config")
    assert settings_of(audit_config(test)) == settings_of(text)


def test_no_test_has_no_file_and_an_unknown_one_is_refused():
    assert audit_config("") == ""
    with pytest.raises(UsageError):
        audit_config("TEST01")


def test_a_log_of_a_run_with_its_settings_is_taken(tmp_path):
    """The check raises an error for each setting that is another, as the next test shows."""
    require_applied(DetailLog(tmp_path, LOGGED, (), ()), audit("TEST06"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("effective_test_mode", "AccuracyOnly"),
        ("effective_min_sample_count", 24576),
        ("effective_accuracy_log_sampling_target", 0),
        ("effective_min_duration_ms", 600000),
        ("effective_sample_concatenate_permutation", True),
        ("effective_accuracy_log_rng_seed", 0),
    ],
)
def test_a_log_of_a_run_with_other_settings_is_refused(tmp_path, key, value):
    with pytest.raises(RunFailed, match="is not the log of a run of TEST06"):
        require_applied(DetailLog(tmp_path, LOGGED | {key: value}, (), ()), audit("TEST06"))

"""Whole runs of compliance tests: the real LoadGen in its process with audit.config, and the verdicts on their logs."""

import json
from pathlib import Path

import pytest
from compliance_logs import OFFICIAL
from logged_runs import SAMPLES, make_dataset, make_logged_run
from msgspec.structs import replace

from cm4vllm.campaign.kept_results import kept_result
from cm4vllm.campaign.planning.step_environment import StepEnvironment
from cm4vllm.campaign.planning.steps import Product, Step
from cm4vllm.common.errors import InvalidResult, ModelError, RunFailed, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record, write_record
from cm4vllm.compliance import verification
from cm4vllm.compliance.audit import audit_config, require_applied
from cm4vllm.compliance.run_verdict import Verdict
from cm4vllm.compliance.test06 import end_tokens
from cm4vllm.compliance.verification import require_passed, verify_run
from cm4vllm.records.compliance import COMPLIANCE_FILE, CheckResult, ComplianceRecord
from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.rules import audit


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    """Make the run of a test against the test peer, in a scenario, and return its folder."""
    folder = tmp_path_factory.mktemp("compliance")
    dataset = make_dataset(folder)
    made = {}

    def make(test, scenario):
        if (test, scenario) not in made:
            made[test, scenario] = make_logged_run(test, scenario, folder, dataset)
        (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
        return made[test, scenario]

    return make


@pytest.mark.parametrize(("scenario", "first"), [("Offline", "Skipped"), ("Server", "True")])
def test_a_right_server_passes_test06(make_run, scenario, first):
    folder = make_run("TEST06", scenario)
    record = verify_run(folder)
    require_passed(record)
    assert (record.passed, record.answers, record.scenario) == (True, 100, scenario)
    assert read_record(folder / COMPLIANCE_FILE, ComplianceRecord) == record
    assert (folder / "verify_accuracy.txt").read_text().splitlines() == [
        f"First token check pass: {first}",
        "EOS check pass: True",
        "Sample length check pass: True",
        "TEST06 verification complete",
    ]
    assert read_record(folder / RUN_FILE, RunRecord).files["audit.config"] == sha256_of(folder / "audit.config")


@pytest.mark.parametrize("change", [lambda path: path.write_text("EOS check pass: True\n"), Path.unlink])
def test_a_verdict_is_kept_with_the_text_that_was_written_alone(make_run, change):
    folder = make_run("TEST06", "Offline")
    record = verify_run(folder)
    assert record.files == {"verify_accuracy.txt": sha256_of(folder / "verify_accuracy.txt")}
    step = Step(name="verdict", tags="", product=Product.VERDICT)
    env = {"CM_MLPERF_COMPLIANCE_RESULTS_DIR": str(folder)}
    known = kept_result(step, step.inputs, StepEnvironment(env), "").digest
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports
    change(folder / "verify_accuracy.txt")
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports is None
    verify_run(folder)
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports


def test_answers_that_end_with_repeated_end_tokens_fail(make_run):
    folder = make_run("TEST06", "Server")
    (folder.parents[1] / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(2000))}))
    record = verify_run(folder)
    assert "EOS check pass: False" in (folder / "verify_accuracy.txt").read_text()
    with pytest.raises(InvalidResult, match="TEST06 failed in Server") as failed:
        require_passed(record)
    assert "end tokens" in failed.value.cause


def test_test09_holds_the_lengths_of_all_answers_against_its_bounds(make_run):
    folder = make_run("TEST09", "Offline")
    record = verify_run(folder)
    assert (record.answers, record.shows_logs, record.passed) == (SAMPLES, True, False)
    assert [check.passed for check in record.checks] == [False, True, True]  # short, as the answers of 128 tokens are
    assert "TEST FAIL" in (folder / "verify_output_len.txt").read_text()


def test_a_run_that_did_not_apply_audit_config_or_whose_log_was_changed_is_refused(make_run, tmp_path):
    folder = make_run("TEST09", "Offline")
    record = read_record(folder / RUN_FILE, RunRecord)
    wrong = replace(record, settings=replace(record.settings, compliance_test="TEST06"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_record(tmp_path / RUN_FILE, wrong)
    with pytest.raises(RunFailed, match="is not the log of a run of TEST06"):
        verify_run(tmp_path)
    write_record(tmp_path / RUN_FILE, record)
    with (tmp_path / "mlperf_log_accuracy.json").open("a") as log:
        log.write(" ")
    with pytest.raises(RunFailed, match="is not the log that the run wrote"):
        verify_run(tmp_path)


def test_the_end_tokens_are_those_of_the_models_files(tmp_path):
    with pytest.raises(ModelError, match="end tokens"):
        end_tokens(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    assert end_tokens(tmp_path) == {2}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128001, 128009]}')
    assert end_tokens(tmp_path) == {128001, 128009}


def test_a_text_in_which_the_checkers_would_read_another_verdict_is_refused(make_run, monkeypatch):
    folder = make_run("TEST09", "Offline")
    passed = Verdict((CheckResult(name="Min check pass", passed=True, found=""),), last=("TEST DONE", "TEST FAIL"))
    monkeypatch.setattr(verification, "_verifier", lambda test: lambda run: passed)
    with pytest.raises(RunFailed, match="verify_output_len.txt contradicts the verdict") as refused:
        verify_run(folder)
    assert "'TEST PASS'" in refused.value.cause


# --- audit.config: the official settings and thresholds, setting by setting; and that LoadGen used them


#: LoadGen's lines on the settings of TEST06 (6.0.17).
LOGGED = {
    **{"effective_scenario": "Server", "effective_test_mode": "PerformanceOnly", "effective_min_sample_count": 100},
    **{"effective_accuracy_log_rng_seed": 720381539243781796, "effective_accuracy_log_sampling_target": 100},
    **{"effective_accuracy_log_probability": 0, "effective_min_duration_ms": 0},
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
    require_applied(DetailLog(tmp_path, LOGGED, (), ()), audit("TEST06"))
    with pytest.raises(RunFailed, match="is not the log of a run of TEST06"):
        require_applied(DetailLog(tmp_path, LOGGED | {key: value}, (), ()), audit("TEST06"))

"""Any submission tree checked as a user checks it."""

import json
import shutil

import pytest

from cm4vllm.common.errors import SubmissionError, UsageError


@pytest.fixture
def tree(neural_magic, tmp_path):
    home = tmp_path / "open" / neural_magic.name
    shutil.copytree(neural_magic, home, copy_function=shutil.copyfile)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    next(home.glob("results/*/*/*/accuracy/mlperf_log_detail.txt")).unlink()
    return tmp_path


def test_findings_are_printed_and_errors_end_with_60(cm, tree):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--quiet")
    done.refused_with(
        SubmissionError.exit_code, "error FILE-MISSING", "mlperf_log_detail.txt: is missing", "docs/checks.md"
    )


@pytest.mark.parametrize("tags", ["check,mlperf,results", "check,mlperf,endpoints"])
def test_the_removed_log_is_refused_with_what_takes_its_place(cm, tree, tags):
    done = cm("run", "script", f"--tags={tags}", f"--input={tree}", "--quiet", "--sarif=found.sarif")
    done.refused_with(UsageError.exit_code, "--sarif", "--out=json")


def test_json_has_all_findings_whatever_the_exit_code(cm, tree, tmp_path):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--out=json", "--quiet")
    assert done.code == SubmissionError.exit_code
    answer = json.loads(done.output[done.output.index("{\n") : done.output.rindex("}") + 1])
    assert answer["return"] == SubmissionError.exit_code
    assert "FILE-MISSING" in {entry["code"] for entry in answer["new_state"]["findings"]}
    assert [entry["rules_of"] for entry in answer["new_state"]["checked"]] == ["v4.1"]
    assert answer["new_state"]["not_checked"]
    counted = answer["new_state"]["coverage"]
    assert counted["results"] == counted["rules_applied"] == 10


def test_filters_are_flags(cm, tree):
    done = cm(
        "run",
        "script",
        "--tags=check,mlperf,results",
        f"--input={tree}",
        "--quiet",
        "--submitter=open/NeuralMagic",
        "--severity=note",
        "--code=MODEL-NOT-VERIFIABLE,FILE-MISSING",
    )
    assert done.code == SubmissionError.exit_code
    assert "note MODEL-NOT-VERIFIABLE" in done.output and "FILE-MISSING" not in done.output
    cm(
        "run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--quiet", "--code=MODEL-NOT-VERIFIABL"
    ).refused_with(UsageError.exit_code, "MODEL-NOT-VERIFIABLE", "--code")


def test_a_round_that_does_not_exist_is_refused(cm, tree):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--results_round=v9.9", "--quiet")
    done.refused_with(UsageError.exit_code, "unknown round 'v9.9'", "v6.1")


def test_a_missing_input_is_asked_for(cm):
    cm("run", "script", "--tags=check,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input=")

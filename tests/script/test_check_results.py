"""Any submission tree checked as a user checks it."""

from __future__ import annotations

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


def test_findings_are_printed_and_errors_end_with_60(cm, tree, tmp_path):
    done = cm(
        "run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--quiet", f"--sarif={tmp_path}/found.sarif"
    )
    done.refused_with(
        SubmissionError.exit_code, "error FILE-MISSING", "accuracy/mlperf_log_detail.txt", "docs/checks.md"
    )
    assert json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]


def test_json_has_all_findings_whatever_the_exit_code(cm, tree, tmp_path):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--out=json", "--quiet")
    assert done.code == SubmissionError.exit_code
    answer = json.loads(done.output[done.output.index("{\n") : done.output.rindex("}") + 1])
    assert answer["return"] == SubmissionError.exit_code
    assert "FILE-MISSING" in {one["code"] for one in answer["new_state"]["findings"]}


def test_a_missing_input_is_asked_for(cm):
    cm("run", "script", "--tags=check,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input")

"""The compliance tests of a campaign in its submission tree, in the layout of each round."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.compliance import CheckResult, ComplianceRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.rules import tree_layout
from cm4vllm.submission.tree import build_tree, system_folder

VERDICT = "First token check pass: Skipped\nEOS check pass: True\nSample length check pass: True\n"


def add_test(asked, test, *, scenario="Offline", file="verify_accuracy.txt", shows_logs=False, **other):
    """Lay the run of a test beside a performance run, made as that one was but for `other`."""
    place = asked.out / "runs" / system_folder(asked.out) / asked.model / scenario
    folder = place / test
    folder.mkdir()
    for log in (place / "performance").glob("mlperf_log_*"):
        (folder / log.name).write_bytes(log.read_bytes())
    (folder / "mlperf_log_accuracy.json").write_text("[]\n")
    (folder / file).write_text(VERDICT)
    run = read_record(place / "performance" / RUN_FILE, RunRecord)
    write_record(folder / RUN_FILE, replace(run, settings=replace(run.settings, compliance_test=test, **other)))
    write_record(
        folder / "compliance.json",
        ComplianceRecord(
            notice=run.notice,
            test=test,
            round="v6.1",
            benchmark="llama3.1-8b",
            scenario=scenario,
            passed=True,
            checks=(CheckResult(name="EOS check pass", passed=True, found=""),),
            answers=100,
            file=file,
            log_sha256="",
            source="",
            shows_logs=shows_logs,
        ),
    )


def files_of(asked, test="TEST06", scenario="Offline"):
    home = asked.out / "submission" / "open" / asked.submitter / "results" / system_folder(asked.out) / asked.model
    return {
        path.relative_to(home / scenario / test).as_posix()
        for path in (home / scenario / test).rglob("*")
        if path.is_file()
    }


def test_test06_lies_beside_the_result_with_its_verdict_and_answers(campaign):
    asked = campaign()
    add_test(asked, "TEST06")
    tree = build_tree(asked)
    assert files_of(asked) == {"verify_accuracy.txt", "accuracy/mlperf_log_accuracy.json"}
    assert files_of(asked, scenario="Server") == set()
    (verdict,) = tree.rglob("verify_accuracy.txt")
    assert verdict.read_text() == f"{REHEARSAL_NOTICE}\n{VERDICT}"  # whose lines the checkers find


def test_test09_has_loadgens_logs_too(campaign):
    asked = campaign()
    add_test(asked, "TEST09", file="verify_output_len.txt", shows_logs=True)
    build_tree(asked)
    assert files_of(asked, "TEST09") == {
        "verify_output_len.txt",
        "accuracy/mlperf_log_accuracy.json",
        "performance/run_1/mlperf_log_detail.txt",
        "performance/run_1/mlperf_log_summary.txt",
    }


@pytest.mark.parametrize("other", [{"max_tokens": 64}, {"samples": 3}])
def test_a_test_of_another_setup_is_left_out_with_a_warning(campaign, capsys, other):
    asked = campaign()
    add_test(asked, "TEST06", **other)
    build_tree(asked)
    assert files_of(asked) == set()
    said = capsys.readouterr()
    assert "TEST06 of Offline is not part of the submission" in said.out + said.err


@pytest.mark.parametrize(
    ("layout", "place"), [("v4.1", "compliance/sys/model/Offline"), ("v6.0", "results/sys/model/Offline")]
)
def test_each_layout_has_its_place_for_the_tests(layout, place):
    home = Path("closed/Tester")
    assert tree_layout(layout).compliance_of(home, "sys", "model", "Offline") == home / place

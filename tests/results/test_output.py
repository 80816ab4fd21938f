from __future__ import annotations

import json
from pathlib import Path

import pytest

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results.findings import Finding, Rule, Severity
from cm4vllm.results.inspection import report_checks
from cm4vllm.results.output import as_objects, as_sarif, as_text, summary


def finding(code: str, severity: Severity, file: str = "open/Us/a file.json") -> Finding:
    return Finding(
        code=code,
        severity=severity,
        what="it is one",
        file=file,
        field="a.key",
        value="1",
        expected="2",
        rule=Rule("it is two", "a source"),
        remedy="make it two",
    )


FOUND = [
    finding("B-CODE", Severity.NOTE),
    finding("C-CODE", Severity.ERROR),
    finding("A-CODE", Severity.WARNING),
    finding("C-CODE", Severity.ERROR, "open/Us/another"),
    finding("B-CODE", Severity.NOTE),
]


def test_text_says_a_rule_once_and_names_each_place_errors_first() -> None:
    assert list(as_text(FOUND))[:9] == [
        "",
        "error C-CODE: it is two",
        "  stated in: a source",
        "  to do:     make it two",
        "  - open/Us/a file.json: a.key: it is one",
        "      found 1; expected 2",
        "  - open/Us/another: a.key: it is one",
        "      found 1; expected 2",
        "",
    ]
    assert summary(FOUND) == "2 errors, 1 warning, 2 notes"


def test_objects_have_every_field_and_no_finding_twice() -> None:
    found = as_objects(FOUND)
    assert [one["code"] for one in found] == ["C-CODE", "C-CODE", "A-CODE", "B-CODE"]
    assert found[0] == {
        "code": "C-CODE",
        "severity": "error",
        "what": "it is one",
        "file": "open/Us/a file.json",
        "field": "a.key",
        "value": "1",
        "expected": "2",
        "rule": {"text": "it is two", "source": "a source"},
        "remedy": "make it two",
    }


def test_sarif_names_rules_levels_and_files_as_the_format_asks() -> None:
    log = as_sarif(FOUND, "1.2.3")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0" and [rule["id"] for rule in rules] == ["A-CODE", "B-CODE", "C-CODE"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
    place = run["results"][0]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "open/Us/a%20file.json"  # a URI has no spaces


def test_a_tree_without_a_submission_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="holds no submission"):
        report_checks(tmp_path)


def test_a_tree_that_does_not_exist_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absent does not exist"):
        report_checks(tmp_path / "absent")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UsageError, match="a.txt is no folder"):
        report_checks(tmp_path / "a.txt")


def test_the_sarif_log_is_written_and_the_findings_kept_when_there_are_errors(tree: Path, tmp_path: Path) -> None:
    next(tree.glob("open/*/results/*/*/*/performance/run_1/mlperf_log_detail.txt")).unlink()
    with pytest.raises(SubmissionError) as refused:
        report_checks(tree, sarif=tmp_path / "findings.sarif")
    found = refused.value.state["findings"]
    assert isinstance(found, list) and found[0]["severity"] == "error"
    results = json.loads((tmp_path / "findings.sarif").read_text())["runs"][0]["results"]
    assert len(results) == len(found)


@pytest.mark.parametrize("rehearsal", [False, True])
def test_errors_of_a_rehearsals_tree_are_said_to_be_expected(tree: Path, rehearsal: bool) -> None:
    next(tree.glob("open/*/results/*/*/*/performance/run_1/mlperf_log_detail.txt")).unlink()
    scenario = next(path for path in tree.glob("open/*/results/*/*/*") if path.is_dir())
    for page in (scenario / "README.md", tree / "open" / "README.md"):  # the second one is of no result
        page.write_text(REHEARSAL_NOTICE if rehearsal or page.parent != scenario else "a result")
    with pytest.raises(SubmissionError) as refused:
        report_checks(tree)
    assert ("the tree is a rehearsal's" in str(refused.value)) is rehearsal

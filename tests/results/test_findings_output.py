import re
import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.checking.findings import Finding, Rule, Severity
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results import submission_trees
from cm4vllm.results.check_command.check_summary import (
    WIDTH,
    CheckedSubmission,
    as_objects,
    by_submission,
    code_lines,
    counts,
    summary,
)
from cm4vllm.results.check_command.tree_check import Filters, check_tree, report_checks


def finding(code, severity, file="open/Us/a file.json"):
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


def test_text_says_a_rule_once_and_names_each_place():
    other = [finding("C-CODE", Severity.ERROR, "open/They/a file.json")]
    assert list(by_submission({"open/Us": FOUND, "open/They": other}, Severity.ERROR)) == [
        "",
        "open/Us: 2 errors",
        "  error C-CODE: it is two",
        "    stated in: a source",
        "    to do: make it two",
        "    - a file.json: a.key: it is one",
        "        found 1; expected 2",
        "    - another: a.key: it is one",
        "        found 1; expected 2",
        "",
        "open/They: 1 error",
        "  error C-CODE: it is two",
        "    - a file.json: a.key: it is one",
        "        found 1; expected 2",
    ]
    assert summary(FOUND) == "2 errors, 1 warning, 2 notes"


def submission(name, *listed):
    return CheckedSubmission(name=name, round="v6.0", results=3, covered=2, files=9, findings=listed)


def test_the_table_has_a_line_for_each_submission_that_with_most_errors_first():
    ours = list(dict.fromkeys(FOUND))
    table = counts([submission("open/Them"), submission("open/Us", *ours)], ours)
    assert [line.split() for line in table] == [
        ["submission", "rules", "of", "results", "rules", "applied", "errors", "warnings", "notes"],
        ["open/Us", "v6.0", "3", "2", "2", "1", "1"],
        ["open/Them", "v6.0", "3", "2", "0", "0", "0"],
        ["all", "6", "4", "2", "1", "1"],
    ]
    *_, between, last = counts([submission("open/Them"), submission("open/Us", *ours[1:])], ours)
    assert between.split() == ["between", "submissions", "0", "0", "1"]  # of no single submission
    assert last.split() == ["all", "6", "4", "2", "1", "1"]


def test_codes_are_counted_with_their_submissions():
    lines = list(code_lines({"open/Us": FOUND, "open/Them": FOUND[2:3]}, (Severity.WARNING, Severity.NOTE)))
    assert lines[1] == "Warnings and notes by code:"
    assert [line.split() for line in lines[3:]] == [
        ["A-CODE", "warning", "2", "2", "it", "is", "two"],
        ["B-CODE", "note", "2", "1", "it", "is", "two"],
    ]
    assert not list(code_lines({"open/Us": FOUND[:1]}, (Severity.WARNING,)))


@given(
    st.text(max_size=400),
    st.lists(st.text(st.characters(exclude_characters="/"), min_size=1, max_size=150), min_size=1, max_size=5),
)
@settings(deadline=None)
def test_no_line_is_wider_than_120_columns_and_nothing_is_left_out(text, folders):
    path = "/".join(["open/Us", *folders])
    wide = replace(finding("C-CODE", Severity.ERROR, path), what=text, value=text, remedy=text)
    lines = list(by_submission({"open/Us": [wide]}, Severity.ERROR))
    assert max(map(len, lines)) <= WIDTH
    printed = "".join("".join(lines).split())
    assert "".join(wide.file.removeprefix("open/Us/").split()) in printed


def test_a_path_stands_once_in_a_line(tree):
    for name in ("performance/run_1/mlperf_log_detail.txt", "accuracy/mlperf_log_detail.txt"):
        next(tree.glob(f"open/*/results/*/*/*/{name}")).unlink()
    all_findings = check_tree(tree).findings
    assert {item.what for item in all_findings if item.code == "FILE-MISSING"} == {"mlperf_log_detail.txt is missing"}
    for line in by_submission({"open/NeuralMagic": all_findings}, Severity.ERROR):
        assert line.count("mlperf_log_detail.txt") <= 1
    for item in all_findings:
        assert item.file not in item.what and item.file != item.value


def test_objects_have_every_field_and_no_finding_twice():
    all_findings = as_objects(FOUND)
    assert [item["code"] for item in all_findings] == ["C-CODE", "C-CODE", "A-CODE", "B-CODE"]
    assert all_findings[0] == {
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


def test_json_says_what_was_checked_by_which_rules_and_what_was_not(tree):
    shutil.copytree(tree / "open" / "NeuralMagic", tree / "open" / "Another")
    (tree / "open" / "Empty").mkdir()
    log = next(tree.glob("open/NeuralMagic/results/*/*/*/performance/run_1/mlperf_log_detail.txt"))
    log.write_bytes(log.read_bytes()[:5000])
    with pytest.raises(SubmissionError) as refused:
        report_checks(tree, filters=Filters.parse(submitters="neuralmagic"))
    state = refused.value.state
    (checked,) = state["checked"]  # type: ignore[misc]
    assert checked["submission"] == "open/NeuralMagic" and checked["rules_of"] == "v4.1"
    assert checked["round_from"] == "the seeds of the logs"
    assert (checked["results"], checked["rules_applied"]) == (10, 9)
    assert checked["files"] == sum(path.is_file() for path in (tree / "open" / "NeuralMagic").rglob("*"))
    left = {part["what"]: part["why"] for part in state["not_checked"]}  # type: ignore[attr-defined]
    assert left["open/Another"] == "--submitter names others"
    assert left["open/Empty"] == "it has no folder results/"
    assert "1 of 10 results of open/NeuralMagic" in left and "the weights that were served" in left
    assert left[log.relative_to(tree).as_posix()].startswith("mlperf_log_detail.txt is not a whole log")


def test_filters_choose_what_is_shown_and_not_what_is_judged(tree, capsys):
    next(tree.glob("open/*/results/*/*/*/performance/run_1/mlperf_log_detail.txt")).unlink()
    with pytest.raises(SubmissionError) as refused:
        report_checks(tree, filters=Filters.parse(severities="notes", codes="model-not-verifiable,FILE-MISSING"))
    assert [item["code"] for item in refused.value.state["findings"]] == ["MODEL-NOT-VERIFIABLE"]  # type: ignore
    printed = capsys.readouterr().out
    assert "MODEL-NOT-VERIFIABLE" in printed and "FILE-MISSING" not in printed
    hidden = re.search(r"(\d+) findings of other codes or severities are not shown", printed)
    assert hidden and int(hidden[1]) + 1 == len(check_tree(tree).findings)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"submitters": "NeuralMagick"}, "NeuralMagic"),
        ({"codes": "FILE-MISING"}, "FILE-MISSING"),
        ({"severities": "eror"}, "error"),
    ],
)
def test_a_filter_for_what_does_not_exist_is_refused_with_what_does(tree, given, hint):
    with pytest.raises(UsageError) as refused:
        report_checks(tree, filters=Filters.parse(**given))
    assert f"'{hint}'" in refused.value.cause


def test_the_first_screen_of_several_submissions_is_the_counts_then_the_errors(tree, capsys):
    shutil.copytree(tree / "open" / "NeuralMagic", tree / "open" / "Another")
    with pytest.raises(SubmissionError):
        report_checks(tree)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == lines[-1] and " in 2 submissions (v4.1); rules applied to 20 of 20 results" in lines[0]
    assert lines[2].startswith("submission ") and lines[6].startswith("all ")
    assert lines[5].startswith("between submissions ")  # the logs of one submission are copies of the other's
    assert lines[8].startswith("open/Another: ") and lines[8].endswith(" errors")
    assert not [line for line in lines if line.startswith(("  warning ", "  note "))]
    assert any(line.startswith("Warnings and notes by code") for line in lines)


def test_a_tree_without_a_submission_is_refused(tmp_path):
    with pytest.raises(SubmissionError, match="holds no submission"):
        report_checks(tmp_path)
    with pytest.raises(UsageError, match="absent does not exist"):
        report_checks(tmp_path / "absent")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UsageError, match="a.txt is a file, not a folder"):
        report_checks(tmp_path / "a.txt")


@pytest.mark.parametrize("rehearsal", [False, True])
def test_errors_of_a_rehearsals_tree_are_said_to_be_expected(tree, rehearsal):
    next(tree.glob("open/*/results/*/*/*/performance/run_1/mlperf_log_detail.txt")).unlink()
    scenario = next(path for path in tree.glob("open/*/results/*/*/*") if path.is_dir())
    for page in (scenario / "README.md", tree / "open" / "README.md"):  # the second one is of no result
        page.write_text(REHEARSAL_NOTICE if rehearsal or page.parent != scenario else "a result")
    with pytest.raises(SubmissionError) as refused:
        report_checks(tree)
    assert ("the tree is a rehearsal's" in str(refused.value)) is rehearsal


def test_processes_find_what_one_finds(tree, monkeypatch):
    shutil.copytree(tree / "open" / "NeuralMagic", tree / "closed" / "Another")
    alone = check_tree(tree)
    monkeypatch.setattr(submission_trees, "MANY", 2)
    assert check_tree(tree) == alone

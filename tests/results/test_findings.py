import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks_page import codes_page
from cm4vllm.common.checking.checks import Stage, checks_in
from cm4vllm.common.checking.findings import Finding, Rule, Severity, refuse
from cm4vllm.common.errors import SubmissionError
from cm4vllm.results.checks import CHECKS, findings
from cm4vllm.results.model import Submission

OUT = Path("/results")


def finding(severity, fault, remedy=""):
    return Finding(
        code="A-CODE",
        severity=severity,
        what=fault,
        file="a/file",
        field="a field",
        value="1",
        expected="2",
        rule=Rule("it is two", "a source"),
        remedy=remedy,
    )


def test_warnings_and_notes_refuse_nothing():
    """An error would raise SubmissionError, as in the next test."""
    refuse([finding(Severity.WARNING, "doubtful"), finding(Severity.NOTE, "known")], OUT)


def test_one_error_is_told_in_full():
    with pytest.raises(SubmissionError) as refused:
        refuse([finding(Severity.NOTE, "known"), finding(Severity.ERROR, "it is one", "make it two")], OUT)
    error = refused.value
    assert (error.what, error.remedy) == ("it is one", "make it two")
    assert error.cause == "found 1; expected 2; a/file: a field; it is two; A-CODE"


def test_all_errors_are_told_and_each_remedy_once():
    errors = [finding(Severity.ERROR, fault, "do it again") for fault in ("first", "second", "third")]
    with pytest.raises(SubmissionError, match="3 errors in the results below /results") as refused:
        refuse([*errors, finding(Severity.WARNING, "doubtful")], OUT)
    assert [line.split(": ")[1].split(" ")[0] for line in refused.value.cause.splitlines()] == [
        "first",
        "second",
        "third",
    ]
    assert refused.value.remedy == "do it again"


def test_every_check_has_a_code_a_rule_a_source_and_a_remedy():
    assert len(CHECKS) >= 15
    for code, check in CHECKS.items():
        assert code == check.code == code.upper() and " " not in code
        assert check.rule.text and check.rule.source and check.remedy


def test_an_empty_submission_breaks_nothing_but_that_it_is_empty():
    empty = Submission(root=OUT, round="", division="", submitter="", systems=(), results=())
    assert findings(empty) == []
    assert [finding.code for finding in findings(empty, Stage.SUBMITTED)] == ["RUN-MISSING"]


def test_the_page_of_the_codes_is_the_one_that_the_code_writes():
    page = Path(__file__).parents[2] / "docs" / "checks.md"
    assert page.read_text(encoding="utf-8") == codes_page(), "python docs/tools/checks_page.py > docs/checks.md"


MODULE = '''from cm4vllm.common.checking.checks import check, whole

_MOST = 3


@check("{code}", source="a test", remedy="none", each=whole)
def few(parts):
    """{rule}"""
    yield from ()
'''


def test_a_rule_is_the_docstring_and_a_code_is_that_of_one_check(tmp_path, monkeypatch):
    package = tmp_path / "made_up_checks"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(
        MODULE.format(code="FEW", rule="Parts are at most\n    {_MOST}.\n\n    More words.")
    )
    (package / "two.py").write_text(MODULE.format(code="NAMED", rule="LoadGen has a name."))
    monkeypatch.syspath_prepend(tmp_path)
    rules = {code: known.rule.text for code, known in checks_in("made_up_checks").items()}
    assert rules == {"FEW": "parts are at most 3", "NAMED": "LoadGen has a name"}
    for name, code, rule in (("third", "FEW", "Another rule."), ("fourth", "NONE", "")):
        other = tmp_path / f"{name}_checks"
        shutil.copytree(package, other)
        (other / f"{name}.py").write_text(MODULE.format(code=code, rule=rule))
        with pytest.raises(ValueError, match=code):
            checks_in(other.name)


def test_checks_without_their_docstrings_are_refused_with_the_cause():
    argv = [sys.executable, "-B", "-OO", "-c", "import cm4vllm.results.checks"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode and "Python runs without docstrings" in done.stderr and "unset PYTHONOPTIMIZE" in done.stderr

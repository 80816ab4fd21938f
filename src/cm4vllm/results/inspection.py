"""All checks of a submission tree, ours or anyone's, with one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cm4vllm
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import write_json
from cm4vllm.common.progress import say_text
from cm4vllm.results.checks import findings
from cm4vllm.results.checks.check import Stage
from cm4vllm.results.findings import Finding, Severity
from cm4vllm.results.model import Submission
from cm4vllm.results.output import as_objects, as_sarif, as_text, ordered, summary
from cm4vllm.results.trees import read_tree

__all__ = ["CheckedTree", "check_tree", "report_checks"]


@dataclass(frozen=True)
class CheckedTree:
    """The submissions of a tree, and all that was found in them, errors first."""

    submissions: tuple[Submission, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        return sum(one.severity is Severity.ERROR for one in self.findings)


def check_tree(root: Path, *, round_name: str = "") -> CheckedTree:
    """Make every check on the submissions of a tree. Raises SubmissionError where there is none.

    Without `round_name` the seeds of the logs tell the round.
    """
    submissions = read_tree(root, round_name=round_name)
    found = [one for submission in submissions for one in findings(submission, stages=(Stage.ALWAYS, Stage.TREE))]
    return CheckedTree(submissions, tuple(ordered(found)))


def report_checks(root: Path, *, round_name: str = "", sarif: Path | None = None) -> dict[str, object]:
    """Check a tree, print what was found, write the SARIF log if asked for, and return the findings as plain objects.

    Raises SubmissionError, with the same objects, when there is an error among them.
    """
    checked = check_tree(root, round_name=round_name)
    for line in (*as_text(checked.findings), "", _heading(checked)):
        say_text(line)
    if sarif is not None:
        write_json(sarif, as_sarif(checked.findings, cm4vllm.__version__))
    state: dict[str, object] = {"findings": as_objects(checked.findings), "summary": summary(checked.findings)}
    if checked.errors:
        raise SubmissionError(f"{checked.errors} {'error' if checked.errors == 1 else 'errors'} in {root}",
                              remedy="correct what the findings name; docs/checks.md describes every code", state=state)
    return state


def _heading(checked: CheckedTree) -> str:
    return f"{summary(checked.findings)} in {_counted(checked.submissions)}"


def _counted(submissions: Sequence[Submission]) -> str:
    results = sum(len(one.results) for one in submissions)
    names = ", ".join(f"{one.division}/{one.submitter} ({one.round or 'round unknown'})" for one in submissions[:4])
    more = f" and {len(submissions) - 4} more" if len(submissions) > 4 else ""
    return f"{results} results of {names}{more}"

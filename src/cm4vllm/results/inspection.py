"""All checks of a submission tree, ours or anyone's, with one verdict."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cm4vllm
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import write_json
from cm4vllm.common.processes import die_with_parent
from cm4vllm.common.progress import say_text
from cm4vllm.results import kept_findings
from cm4vllm.results.checks import findings
from cm4vllm.results.checks.check import Stage
from cm4vllm.results.findings import Finding, Severity
from cm4vllm.results.kept_findings import CheckedSubmission
from cm4vllm.results.model import Submission
from cm4vllm.results.output import as_objects, as_sarif, as_text, ordered, summary
from cm4vllm.results.trees import read_submission, submission_folders
from cm4vllm.results.weights import with_weights

__all__ = ["CheckedTree", "check_tree", "report_checks"]

#: From this number of submissions on they are checked by several processes, which take half a second to start.
_MANY = 6


@dataclass(frozen=True)
class CheckedTree:
    """The submissions of a tree, and all that was found in them, errors first."""

    submissions: tuple[CheckedSubmission, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        return sum(one.severity is Severity.ERROR for one in self.findings)


def check_tree(
    root: Path, *, round_name: str = "", weights: Path | None = None, weights_of: str = "", keep: Path | None = None
) -> CheckedTree:
    """Make every check on the submissions of a tree. Raises SubmissionError where there is none.

    Without `round_name` the seeds of the logs tell the round. `weights` is the folder of the weights that were served
    for the results that `weights_of` names (results/weights.py). Raises UsageError where it names none. `keep` is a
    folder in which findings of large submissions are kept, and found again while the files are the same.
    """
    base, homes = submission_folders(root)
    if weights is not None:
        read = with_weights([read_submission(base, home, round_name) for home in homes], weights, weights_of)
        checked = [_checked(one) for one in read]
    else:
        checked = _checked_by_processes(base, homes, round_name, keep)
    return CheckedTree(tuple(checked), tuple(ordered(one for each in checked for one in each.findings)))


def _checked_by_processes(base: Path, homes: list[Path], round_name: str, keep: Path | None) -> list[CheckedSubmission]:
    check = partial(_check_folder, base, round_name, keep)
    workers = min(len(os.sched_getaffinity(0)), len(homes))
    if workers < 2 or len(homes) < _MANY:
        return [check(home) for home in homes]
    context = multiprocessing.get_context("spawn")  # no copy of the parent's threads and locks
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=die_with_parent) as pool:
            return list(pool.map(check, homes))
    except BrokenProcessPool as error:
        raise SubmissionError(
            f"a process that checks the submissions in {base} ended unexpectedly",
            cause=str(error),
            remedy="most often the memory ran out; check one submitter at a time by --input",
        ) from error


def _check_folder(base: Path, round_name: str, keep: Path | None, home: Path) -> CheckedSubmission:
    digest = kept_findings.digest_of_submission(home, round_name) if keep else ""
    if keep and digest and (found := kept_findings.kept(keep, home, digest)):
        return found
    checked = _checked(read_submission(base, home, round_name))
    if keep and digest:
        kept_findings.keep(keep, home, digest, checked)
    return checked


def _checked(one: Submission) -> CheckedSubmission:
    found = findings(one, stages=(Stage.ALWAYS, Stage.TREE))
    return CheckedSubmission(
        division=one.division, submitter=one.submitter, round=one.round, results=len(one.results), findings=tuple(found)
    )


def report_checks(
    root: Path, *, round_name: str = "", sarif: Path | None = None, weights: Path | None = None, weights_of: str = ""
) -> dict[str, object]:
    """Check a tree, print what was found, write the SARIF log if asked for, and return the findings as plain objects.

    Raises SubmissionError, with the same objects, when there is an error among them, and as `check_tree` does.
    """
    checked = check_tree(
        root, round_name=round_name, weights=weights, weights_of=weights_of, keep=kept_findings.keeping_folder()
    )
    for line in (*as_text(checked.findings), "", _heading(checked)):
        say_text(line)
    if sarif is not None:
        write_json(sarif, as_sarif(checked.findings, cm4vllm.__version__))
    state: dict[str, object] = {"findings": as_objects(checked.findings), "summary": summary(checked.findings)}
    if checked.errors:
        raise SubmissionError(
            f"{checked.errors} {'error' if checked.errors == 1 else 'errors'} in {root}",
            cause=_rehearsal_words(root),
            remedy="correct what the findings name; docs/checks.md describes every code",
            state=state,
        )
    return state


def _rehearsal_words(root: Path) -> str:
    """Return what to expect of a tree that calls itself a rehearsal; nothing for other trees."""
    pages = list(root.rglob("results/*/*/*/README.md"))
    if pages and all(cm4vllm.REHEARSAL_NOTICE in page.read_text(encoding="utf-8", errors="replace") for page in pages):
        return "the tree is a rehearsal's: findings about its short runs and few samples are expected, and stay"
    return ""


def _heading(checked: CheckedTree) -> str:
    return f"{summary(checked.findings)} in {_counted(checked.submissions)}"


def _counted(submissions: Sequence[CheckedSubmission]) -> str:
    results = sum(one.results for one in submissions)
    names = ", ".join(f"{one.division}/{one.submitter} ({one.round or 'round unknown'})" for one in submissions[:4])
    more = f" and {len(submissions) - 4} more" if len(submissions) > 4 else ""
    return f"{results} results of {names}{more}"

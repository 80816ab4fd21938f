"""The form of a check: a function that gives the faults of a subject, with a code, a rule and a remedy."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVarTuple

from cm4vllm.results.findings import Finding, Rule, Severity
from cm4vllm.results.log_folders import PROBLEMS, reason_of
from cm4vllm.results.model import Accuracy, Performance, Result, Submission, System

#: The code for a part of a tree that a check could not check.
CHECK_FAILED = "CHECK-FAILED"


class Stage(StrEnum):
    """The point at which a check applies: after any measurement, before a tree is made of it, on a written tree."""

    ALWAYS = "always"
    SUBMITTED = "submitted"
    TREE = "tree"


@dataclass(frozen=True)
class Fault:
    """One place where a rule is broken. `severity` and `remedy` replace those of the check where they are given."""

    what: str
    file: str
    field: str = ""
    value: object = ""
    expected: object = ""
    severity: Severity | None = None
    remedy: str | None = None


Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class CheckBase:
    """The parts that all findings of a check have in common, whatever it checks."""

    code: str
    rule: Rule
    remedy: str
    severity: Severity

    def finding(self, fault: Fault) -> Finding:
        """Return a fault with what the findings of the check have in common."""
        return Finding(
            code=self.code,
            severity=fault.severity or self.severity,
            what=fault.what,
            file=fault.file,
            field=fault.field,
            value=str(fault.value),
            expected=str(fault.expected),
            rule=self.rule,
            remedy=self.remedy if fault.remedy is None else fault.remedy,
        )

    def not_made(self, file: str, error: Exception) -> Finding:
        """Return the finding that the check could not be made on this file."""
        return Finding(
            code=CHECK_FAILED,
            severity=Severity.ERROR,
            what=f"the check {self.code} could not be made",
            file=file,
            field="",
            value=reason_of(error),
            expected="",
            rule=PROBLEMS[CHECK_FAILED],
            remedy="correct the file; where nothing is wrong with it, report it as an error of cm4vllm",
        )


@dataclass(frozen=True)
class Check(CheckBase):
    """A check of a submission: the stage at which it applies, its subjects, and its function.

    `each` gives the subjects of a submission, each as the arguments of the function (subjects.py). The function gives a
    fault for each place where the rule is broken, none for what the submission does not have. Where it raises, that
    becomes a finding on the subject, and the other subjects are still checked.
    """

    stage: Stage
    each: Callable[[Submission], Iterable[tuple[Any, ...]]]
    function: Callable[..., Iterator[Fault]]

    def findings(self, submission: Submission) -> Iterator[Finding]:
        """Yield the findings of the check, and the subjects that it could not check."""
        try:
            for subject in self.each(submission):
                yield from self._findings_of(submission, subject)
        except Exception as error:  # the subjects themselves cannot be read
            yield self._not_made_on(submission, (), error)

    def _findings_of(self, submission: Submission, subject: tuple[object, ...]) -> Iterator[Finding]:
        try:
            yield from map(self.finding, self.function(*subject))
        except Exception as error:  # one file that no check expects must not hide all other findings
            yield self._not_made_on(submission, subject, error)

    def _not_made_on(self, submission: Submission, subject: tuple[object, ...], error: Exception) -> Finding:
        read = getattr(error, "filename", None)
        file = str(read).removeprefix(f"{submission.root}/") if read else _file_of(subject)
        return self.not_made(file or f"{submission.division}/{submission.submitter}", error)


def _file_of(subject: tuple[object, ...]) -> str:
    """Return the file or folder of a subject; empty for one without."""
    for part in subject:
        match part:
            case Result(folder=file) | System(file=file) | Performance(log=file) | Accuracy(log=file):
                return file
    return ""


def check(
    code: str,
    rule: str,
    *,
    source: str,
    remedy: str,
    each: Callable[[Submission], Iterable[tuple[*Ts]]],
    severity: Severity = Severity.ERROR,
    stage: Stage = Stage.ALWAYS,
) -> Callable[[Callable[[*Ts], Iterator[Fault]]], Check]:
    """Make a function the check `code` of each of the subjects.

    A module's checks are registered by listing the module in checks/__init__.
    """
    return lambda function: Check(code, Rule(rule, source), remedy, severity, stage, each, function)

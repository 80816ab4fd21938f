"""The form of a check: a function over a submission that gives faults, registered with a code, a rule and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from cm4vllm.results.findings import Finding, Rule, Severity
from cm4vllm.results.log_folders import PROBLEMS, reason_of
from cm4vllm.results.model import Submission

__all__ = ["CHECK_FAILED", "Check", "CheckBase", "Fault", "Stage", "check"]


#: The code of what a check could not check.
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


Function = Callable[[Submission], Iterator[Fault]]


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
    """A check of a submission, when it applies, and its function.

    The function gives a fault for each place where the rule is broken, none for what the submission does not have.
    Where it raises, that becomes a finding, too, and what the check finds in the other systems stays.
    """

    stage: Stage
    function: Function

    def findings(self, submission: Submission) -> Iterator[Finding]:
        """Give the findings of the check, and the parts that it could not check."""
        try:
            yield from map(self.finding, self.function(submission))
        except Exception as error:  # one file that no check expects must not hide all other findings
            yield from self._failed(submission, error)

    def _failed(self, submission: Submission, error: Exception) -> Iterator[Finding]:
        """Give a finding for each system that the check cannot check, then what it finds in the others."""
        alone = {system.name: _of_systems(submission, {system.name}) for system in submission.systems}
        failing = {name: failure for name, part in alone.items() if (failure := self._error(part)) is not None}
        for name, failure in failing.items() or {"": error}.items():
            yield self._not_made_on(submission, name, failure)
        others = _of_systems(submission, alone.keys() - failing.keys())
        if failing and self._error(others) is None:
            left_out = {system.file for system in submission.systems if system.name in failing}
            yield from (self.finding(fault) for fault in self.function(others) if fault.file not in left_out)

    def _error(self, submission: Submission) -> Exception | None:
        """Return the error that the check raises for a submission."""
        try:
            for _ in self.function(submission):
                pass
        except Exception as error:  # the caller reports it
            return error
        return None

    def _not_made_on(self, submission: Submission, system: str, error: Exception) -> Finding:
        part = _of_systems(submission, {system})
        files = [result.folder for result in part.results if self._error(replace(part, results=(result,), systems=()))]
        files += [system.file for system in part.systems]
        read = getattr(error, "filename", None)
        file = str(read).removeprefix(f"{submission.root}/") if read else ""
        return self.not_made(file or next(iter(files), f"{submission.division}/{submission.submitter}"), error)


def _of_systems(submission: Submission, names: Collection[str]) -> Submission:
    return replace(
        submission,
        systems=tuple(system for system in submission.systems if system.name in names),
        results=tuple(result for result in submission.results if result.system in names),
    )


def check(
    code: str, rule: str, *, source: str, remedy: str, severity: Severity = Severity.ERROR, stage: Stage = Stage.ALWAYS
) -> Callable[[Function], Check]:
    """Make a function the check `code`; a module's checks are registered by listing the module in checks/__init__."""
    return lambda function: Check(code, Rule(rule, source), remedy, severity, stage, function)

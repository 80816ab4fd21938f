"""What a check is: a function over a submission that gives faults, registered with a code, a rule and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from cm4vllm.results.findings import Finding, Rule, Severity
from cm4vllm.results.model import Submission

__all__ = ["Check", "Fault", "Stage", "check"]


class Stage(StrEnum):
    """When a check applies: to whatever has been measured, to runs of which a tree is to be made, to a written tree."""

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
class Check:
    """A function, and what its findings have in common.

    The function gives a fault for each place where the rule is broken, none for what the submission does not have, and
    raises nothing.
    """

    code: str
    rule: Rule
    remedy: str
    severity: Severity
    stage: Stage
    function: Function

    def findings(self, submission: Submission) -> Iterator[Finding]:
        """Give what the check finds."""
        for fault in self.function(submission):
            yield Finding(
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


def check(
    code: str, rule: str, *, source: str, remedy: str, severity: Severity = Severity.ERROR, stage: Stage = Stage.ALWAYS
) -> Callable[[Function], Check]:
    """Make a function the check `code`; a module's checks are registered by listing the module in checks/__init__."""
    return lambda function: Check(code, Rule(rule, source), remedy, severity, stage, function)

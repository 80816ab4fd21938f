"""The finding of a check: a stable code, severity, place, observed and expected values, the rule, and a remedy."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.terminal_text import spelled_out


class Severity(StrEnum):
    """An error makes a submission refused, or keeps something from working; a warning is doubtful.

    A note is allowed and worth knowing, or not known yet. What is good is named where a list states all that was asked.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"


#: The severities of what is not as it should be.
FAULTS = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True)
class Rule:
    """A requirement and the source that states it: a file of mlcommons, a policy, or this project's own design."""

    text: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found. `what` is one sentence, `file` a path below the root of what was checked.

    `value` is what was found in `field`, `expected` what belongs there; either may be empty where it adds nothing. They
    hold names and texts of the tree, which may hold anything: in a finding, and so in each form in which it is printed
    or written, each is one line without control characters. Where no file is checked, `field` names the subject.
    `line` is that of the file, 0 for the whole file.
    """

    code: str = ""
    severity: Severity = Severity.ERROR
    what: str = ""
    file: str = ""
    field: str = ""
    value: str = ""
    expected: str = ""
    rule: Rule = Rule()
    remedy: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        for name in ("what", "file", "field", "value", "expected"):
            object.__setattr__(self, name, spelled_out(getattr(self, name)))

    @property
    def detail(self) -> str:
        """The value against the expected one, and where; empty where the finding has neither."""
        value = f"found {self.value}" if self.value else ""
        wanted = f"expected {self.expected}" if self.expected else ""
        where = ": ".join(part for part in (self.file, self.field) if part)
        return "; ".join(part for part in (value, wanted, where) if part)

    def __str__(self) -> str:
        if not self.code:  # of a file that is read line by line
            return f"{self.file}{f':{self.line}' if self.line else ''}: {self.what}"
        return f"{self.severity} {self.code}: {self.what}" + (f" ({self.detail})" if self.detail else "")


def refuse(findings: Iterable[Finding], root: Path) -> None:
    """Raise SubmissionError when there are errors among the findings; it lists them all."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    remedy = "; ".join(dict.fromkeys(error.remedy for error in errors if error.remedy))
    if len(errors) == 1:
        raise SubmissionError(
            errors[0].what,
            cause="; ".join(part for part in (errors[0].detail, errors[0].rule.text, errors[0].code) if part),
            remedy=remedy,
        )
    raise SubmissionError(
        f"{len(errors)} errors in the results below {root}",
        cause="\n".join(str(error) for error in errors),
        remedy=remedy,
    )

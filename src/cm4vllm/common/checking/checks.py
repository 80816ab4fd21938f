"""The form of a check: a function that yields the faults of a subject, with a code, a rule and a remedy.

A check is one function under @check in any module of a package of checks. `checks_in` finds it there: no list names it.
Its docstring is the rule: the text that must hold.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, TypeVar, TypeVarTuple

from cm4vllm.common.checking.findings import Finding, Rule, Severity
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.terminal_text import one_line

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: What is known of a part that a check could not check.
NOT_CHECKED = Finding(
    code="CHECK-FAILED",
    rule=Rule("every check can be made on every result", "cm4vllm.results.checks"),
    remedy="correct the file; where nothing is wrong with it, report it as an error of cm4vllm",
)


class Stage(StrEnum):
    """The subject of a check, and when it applies: a submission after any measurement, before a tree is made of it, as
    a written tree; all submissions of a tree together; a curve of MLPerf Endpoints; a job before it begins.
    """

    ALWAYS = "always"
    SUBMITTED = "submitted"
    TREE = "tree"
    ACROSS = "across"
    CURVE = "curve"
    JOB = "job"


@dataclass(frozen=True)
class Fault:
    """One place where a rule is broken. `severity` and `remedy` replace those of the check where they are given."""

    what: str
    file: str = ""
    field: str = ""
    value: object = ""
    expected: object = ""
    severity: Severity | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """A check: the stage at which it applies, its subjects, and its function.

    `each` yields the subjects of what is checked, each as the arguments of the function. The function yields a fault
    for each place where the rule is broken, none for what is missing. Where it raises, that becomes a finding on the
    subject, and the other subjects are still checked.
    """

    code: str
    rule: Rule
    remedy: str
    severity: Severity
    stage: Stage
    each: Callable[[Any], Iterable[tuple[Any, ...]]]
    function: Callable[..., Iterator[Fault]]

    def finding(self, fault: Fault) -> Finding:
        """Return the finding for a fault, with the code, the rule and the remedy of this check."""
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

    def findings(self, checked: Any) -> Iterator[Finding]:
        """Yield the findings on a submission, a curve or another whole, and the subjects that were not checked."""
        try:
            for subject in self.each(checked):
                yield from self._findings_of(checked, subject)
        except Exception as error:  # the subjects themselves cannot be read
            yield self._not_made_on(checked, (), error)

    def _findings_of(self, checked: Any, subject: tuple[object, ...]) -> Iterator[Finding]:
        try:
            yield from map(self.finding, self.function(*subject))
        except Exception as error:  # one file that no check expects must not hide all other findings
            yield self._not_made_on(checked, subject, error)

    def _not_made_on(self, checked: Any, subject: tuple[object, ...], error: Exception) -> Finding:
        """Return the finding that the check could not be made on this subject, with its file or folder."""
        read, root = getattr(error, "filename", None), getattr(checked, "root", None)
        parts = (*(part for part in subject if part is not checked), checked)
        places = (getattr(part, "place", "") for part in parts)
        return replace(
            NOT_CHECKED,
            what=f"the check {self.code} could not be made",
            file=str(read).removeprefix(f"{root}/") if read and root else next(filter(None, places), ""),
            value=reason_of(error),
        )


def whole(checked: T) -> Iterator[tuple[T]]:
    """Yield the whole that is checked as the only subject, for checks that compare its parts."""
    yield (checked,)


def check(
    code: str,
    *,
    source: str,
    remedy: str,
    each: Callable[[Any], Iterable[tuple[*Ts]]],
    severity: Severity = Severity.ERROR,
    stage: Stage = Stage.ALWAYS,
) -> Callable[[Callable[[*Ts], Iterator[Fault]]], Check]:
    """Make a function the check `code` of each of the subjects. `source` states its rule, its docstring's beginning."""
    return lambda function: Check(code, Rule(_rule_text(function), source), remedy, severity, stage, each, function)


def _rule_text(function: Callable[..., object]) -> str:
    """Return the first paragraph of a docstring as a part of a sentence; names in braces stand for their values."""
    text = " ".join(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].split())
    if "{" in text:
        text = text.format_map(function.__globals__)
    first = text.partition(" ")[0]
    is_plain = first[1:] == first[1:].lower()  # no name such as LoadGen
    return (text[:1].lower() + text[1:] if is_plain else text).removesuffix(".")


@cache
def checks_in(package: str) -> dict[str, Check]:
    """Return the checks in the modules of a package, by code, in the order of the modules' names.

    Raises ValueError for a code that two checks have, and for a check whose docstring states no rule; and
    UsageError where Python keeps no docstrings.
    """
    if sys.flags.optimize > 1:
        raise UsageError(
            "Python runs without docstrings",
            cause="PYTHONOPTIMIZE=2 or the option -OO removes them, and a check states its rule in its own",
            remedy="start the command again after: unset PYTHONOPTIMIZE",
        )
    checks: dict[str, Check] = {}
    for module in walk_packages(import_module(package).__path__, f"{package}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, Check) and (checks.setdefault(value.code, value) is not value or not value.rule.text):
                raise ValueError(f"{module.name}: {value.code} is the code of two checks, or states no rule")
    return checks


def reason_of(error: Exception) -> str:
    """Return in one line why something cannot be read."""
    if isinstance(error, CmError):
        return one_line(f"{error.what}: {error.cause}" if error.cause else error.what)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(f"{type(error).__name__}: {error}")

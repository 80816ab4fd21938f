"""The compliance tests: the settings of their runs, and the files that show that a result has passed them.

Each test is one file under data/compliance_tests/, which has the name of the test.
"""

from functools import cache
from typing import Literal

from msgspec.structs import replace

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.rules.tables import read_files


class Audit(Record, frozen=True, kw_only=True):
    """The run of a compliance test: the settings of its audit.config, the samples it logs and its thresholds.

    One that names `benchmarks` is that of those; it comes before one that names none. One with `own_dataset` runs on a
    dataset of its own, of as many samples as it logs, whose columns hold these values.
    """

    samples: int
    audit: dict[str, int]
    source: str
    name: str = ""
    title: str = ""
    benchmarks: tuple[str, ...] = ()
    thresholds: dict[str, float] = {}
    own_dataset: dict[str, tuple[str, ...]] = {}


class VerifiedFile(Record, frozen=True, kw_only=True):
    """A file that the verification of a compliance test writes, with lines that must and must not stand in it.

    With `scores` it may lack them where the scores in accuracy/baseline_accuracy.txt and
    accuracy/compliance_accuracy.txt differ by the tolerance of the target at most.
    """

    name: str
    lines: tuple[str, ...]
    not_lines: tuple[str, ...] = ()
    scores: bool = False

    def missing(self, text: str) -> tuple[str, ...]:
        """Return the lines of a passed test that the text of the file lacks."""
        return tuple(line for line in self.lines if line not in text)

    def forbidden_lines(self, text: str) -> tuple[str, ...]:
        """Return the lines of a failed test that stand in the text of the file."""
        return tuple(line for line in self.not_lines if line in text)

    def shows_passed(self, text: str) -> bool:
        """Return True if the text of the file is that of a passed test."""
        return not self.missing(text) and not self.forbidden_lines(text)


class VerifiedFigure(Record, frozen=True, kw_only=True):
    """A figure that the verification of a compliance test states behind a label.

    `run` says whose it is: that of the result, or that of the test. `least` and `most` name thresholds of the test.
    """

    label: str
    run: Literal["result", "test", ""] = ""
    least: str = ""
    most: str = ""


class ComplianceRules(Record, frozen=True, kw_only=True):
    """A compliance test: the files in the folder of a passed one, and how LoadGen makes its run.

    `run_logs` says whether LoadGen's logs of the run belong into that folder too: the checkers require them, or the
    test's script publishes them. `figures` are those that the files state. A test of other than language models has no
    `audits`.
    """

    title: str
    files: tuple[VerifiedFile, ...]
    source: str
    test: str = ""
    run_logs: Literal["", "published", "required"] = ""
    figures: tuple[VerifiedFigure, ...] = ()
    audits: tuple[Audit, ...] = ()


@cache
def _tests() -> dict[str, ComplianceRules]:
    """Return the rules of each compliance test, by its name."""
    tests = {}
    for name, test in read_files("compliance_tests", ComplianceRules).items():
        audits = tuple(replace(audit, name=name, title=test.title) for audit in test.audits)
        tests[name] = replace(test, test=name, audits=audits)
    return tests


def compliance_test_names() -> tuple[str, ...]:
    """Return the names of all compliance tests, of language models and others."""
    return tuple(_tests())


def compliance_rules(test: str) -> ComplianceRules:
    """Return the rules of a compliance test. Raises UsageError when it is unknown."""
    if test not in _tests():
        raise UsageError(f"unknown compliance test {test!r}", remedy=nearest(test, list(_tests())))
    return _tests()[test]


def audit(name: str, benchmark: str = "") -> Audit:
    """Return the run of a benchmark's compliance test, or that of all benchmarks without one of their own.

    Raises UsageError when it is unknown or never applies to language models.
    """
    runs = _tests()[name].audits if name in _tests() else ()
    for test_run in sorted(runs, key=lambda run: not run.benchmarks):
        if not test_run.benchmarks or benchmark in test_run.benchmarks:
            return test_run
    known = [test for test, rules in _tests().items() if rules.audits]
    raise UsageError(f"unknown compliance test {name!r}", remedy=nearest(name, known))

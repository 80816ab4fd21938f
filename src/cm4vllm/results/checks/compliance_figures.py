"""The figures that verify the compliance tests of a written tree, against the logs that they were read from."""

import re
from collections.abc import Iterator
from pathlib import Path

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.compliance_tests import test_folder
from cm4vllm.results.checks.subjects import results, with_submission
from cm4vllm.results.log_folders import text_at
from cm4vllm.results.model import Performance, Result, Submission
from cm4vllm.rules import VerifiedFigure

__all__: list[str] = []

#: A longer verification is none.
_MAX_TEXT = 2**22
#: The difference allowed between a figure and that of the log: some scripts print two digits after the point.
_DIGIT, _PART = 0.0051, 2e-3
_NS = 1e9


@check(
    "COMPLIANCE-FIGURES",
    source="compliance, verify_performance.py of TEST01, TEST04 and TEST05; verify_output_len.py of TEST09",
    remedy="verify the test again with the logs that are published",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(results),
)
def figures(submission: Submission, result: Result) -> Iterator[Fault]:
    """The figures that verify a compliance test are those of the logs of the result and of the test, and within the
    thresholds of the test.
    """
    for test in sorted(set(result.compliance) & set(rules.compliance_test_names())):
        wanted = rules.compliance_rules(test)
        if not wanted.figures or (folder := test_folder(submission, result, wanted)) is None:
            continue
        for path in (folder / file.name for file in wanted.files):
            for figure, value in _stated(path, wanted.figures):
                yield from _apart(submission, result, test, path, figure, value)


def _stated(path: Path, figures: tuple[VerifiedFigure, ...]) -> Iterator[tuple[VerifiedFigure, float]]:
    text = text_at(path, _MAX_TEXT)  # where it cannot be read: COMPLIANCE
    for figure in figures:
        for number in re.findall(rf"{figure.label}\s*[:=]\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text, re.IGNORECASE):
            yield figure, float(number)


def _apart(
    submission: Submission, result: Result, test: str, path: Path, figure: VerifiedFigure, value: float
) -> Iterator[Fault]:
    name = path.relative_to(submission.root).as_posix()
    run = {"result": result.performance, "test": result.test_runs.get(test)}.get(figure.run)
    if run is not None and run.metric is not None and not any(_close(value, figure) for figure in _figures(run)):
        yield Fault(
            f"the figure is not in the log of the {figure.run}",
            name,
            figure.label,
            f"{value:g}",
            f"{run.metric}, as in {run.log}",
            # A result may be measured again, and its test stay: the figure is then that of the run before.
            severity=None if figure.run == "result" else Severity.ERROR,
        )
    audit = rules.if_known(rules.audit, test, result.benchmark)
    bounds = audit.thresholds if audit else {}
    least, most = bounds.get(figure.least), bounds.get(figure.most)
    if (least is not None and value < least) or (most is not None and value > most):
        expected = " and ".join(
            part for part, bound in ((f"{least} or more", least), (f"{most} or less", most)) if bound is not None
        )
        yield Fault(
            f"the figure is not one of a passed {test}", name, figure.label, f"{value:g}", expected, Severity.ERROR
        )


def _figures(run: Performance) -> Iterator[float]:
    """Yield the figures of a log, also as the rate that a latency makes, and the tokens of a sample."""
    for value in run.detail.values.values() if run.detail else ():
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            yield float(value)
            yield _NS / value
    if run.tokens_per_second and run.samples_per_second:
        yield run.tokens_per_second / run.samples_per_second


def _close(value: float, other: float) -> bool:
    return abs(value - other) <= max(_DIGIT, _PART * abs(other))

"""The compliance tests of a written tree: whether the required ones are there and passed, and their figures."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.results.checks.of_logs import performance_runs as runs
from cm4vllm.results.checks.subjects import results, strict_results, with_submission
from cm4vllm.results.endpoints.endpoints_harness import is_endpoints
from cm4vllm.results.log_folders import Reader, scores_of, terms_of, text_at
from cm4vllm.results.model import Performance, Result, Submission
from cm4vllm.results.submission_trees import compliance_folders
from cm4vllm.rules import ComplianceRules, Mode, Terms, VerifiedFigure, VerifiedFile

#: The scores of the answers that the performance run of a test logged, and of the same samples in the accuracy run.
_SCORES = ("accuracy/compliance_accuracy.txt", "accuracy/baseline_accuracy.txt")
_RUNS = ("accuracy", "performance")
_LOGS = (f"performance/run_1/{DETAIL_LOG}", f"performance/run_1/{SUMMARY_LOG}")
#: A longer verification is none.
_MAX_TEXT = 2**22
#: The difference allowed between a figure and that of the log: some scripts print two digits after the point.
_DIGIT, _PART = 0.0051, 2e-3
_NS = 1e9


@check(
    "COMPLIANCE",
    source="compliance/README.md, the tests of each benchmark",
    remedy="run the test, and publish what verifies it",
    stage=Stage.TREE,
    each=with_submission(strict_results),
)
def compliance(submission: Submission, result: Result) -> Iterator[Fault]:
    """A closed result has passed the compliance tests of its benchmark."""
    terms = terms_of(result.round, result.benchmark, result.scenario, Mode.PERFORMANCE)
    if terms is None or is_endpoints(submission.root / result.folder):
        return  # the harness's tests are audits of its own, which are optional
    for test in terms.compliance:
        wanted = rules.compliance_rules(test)
        if (folder := test_folder(submission, result, wanted)) is None:
            yield Fault(f"{test} is missing", result.folder, test, ", ".join(result.compliance), test)
        else:
            yield from _test_faults(submission, result, folder, wanted, terms)


@check(
    "COMPLIANCE-UNKNOWN",
    source="compliance/README.md, the tests of each benchmark",
    remedy="correct its name, or remove it: no check and no official checker reads it",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(results),
)
def unknown(submission: Submission, result: Result) -> Iterator[Fault]:
    """A folder beside the logs of a result, or among its compliance tests, is that of a test that the rules know."""
    folder = submission.root / result.folder
    if is_endpoints(folder):
        return
    for place in compliance_folders(submission.home, folder):
        known = (*rules.compliance_test_names(), *(_RUNS if place == folder else ()))
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.is_dir() and path.name not in known:
                name, expected = path.relative_to(submission.root).as_posix(), ", ".join(known)
                yield Fault("a folder of no known compliance test", name, "", path.name, expected)


def test_folder(submission: Submission, result: Result, wanted: ComplianceRules) -> Path | None:
    """Return the folder of a test, or None. If there are several, the folder that has the verification."""
    places = compliance_folders(submission.home, submission.root / result.folder)
    folders = [folder for place in places if (folder := place / wanted.test).is_dir()]
    return max(folders, key=lambda folder: sum((folder / file.name).is_file() for file in wanted.files), default=None)


def _test_faults(
    submission: Submission, result: Result, folder: Path, wanted: ComplianceRules, terms: Terms
) -> Iterator[Fault]:
    """Yield the parts of a passed test that a test's folder lacks."""
    for file in wanted.files:
        yield from _verification_faults(submission, folder, file, terms)
    if wanted.run_logs != "required":
        return
    yield from (
        Fault(f"{name} of {folder.name} is missing", (folder / name).relative_to(submission.root).as_posix())
        for name in _LOGS
        if not (folder / name).is_file()
    )
    if (folder / _LOGS[0]).is_file():
        yield from _run_faults(submission, result, folder, terms)


def _run_faults(submission: Submission, result: Result, folder: Path, terms: Terms) -> Iterator[Fault]:
    """Yield the faults of the run of a compliance test, which has to keep the rules of a performance run."""
    reader, place, terms = (
        Reader(submission.root),
        (folder / _LOGS[0]).parent,
        msgspec.structs.replace(terms, seeds=rules.round_terms(terms.round).test_seeds.get(folder.name, terms.seeds)),
    )
    read = result.test_runs.get(folder.name)
    part = replace(read, terms=terms) if read and read.folder == place else reader.performance(place, terms)
    if part is None:
        yield from (Fault(problem.what, problem.file, value=problem.value) for problem in reader.problems)
        return
    for part_check in (runs.seeds, runs.min_duration, runs.valid, runs.performance_samples):
        yield from part_check.function(result, part)


def _verification_faults(submission: Submission, folder: Path, file: VerifiedFile, terms: Terms) -> Iterator[Fault]:
    path = folder / file.name
    name = path.relative_to(submission.root).as_posix()
    if not path.is_file():
        yield Fault(f"{file.name} is missing", name)
        return
    text = text_at(path)
    missing = file.missing(text)
    if missing and file.scores and not (apart := list(_score_differences(folder, terms))):
        return
    for line in missing:
        fault = f"{folder.name} is not passed"
        if file.scores:
            fault += f": other answers than in the accuracy run, and {apart[0]}"
        yield Fault(fault, name, "", _line_with(text, line), line)
    yield from (
        Fault(f"{folder.name} is not passed", name, "", line, f"no line {line!r}")
        for line in (() if missing else file.forbidden_lines(text))
    )


def _score_differences(folder: Path, terms: Terms) -> Iterator[str]:
    """Yield the faults in the scores of a test's answers: they are missing, or differ from the accuracy run's."""
    scores = [scores_of(folder / name) for name in _SCORES]
    for target in terms.targets:
        tested, baseline = (values.get(target.label) for values in scores)
        if not tested or not baseline:
            yield f"{' or '.join(_SCORES)} has no {target.label}"
        elif (percent := abs(1 - baseline / tested) * 100) > target.tolerance:
            yield f"{target.label} is {percent:.2g} % apart, more than {target.tolerance:g} %"


def _line_with(text: str, line: str) -> str:
    start = line.partition(":")[0]
    return next((line.strip() for line in text.splitlines() if start in line), "no such line")


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
            for figure, value in _stated_figures(path, wanted.figures):
                yield from _wrong(submission, result, test, path, figure, value)


def _stated_figures(path: Path, figures: tuple[VerifiedFigure, ...]) -> Iterator[tuple[VerifiedFigure, float]]:
    text = text_at(path, _MAX_TEXT)  # where it cannot be read: COMPLIANCE
    yield from (
        (figure, float(number))
        for figure in figures
        for number in re.findall(rf"{figure.label}\s*[:=]\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text, re.IGNORECASE)
    )


def _wrong(
    submission: Submission, result: Result, test: str, path: Path, figure: VerifiedFigure, value: float
) -> Iterator[Fault]:
    name = path.relative_to(submission.root).as_posix()
    run = {"result": result.performance, "test": result.test_runs.get(test)}.get(figure.run)
    if (
        run is not None
        and run.metric is not None
        and not any(abs(value - figure) <= max(_DIGIT, _PART * abs(figure)) for figure in _figures(run))
    ):
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

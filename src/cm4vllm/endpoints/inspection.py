"""All checks of run folders or of a bundle of MLPerf Endpoints, ours and the official ones, with one verdict."""

import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.common import input_types
from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.common.clock import now
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.files import typed_path
from cm4vllm.common.progress import say_text
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.endpoints.bundle import CheckerInstallation, OfficialReport, official_report
from cm4vllm.records.checker import CurveVerdict
from cm4vllm.results.check_command.check_summary import as_objects, order_findings, summary
from cm4vllm.results.checks import findings_at
from cm4vllm.results.endpoints.curves import Curve, read_curves
from cm4vllm.rules import EndpointsRules, RulesInputs

_NO_BUNDLE = "since it takes a bundle, which generate,mlperf,endpoints,bundle builds of runs"
_WIDTH = 120


class EndpointsCheckSettings(Settings, frozen=True, kw_only=True):
    """The inputs of the recipe check,mlperf,endpoints."""

    folder: Annotated[str, Key("CM_MLPERF_ENDPOINTS_CHECKED")] = ""
    checker: input_types.EndpointsChecker = ""
    allowed: Annotated[str, Key("CM_MLPERF_ENDPOINTS_ALLOWED_ERRORS")] = ""
    verdict_file: Annotated[str, Key("CM_MLPERF_ENDPOINTS_VERDICT")] = ""
    rules: RulesInputs = RulesInputs()


def report_endpoints_checks(settings: EndpointsCheckSettings) -> dict[str, Any]:
    """Check and print what was found; return it as data.

    Raises UsageError where no folder or no point is there, SubmissionError where a finding is an error.
    """
    if not settings.folder:
        raise UsageError("no run folders and no bundle were given", remedy="give their folder with --input")
    root = typed_path(settings.folder).absolute()
    rules = settings.rules.chosen()
    curves, problems = read_curves(root, rules)
    if not curves:
        raise UsageError(
            f"{root} has no point of MLPerf Endpoints",
            cause="no folder below it holds a point.yaml or a result_summary.json",
            remedy="give run folders of the reference client, or a bundle",
        )
    findings = order_findings(
        [*problems, *(finding for curve in curves for finding in findings_at(Stage.CURVE, curve))]
    )
    unreadable = any(problem.code == "FILE-UNREADABLE" for problem in problems)
    official = None if unreadable else _official(root, settings.checker, rules)
    why_not = "as it was switched off" if bundle_root(root) else _NO_BUNDLE
    why_not = "as a file above cannot be read" if unreadable else why_not
    allowed = tuple(filter(None, (part.strip() for part in settings.allowed.split(","))))
    verdict = _verdict(findings, official, allowed)
    if settings.verdict_file:
        write_record(Path(settings.verdict_file), verdict)
    for line in _lines(curves, findings, official, why_not, verdict):
        say_text(line)
    _require_none(verdict, root)
    return {"findings": as_objects(findings), "summary": summary(findings), "official": _as_data(official)}


def bundle_root(folder: Path) -> Path | None:
    """Return the folder of a bundle that the official checker takes; None where there is no bundle."""
    folders = (folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*")))
    return next((path for path in folders if (path / "results").is_dir()), None)


def _official(root: Path, record: str, rules: EndpointsRules) -> OfficialReport | None:
    """Return what the official checker says of a bundle; None for run folders, or without the checker."""
    bundle = bundle_root(root)
    if bundle is None or not record:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        checker, report = read_record(Path(record), CheckerInstallation), Path(scratch) / "report.json"
        return official_report(checker, bundle, report, rules)


def _lines(
    curves: tuple[Curve, ...],
    findings: list[Finding],
    official: OfficialReport | None,
    why_not: str,
    verdict: CurveVerdict,
) -> Iterator[str]:
    points = sum(len(curve.points) for curve in curves)
    yield f"{len(curves):,} curve{'s' * (len(curves) != 1)}, {points:,} points: {summary(findings)}"
    for finding in findings:
        yield from _wrap(str(finding))
    if official is None:
        yield f"official checker: {verdict.official_words}, {why_not}"
        return
    for severity in ("error", "warning"):
        messages = {each.rule: each.message for each in reversed(official.results) if each.severity == severity}
        for rule, count in official.counts(severity).items():
            yield from _wrap(f"official {severity} {rule} ({count}): {messages[rule]}")
    yield f"official checker {official.version}: {verdict.official_words}"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _verdict(findings: list[Finding], official: OfficialReport | None, allowed: tuple[str, ...]) -> CurveVerdict:
    """Return how often each rule has an error or a warning."""

    def own(severity: Severity) -> dict[str, int]:
        return dict(Counter(finding.code for finding in findings if finding.severity is severity))

    def official_counts(severity: str) -> dict[str, int]:
        return dict(official.counts(severity)) if official else {}

    return CurveVerdict(
        checked_at=now(),
        errors=own(Severity.ERROR),
        warnings=own(Severity.WARNING),
        official_version=official.version if official else "",
        official_errors=official_counts("error"),
        official_warnings=official_counts("warning"),
        allowed=allowed,
    )


def _require_none(verdict: CurveVerdict, root: Path) -> None:
    """Raise SubmissionError where one of the checks has an error of a rule that is not allowed to have one."""
    errors = [f"our check: {name}" for name in verdict.errors if name not in verdict.allowed]
    errors += [f"the official checker: {name}" for name in verdict.official_errors if name not in verdict.allowed]
    if errors:
        raise SubmissionError(f"{root} has errors", cause="; ".join(errors), remedy="each is named above")


def _as_data(official: OfficialReport | None) -> dict[str, Any] | None:
    if official is None:
        return None
    return {
        "version": official.version,
        "passed": official.passed,
        **{f"{severity}s": dict(official.counts(severity)) for severity in ("error", "warning")},
    }

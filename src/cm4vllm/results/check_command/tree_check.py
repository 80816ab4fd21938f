"""All checks of a submission tree, ours or anyone's, with one verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import cm4vllm
from cm4vllm.common.checking.checks import Fault, Stage
from cm4vllm.common.checking.findings import FAULTS, Finding, Severity
from cm4vllm.common.errors import SubmissionError, UsageError, nearest
from cm4vllm.common.progress import say_text
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import spelled_out
from cm4vllm.results.check_command import check_summary
from cm4vllm.results.check_command.check_summary import CheckedSubmission, as_objects, order_findings, summary
from cm4vllm.results.checks import CHECKS, findings, findings_at
from cm4vllm.results.checks.of_logs.shared_logs import marks_of
from cm4vllm.results.checks.served_weights import with_weights
from cm4vllm.results.log_folders import PROBLEMS, text_at
from cm4vllm.results.model import Submission
from cm4vllm.results.submission_trees import each_submission, read_submission, submission_folders
from cm4vllm.rules import round_terms

#: The submissions whose pages are searched for the notice of a rehearsal.
_SEARCHED = 6
_NO_RULES = "no rules of their round, benchmark and scenario are known, or no performance log can be read"


@dataclass(frozen=True)
class Filters:
    """The requested filters; empty: all. `submitters` are names, or division/name; they are checked alone."""

    submitters: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = ()

    @classmethod
    def parse(cls, *, submitters: str = "", codes: str = "", severities: str = "") -> Self:
        """Read lists separated by commas. Raises UsageError for an unknown code or severity."""
        levels = [
            _one_of(word.lower().removesuffix("s"), list(FAULTS), "severity") for word in _comma_separated(severities)
        ]
        known = [*CHECKS, *PROBLEMS]
        return cls(
            tuple(_comma_separated(submitters)),
            tuple(_one_of(word.upper(), known, "code") for word in _comma_separated(codes)),
            tuple(map(Severity, levels)),
        )

    def __bool__(self) -> bool:
        return bool(self.submitters or self.codes or self.severities)

    def chosen(self, homes: Sequence[Path]) -> list[Path]:
        """Return the folders of the submitters. Raises UsageError for a submitter who has none."""
        wanted = {submitter.lower().strip("/") for submitter in self.submitters}
        names = {home: {submission_name(home).lower(), spelled_out(home.name).lower()} for home in homes}
        for unknown in wanted - {name for both in names.values() for name in both}:
            raise UsageError(
                f"no submission of {unknown} in this tree",
                cause=nearest(unknown, {home.name for home in homes}, f"it has {len(homes)} submissions"),
                remedy="give a submitter as its folder is named, or DIVISION/SUBMITTER, with --submitter",
            )
        return [home for home, both in names.items() if not wanted or both & wanted]

    def shown(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings of the codes and severities that are asked for."""
        return [
            finding
            for finding in findings
            if (not self.codes or finding.code in self.codes)
            and (not self.severities or finding.severity in self.severities)
        ]


def _comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _one_of(word: str, known: Sequence[str], kind: str) -> str:
    if word not in known:
        raise UsageError(
            f"{word} is no {kind}",
            cause=nearest(word, known, "docs/checks.md lists all codes"),
            remedy=f"give one or more, separated by commas, with --{kind}",
        )
    return word


def submission_name(home: Path) -> str:
    """Return the name of the submission in a submitter's folder: DIVISION/SUBMITTER, as findings spell it."""
    return spelled_out(f"{home.parent.name}/{home.name}")


@dataclass(frozen=True)
class Unchecked:
    """Something that was not checked, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class CheckedTree:
    """The submissions of a tree, all that was found in them, errors first, and what was not checked.

    `base` is the folder that holds the divisions. `by_place` has the findings by submission.
    """

    submissions: tuple[CheckedSubmission, ...]
    findings: tuple[Finding, ...]
    base: Path = field(default_factory=Path, compare=False)
    unchecked: tuple[Unchecked, ...] = ()

    @property
    def errors(self) -> int:
        return sum(finding.severity is Severity.ERROR for finding in self.findings)

    def by_place(self, filters: Filters) -> dict[str, list[Finding]]:
        """Return the findings to show, by the submission that they were found in: that with most errors first.

        Those that only the whole tree shows come last, without a name.
        """
        order = sorted(
            self.submissions, key=lambda submission: (*(-number for number in submission.counts), submission.name)
        )
        own = {finding for submission in order for finding in submission.findings}
        return {submission.name: filters.shown(submission.findings) for submission in order} | {
            "": filters.shown([finding for finding in self.findings if finding not in own])
        }

    @property
    def coverage(self) -> dict[str, int]:
        """The number of results, and the number of those to which the rules of a benchmark were applied."""
        return {
            "results": sum(submission.results for submission in self.submissions),
            "rules_applied": sum(submission.covered for submission in self.submissions),
        }


def check_tree(
    root: Path,
    *,
    round_name: str = "",
    weights: Path | None = None,
    weights_of: str = "",
    filters: Filters | None = None,
) -> CheckedTree:
    """Make every check on the submissions of a tree. Raises SubmissionError where there is none.

    Without `round_name` the seeds of the logs tell the round. `weights` is the folder of the weights that were served
    for the results that `weights_of` names (checks/served_weights.py). Raises UsageError where it names none, or no
    weights are given, for an unknown round, and where `filters` names a submitter who is not in the tree: of those that
    it names all findings are returned.
    """
    if weights_of and weights is None:
        raise UsageError(
            f"--weights_of={weights_of} has no effect without the weights of those results",
            remedy="give their folder, too: --weights=FOLDER",
        )
    round_name = round_terms(round_name).name if round_name else ""
    base, all_homes = submission_folders(root)
    homes = filters.chosen(all_homes) if filters else all_homes
    if weights is not None:
        read = with_weights([read_submission(base, home, round_name) for home in homes], weights, weights_of)
        checked = [_check_submission(submission) for submission in read]
    else:
        by_home = dict(each_submission(partial(_check_folder, base, round_name), homes))
        checked = [by_home[home] for home in homes]
    across = findings_at(Stage.ACROSS, [mark for each in checked for mark in each.logs])
    all_findings = [*(finding for each in checked for finding in each.findings), *_several_rounds(checked), *across]
    return CheckedTree(
        tuple(checked),
        tuple(order_findings(all_findings)),
        base,
        tuple(_unchecked_parts(root.resolve(), all_homes, homes, checked, with_weights=weights is not None)),
    )


def _several_rounds(checked: Sequence[CheckedSubmission]) -> Iterator[Finding]:
    """Yield a finding where the submissions of a tree are of several rounds."""
    counted = Counter(submission.round for submission in checked if submission.round)
    if len(counted) > 1:
        yield CHECKS["ROUND-MIXED"].finding(
            Fault(
                "the submissions of the tree are of several rounds",
                "",
                "",
                ", ".join(f"{count} of {name}" for name, count in sorted(counted.items())),
            )
        )


def _unchecked_parts(
    root: Path,
    all_homes: Sequence[Path],
    homes: Sequence[Path],
    checked: Sequence[CheckedSubmission],
    *,
    with_weights: bool,
) -> Iterator[Unchecked]:
    """Yield the parts that were not checked: submitters, folders without results, results without rules, bad files."""
    yield from (Unchecked(submission_name(home), "--submitter names others") for home in all_homes if home not in homes)
    yield from (
        Unchecked(submission_name(path), "it has no folder results/")
        for division in sorted({home.parent for home in all_homes} if root not in all_homes else ())
        for path in sorted(division.iterdir())
        if path.is_dir() and path not in all_homes
    )
    for submission in checked:
        if left := submission.results - submission.covered:
            yield Unchecked(f"{left} of {submission.results} results of {submission.name}", _NO_RULES)
        yield from (
            Unchecked(finding.file, "; ".join(part for part in (finding.what, finding.value) if part))
            for finding in submission.findings
            if finding.code in PROBLEMS and finding.code not in ("FILE-MISSING", "SCENARIO-UNKNOWN")
        )
    if not with_weights:
        yield Unchecked("the weights that were served", "none are given with --weights")


def _check_folder(base: Path, round_name: str, home: Path) -> CheckedSubmission:
    return _check_submission(read_submission(base, home, round_name))


def _check_submission(submission: Submission) -> CheckedSubmission:
    return CheckedSubmission(
        name=submission_name(submission.home),
        round=submission.round,
        results=len(submission.results),
        covered=sum(result.covered for result in submission.results),
        files=len(submission.listing.files),
        findings=tuple(findings(submission, Stage.TREE)),
        logs=marks_of(submission),
    )


class CheckInputs(Settings, frozen=True, kw_only=True):
    """The tree, the round of its rules where not its own, the weights that are compared, and the findings to show."""

    tree: Annotated[str, Key("CM_MLPERF_RESULTS_TREE")] = ""
    round_name: Annotated[str, Key("CM_MLPERF_RESULTS_ROUND")] = ""
    weights: Annotated[str, Key("CM_MLPERF_RESULTS_WEIGHTS")] = ""
    weights_of: Annotated[str, Key("CM_MLPERF_RESULTS_WEIGHTS_OF")] = ""
    submitters: Annotated[str, Key("CM_MLPERF_RESULTS_SUBMITTER")] = ""
    codes: Annotated[str, Key("CM_MLPERF_RESULTS_CODE")] = ""
    severities: Annotated[str, Key("CM_MLPERF_RESULTS_SEVERITY")] = ""

    def report(self) -> dict[str, object]:
        """Check the tree as `report_checks` does."""
        return report_checks(
            Path(self.tree).absolute(),
            round_name=self.round_name,
            weights=Path(self.weights).absolute() if self.weights else None,
            weights_of=self.weights_of,
            filters=Filters.parse(submitters=self.submitters, codes=self.codes, severities=self.severities),
        )


def report_checks(
    root: Path,
    *,
    round_name: str = "",
    weights: Path | None = None,
    weights_of: str = "",
    filters: Filters | None = None,
) -> dict[str, object]:
    """Check a tree, print what was found, and return the findings as plain objects.

    `filters` choose what is printed and returned. Raises SubmissionError, with the same objects, when there is an error
    in what was checked, shown or not, and as `check_tree` does.
    """
    filters = filters or Filters()
    checked = check_tree(root, round_name=round_name, weights=weights, weights_of=weights_of, filters=filters)
    say_text("\n".join(_text(checked, filters)))
    shown = filters.shown(checked.findings)
    state = {"findings": as_objects(shown), "summary": summary(shown), **_about(checked, round_name)}
    if checked.errors:
        raise SubmissionError(
            f"{checked.errors:,} {'error' if checked.errors == 1 else 'errors'} in {root}",
            cause=_rehearsal_words(checked),
            remedy="correct what the findings name; docs/checks.md describes every code",
            state=state,
        )
    return state


def _text(checked: CheckedTree, filters: Filters) -> Iterator[str]:
    """Yield the printed lines: counts, errors, warnings, notes; with many submissions, the last two by code only."""
    heading = _heading(checked)
    yield from (heading, "", *check_summary.counts(checked.submissions, checked.findings))
    by_place = checked.by_place(filters)
    yield from check_summary.by_submission(by_place, Severity.ERROR)
    others = (Severity.WARNING, Severity.NOTE)
    if len(checked.submissions) > 1 and not filters:
        yield from check_summary.code_lines(by_place, others)
        yield f"Each place: --severity={','.join(others)}, --code=CODE or --submitter=NAME; --out=json has all."
    else:
        for level in others:
            yield from check_summary.by_submission(by_place, level)
    if checked.unchecked:
        whys = dict.fromkeys(part.why for part in checked.unchecked)
        together = (f"{', '.join(part.what for part in checked.unchecked if part.why == why)}: {why}" for why in whys)
        yield from ("", "Not checked:", *check_summary.lines(together))
    if hidden := len(checked.findings) - len(filters.shown(checked.findings)):
        yield from ("", f"{hidden} findings of other codes or severities are not shown.")
    yield from ("", heading)


def _about(checked: CheckedTree, round_name: str) -> dict[str, Any]:
    """Return the submissions that were checked, with the round of their rules, and the parts that were not."""
    return {
        "checked": [
            {
                "submission": submission.name,
                "rules_of": submission.round,
                "round_from": "--results_round" if round_name else "the seeds of the logs",
                "results": submission.results,
                "rules_applied": submission.covered,
                "files": submission.files,
                **{f"{level}s": number for level, number in zip(FAULTS, submission.counts, strict=True)},
            }
            for submission in checked.submissions
        ],
        "coverage": checked.coverage,
        "not_checked": [{"what": part.what, "why": part.why} for part in checked.unchecked],
    }


def _rehearsal_words(checked: CheckedTree) -> str:
    """Return the note on a tree that calls itself a rehearsal; nothing for other trees."""
    homes = [checked.base / submission.name for submission in checked.submissions]
    pages = [page for home in homes[:_SEARCHED] for page in home.glob("results/*/*/*/README.md") if page.is_file()]
    return (
        "the tree is a rehearsal's: findings about its short runs and few samples are expected, and stay"
        if pages and all(cm4vllm.REHEARSAL_NOTICE in text_at(page) for page in pages)
        else ""
    )


def _heading(checked: CheckedTree) -> str:
    submissions, covered = checked.submissions, checked.coverage
    rounds = " and ".join(sorted({submission.round or "round unknown" for submission in submissions}))
    where = submissions[0].name if len(submissions) == 1 else f"{len(submissions)} submissions"
    applied = f"rules applied to {covered['rules_applied']:,} of {covered['results']:,} results"
    return f"{summary(checked.findings)} in {where} ({rounds}); {applied}"

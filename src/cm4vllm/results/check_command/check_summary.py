"""The printed summary of the check of a tree: counts by submission, the errors of each, then warnings and notes.

No line has more than WIDTH columns. A path is named below its submission, whose name stands once above.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cm4vllm.common.checking.findings import FAULTS, Finding, Severity
from cm4vllm.common.terminal_text import columns
from cm4vllm.results.checks.of_logs.shared_logs import LogMarks

WIDTH = 120
#: Letters of a value that are shown: a file may hold pages where a word belongs.
_MOST = 300


@dataclass(frozen=True)
class CheckedSubmission:
    """The findings of one check of a submission, `name` as findings spell it. `round` is empty for an unknown round.

    `covered` is the number of its `results` to which rules were applied, `files` that of the files; `logs` are the
    marks that distinguish its runs from those of other submissions.
    """

    name: str
    round: str
    results: int
    covered: int
    files: int
    findings: tuple[Finding, ...]
    logs: tuple[LogMarks, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of errors, warnings and notes."""
        return tuple(sum(finding.severity is level for finding in self.findings) for level in FAULTS)


def counts(checked: Sequence[CheckedSubmission], findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the table of the submissions, those with most errors first: round, results, and findings by severity.

    The last line adds up all `findings`; a line before it counts those that belong to no single submission.
    """
    numbers = {submission.name: (submission.results, submission.covered, *submission.counts) for submission in checked}
    rounds = {submission.name: submission.round or "unknown" for submission in checked}
    order = sorted(numbers, key=lambda name: (*(-number for number in numbers[name][2:]), name))
    rows = [(name, rounds[name], *map(_number_text, numbers[name])) for name in order]
    if len(rows) > 1:
        results, covered, *own = (sum(column) for column in zip(*numbers.values(), strict=True))
        number = Counter(finding.severity for finding in findings)
        between = [number[level] - count for level, count in zip(FAULTS, own, strict=True)]
        if any(between):
            rows.append(("between submissions", "", "", "", *map(_number_text, between)))
        rows.append(
            (
                "all",
                "",
                _number_text(results),
                _number_text(covered),
                *(_number_text(number[level]) for level in FAULTS),
            )
        )
    head = ("submission", "rules of", "results", "rules applied", *(f"{level}s" for level in FAULTS))
    yield from columns([head, *rows], numbers=range(2, 7))


def _number_text(number: int) -> str:
    return f"{number:,}"


def by_submission(findings: Mapping[str, Sequence[Finding]], level: Severity) -> Iterator[str]:
    """Yield the findings of a severity: for each submission the codes, and for each code every place.

    Where a code stands first, its source and what to do stand below it.
    """
    explained: set[str] = set()
    for name, own_findings in findings.items():
        if not (own := [finding for finding in order_findings(own_findings) if finding.severity is level]):
            continue
        yield from (
            "",
            f"{name}: {len(own)} {level}{'' if len(own) == 1 else 's'}" if name else f"{level}s of the tree",
        )
        code = ""
        for finding in own:
            if finding.code != code:
                code = finding.code
                yield from _wrap(f"{level} {code}: {finding.rule.text}", "  ", "    ")
                if code not in explained:
                    explained.add(code)
                    yield from _wrap(f"stated in: {finding.rule.source}", "    ", "      ")
                    if finding.remedy:
                        yield from _wrap(f"to do: {finding.remedy}", "    ", "      ")
            yield from _place(finding, name)


def _place(finding: Finding, submission: str) -> Iterator[str]:
    path = "" if finding.file == submission else finding.file.removeprefix(f"{submission}/")
    fault = finding.what.removeprefix(f"{path.rpartition('/')[2]} ")  # no path twice in a line
    yield from _wrap(": ".join(part for part in (path, finding.field, fault) if part), "    - ", "      ")
    values = [
        f"{word} {_cut(value)}" for word, value in (("found", finding.value), ("expected", finding.expected)) if value
    ]
    if values:
        yield from _wrap("; ".join(values), "        ", "          ")


def lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts as the entries of a list."""
    for text in texts:
        yield from _wrap(text, "  - ", "    ")


def code_lines(findings: Mapping[str, Sequence[Finding]], levels: Sequence[Severity]) -> Iterator[str]:
    """Yield a line for each code of these severities: how many findings it has, and in how many submissions."""
    rules = {finding.code: finding.rule.text for own in findings.values() for finding in own}
    places: dict[tuple[Severity, str], list[str]] = defaultdict(list)
    for name, own_findings in findings.items():
        for finding in own_findings:
            if finding.severity in levels:
                places[finding.severity, finding.code].append(name)
    if not places:
        return
    yield from ("", f"{' and '.join(f'{level}s' for level in levels).capitalize()} by code:")
    order = sorted(places.items(), key=lambda row: (FAULTS.index(row[0][0]), -len(row[1]), row[0][1]))
    rows = [(code, str(level), f"{len(names):,}", str(len(set(names)))) for (level, code), names in order]
    head, *table = columns([("code", "severity", "findings", "submissions"), *rows], numbers=(2, 3))
    yield f"{head}  rule"
    for line, ((_, code), _) in zip(table, order, strict=True):
        text = f"{line}  {rules[code]}"
        yield text if len(text) <= WIDTH else f"{text[: WIDTH - 4]} ..."


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]} ... ({len(text):,} characters)"


def _wrap(text: str, first: str, later: str) -> Iterator[str]:
    """Yield the lines of a text; a word that is longer than a line is broken, a path after one of its slashes."""
    line, is_new = first, True
    for word in text.split():
        for at, part in enumerate([word] if len(later) + len(word) <= WIDTH else re.findall(r"[^/]{1,80}/?|/", word)):
            gap = "" if is_new or at else " "
            if len(line) + len(gap) + len(part) > WIDTH:
                yield line
                line, gap = later, ""
            line += gap + part
            is_new = False
    yield line


def order_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with errors first, then by code, file and field; each once."""
    return sorted(
        dict.fromkeys(findings),
        key=lambda finding: (FAULTS.index(finding.severity), finding.code, finding.file, finding.field, finding.what),
    )


def summary(findings: Sequence[Finding]) -> str:
    """Return how many errors, warnings and notes there are."""
    counted = Counter(finding.severity for finding in findings)
    return ", ".join(f"{counted[severity]:,} {severity}{'' if counted[severity] == 1 else 's'}" for severity in FAULTS)


def as_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return one object a finding, with the names of its fields."""
    objects: list[dict[str, Any]] = msgspec.to_builtins(order_findings(findings))
    return [{name: value for name, value in entry.items() if name != "line"} for entry in objects]

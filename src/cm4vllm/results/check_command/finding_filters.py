"""Filters of the findings that are shown: by submitter, code and severity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.checking.findings import FAULTS, Finding, Severity
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.terminal_text import spelled_out
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.log_folders import PROBLEMS


@dataclass(frozen=True)
class Filters:
    """The requested filters; empty: all. `submitters` are names, or division/name; they are checked alone."""

    submitters: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = ()

    @classmethod
    def parse(cls, *, submitters: str = "", codes: str = "", severities: str = "") -> Filters:
        """Read lists separated by commas. Raises UsageError for an unknown code or severity."""
        levels = [_one_of(word.lower().removesuffix("s"), list(FAULTS), "severity") for word in _listed(severities)]
        known = [*CHECKS, *PROBLEMS]
        return cls(
            tuple(_listed(submitters)),
            tuple(_one_of(word.upper(), known, "code") for word in _listed(codes)),
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


def _listed(text: str) -> list[str]:
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

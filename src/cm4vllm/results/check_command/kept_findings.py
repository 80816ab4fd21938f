"""Findings of a large submission, kept while neither its files nor this package change (results/file_listing.py).

Only submissions of published rounds are that large: a smaller one is checked about as fast as its files are read.
"""

import hashlib
from functools import cache
from pathlib import Path

import msgspec

import cm4vllm
from cm4vllm.common.files import bytes_of
from cm4vllm.common.kept_values import KeptValues
from cm4vllm.results.copied_logs import LogMarks
from cm4vllm.results.file_listing import Listing
from cm4vllm.results.findings import Finding, Severity

#: From this number of files on findings are kept.
_LARGE = 400


class CheckedSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one check of a submission, `name` as findings spell it. `round` is empty for an unknown round.

    `covered` is the number of its `results` to which rules were applied, `files` that of the files; `logs` are the
    marks that tell its runs from those of other submissions.
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
        return tuple(sum(finding.severity is level for finding in self.findings) for level in Severity)


def state_of_submission(listing: Listing, base: Path, round_name: str) -> str:
    """Return one digest of what a submission's findings depend on: its files, the asked round and this package.

    Empty for a small submission, whose findings are not kept, and for one whose files may be changing.
    """
    if len(listing.files) < _LARGE or not listing.state:
        return ""
    # The root of a tree of one submission is checked, too.
    beside = [f"{path.name} {path.is_file()}" for path in sorted(base.iterdir())]
    alone = len(list(base.glob("*/*/results"))) == 1
    parts = (listing.state, round_name, package_digest(), str(base), *(beside if alone else ()))
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def kept_findings(folder: Path) -> KeptValues[CheckedSubmission]:
    """Return the findings that are kept in a folder, by the submission's home and state."""
    kind = tuple[str, str, CheckedSubmission]
    return KeptValues(str(folder), msgspec.json.encode, lambda data: msgspec.json.decode(data, type=kind))


@cache
def package_digest() -> str:
    """Return the digest of this package: other rules find other things."""
    root = Path(cm4vllm.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return hashlib.sha256(b"".join(bytes_of(path) for path in files)).hexdigest()

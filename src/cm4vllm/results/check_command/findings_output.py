"""Findings in order, counted, and as JSON objects."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cm4vllm.common.checking.findings import FAULTS, Finding


def ordered(findings: Iterable[Finding]) -> list[Finding]:
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
    objects: list[dict[str, Any]] = msgspec.to_builtins(ordered(findings))
    return [{name: value for name, value in entry.items() if name != "line"} for entry in objects]

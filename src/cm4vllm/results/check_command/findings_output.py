"""Findings in order, as JSON objects, and as SARIF 2.1.0 for tools that show the results of checks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from cm4vllm.results.findings import Finding, Severity

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_ORDER = list(Severity)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with errors first, then by code, file and field; each once."""
    return sorted(
        dict.fromkeys(findings),
        key=lambda finding: (_ORDER.index(finding.severity), finding.code, finding.file, finding.field, finding.what),
    )


def summary(findings: Sequence[Finding]) -> str:
    """Return how many errors, warnings and notes there are."""
    counted = Counter(finding.severity for finding in findings)
    return ", ".join(
        f"{counted[severity]:,} {severity}{'' if counted[severity] == 1 else 's'}" for severity in Severity
    )


def as_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return one object a finding, with the names of its fields."""
    objects: list[dict[str, Any]] = msgspec.to_builtins(ordered(findings))
    return objects


def as_sarif(
    findings: Iterable[Finding], version: str, about: Mapping[str, Any] | None = None, unchecked: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a SARIF log of one run of cm4vllm `version`; files are named below the root of what was checked.

    `about` says what was checked and by which rules, `unchecked` what was not, a sentence each.
    """
    in_order = ordered(findings)
    rules = {finding.code: finding for finding in reversed(in_order)}
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "cm4vllm",
                        "version": version,
                        "rules": [
                            {
                                "id": code,
                                "shortDescription": {"text": finding.rule.text},
                                "help": {"text": finding.remedy or finding.rule.text},
                                "properties": {"source": finding.rule.source},
                            }
                            for code, finding in sorted(rules.items())
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "properties": dict(about or {}),
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {"level": "note", "message": {"text": f"not checked: {text}"}} for text in unchecked
                        ],
                    }
                ],
                "results": [_sarif_result(finding, sorted(rules).index(finding.code)) for finding in in_order],
            }
        ],
    }


def _sarif_result(finding: Finding, rule: int) -> dict[str, Any]:
    text = "; ".join(
        part
        for part in (
            finding.what,
            finding.value and f"found {finding.value}",
            finding.expected and f"expected {finding.expected}",
            finding.remedy,
        )
        if part
    )
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": str(finding.severity),
        "message": {"text": text},
        "properties": {"field": finding.field, "value": finding.value, "expected": finding.expected},
    }
    if finding.file:
        place: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": quote(finding.file)}}}
        if finding.field:
            place["logicalLocations"] = [{"fullyQualifiedName": finding.field}]
        result["locations"] = [place]
    return result

"""Findings in order, as JSON objects, and as SARIF 2.1.0 for tools that show the results of checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from cm4vllm.results.findings import Finding, Severity

__all__ = ["as_objects", "as_sarif", "coverage", "ordered", "summary"]

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_ORDER = list(Severity)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with errors first, then by code, file and field; each once."""
    return sorted(
        dict.fromkeys(findings), key=lambda one: (_ORDER.index(one.severity), one.code, one.file, one.field, one.what)
    )


def summary(findings: Sequence[Finding]) -> str:
    """Return how many errors, warnings and notes there are."""
    counted = Counter(one.severity for one in findings)
    return ", ".join(f"{counted[one]:,} {one}{'' if counted[one] == 1 else 's'}" for one in Severity)


def coverage(applied: int, results: int) -> str:
    """Return to how many results the rules of a benchmark were applied."""
    return f"rules applied to {applied:,} of {results:,} results"


def as_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return one object a finding, with the names of its fields."""
    found: list[dict[str, Any]] = msgspec.to_builtins(ordered(findings))
    return found


def as_sarif(
    findings: Iterable[Finding], version: str, about: Mapping[str, Any] | None = None, unchecked: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a SARIF log of one run of cm4vllm `version`; files are named below the root of what was checked.

    `about` says what was checked and by which rules, `unchecked` what was not, a sentence each.
    """
    found = ordered(findings)
    rules = {one.code: one for one in reversed(found)}
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
                                "shortDescription": {"text": one.rule.text},
                                "help": {"text": one.remedy or one.rule.text},
                                "properties": {"source": one.rule.source},
                            }
                            for code, one in sorted(rules.items())
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
                "results": [_sarif_result(one, sorted(rules).index(one.code)) for one in found],
            }
        ],
    }


def _sarif_result(one: Finding, rule: int) -> dict[str, Any]:
    text = "; ".join(
        part
        for part in (
            one.what,
            one.value and f"found {one.value}",
            one.expected and f"expected {one.expected}",
            one.remedy,
        )
        if part
    )
    result: dict[str, Any] = {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": str(one.severity),
        "message": {"text": text},
        "properties": {"field": one.field, "value": one.value, "expected": one.expected},
    }
    if one.file:
        place: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": quote(one.file)}}}
        if one.field:
            place["logicalLocations"] = [{"fullyQualifiedName": one.field}]
        result["locations"] = [place]
    return result

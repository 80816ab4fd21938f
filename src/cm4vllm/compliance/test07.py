"""TEST07: the accuracy of answers that were given in performance mode reaches a threshold."""

from __future__ import annotations

from cm4vllm.compliance.records import CheckResult

__all__ = ["ACCURACY", "FILE", "checks", "report"]

#: The file that the official checker reads.
FILE = "verify_accuracy.txt"
ACCURACY = "Accuracy check pass"


def checks(score: float | None, *, least: float) -> tuple[CheckResult, ...]:
    """Return the check of a score in percent (None where the answers could not be scored) against the threshold."""
    if score is None:
        return (CheckResult(name=ACCURACY, passed=False, found="the answers were not scored"),)
    return (CheckResult(name=ACCURACY, passed=score >= least, found=f"{score} against a threshold of {least}"),)


def report(found: tuple[CheckResult, ...], score: float | None, *, least: float) -> str:
    """Return the text of verify_accuracy.txt; the official checkers look for TEST PASS in it."""
    (check,) = found
    return (
        f"'exact_match': {score}\nAccuracy threshold: {least}\n{check.name}: {check.passed}\n"
        f"TEST {'PASS' if check.passed else 'FAIL'}\n"
    )

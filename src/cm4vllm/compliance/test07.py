"""TEST07: the accuracy of answers that were given in performance mode reaches a threshold.

The official verification (compliance/TEST07/run_verification.py) runs the benchmark's accuracy script on the log and
compares the number that it prints. A log that lacks answers passes it; here it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from cm4vllm.compliance.records import CheckResult

__all__ = ["ACCURACY", "FILE", "SCORE", "WHOLE", "checks", "report"]

#: The file that the official checker reads.
FILE = "verify_accuracy.txt"
ACCURACY, WHOLE = "Accuracy check pass", "All samples logged"
#: The score that is compared, by its label.
SCORE = "exact_match"


def checks(score: float | None, logged: int, *, least: float, samples: int) -> tuple[CheckResult, ...]:
    """Return the checks of a score in percent (None where the answers could not be scored), and of `logged` samples."""
    found = "the answers were not scored" if score is None else f"{score} against a threshold of {least}"
    return (
        CheckResult(name=ACCURACY, passed=score is not None and score >= least, found=found),
        CheckResult(
            name=WHOLE, passed=logged == samples, found=f"answers to {logged} samples; the dataset has {samples}"
        ),
    )


def report(found: Sequence[CheckResult], score: float | None, *, least: float) -> str:
    """Return the text of verify_accuracy.txt; the official checkers look for TEST PASS in it."""
    lines = [f"'{SCORE}': {score}", f"Accuracy threshold: {least}", *(f"{one.name}: {one.passed}" for one in found)]
    passed = all(one.passed for one in found)
    return "\n".join([*lines, f"TEST {'PASS' if passed else 'FAIL'}"]) + "\n"

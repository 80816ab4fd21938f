"""TEST09: answers in performance mode are on average as long as those of the reference.

The official verification (compliance/TEST09/run_verification.py) counts the tokens of each answer, those without data
as none, and holds their mean against both bounds. A log that lacks answers passes it; here it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from cm4vllm.compliance.answers import LoggedAnswer
from cm4vllm.compliance.records import CheckResult

__all__ = ["FILE", "LONG", "SHORT", "WHOLE", "checks", "report"]

#: The file that the official checker reads.
FILE = "verify_output_len.txt"
SHORT, LONG, WHOLE = "Min check pass", "Max check pass", "All samples logged"


def checks(answers: Sequence[LoggedAnswer], *, least: float, most: float, samples: int) -> tuple[CheckResult, ...]:
    """Return the checks of a log: the mean of its tokens within [least..most], and each of `samples` answered once."""
    mean, logged = _mean(answers), {answer.sample for answer in answers}
    whole = len(answers) == samples == len(logged)
    return (
        CheckResult(name=SHORT, passed=mean >= least, found=f"mean of {mean:.2f} tokens, at least {least} are asked"),
        CheckResult(name=LONG, passed=mean <= most, found=f"mean of {mean:.2f} tokens, at most {most} are allowed"),
        CheckResult(
            name=WHOLE,
            passed=whole,
            found=f"{len(answers)} answers to {len(logged)} samples; the dataset has {samples}",
        ),
    )


def report(found: Sequence[CheckResult], answers: Sequence[LoggedAnswer], *, least: float, most: float) -> str:
    """Return the text of verify_output_len.txt; the official checkers look for TEST PASS in it."""
    passed = all(check.passed for check in found)
    lines = [
        f"Total samples: {len(answers)}",
        f"Mean output tokens: {_mean(answers):.2f}",
        f"Min threshold: {least}",
        f"Max threshold: {most}",
        *(f"{check.name}: {check.passed}" for check in found),
    ]
    return "\n".join([*lines, f"TEST {'PASS' if passed else 'FAIL'}"]) + "\n"


def _mean(answers: Sequence[LoggedAnswer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / len(answers) if answers else 0.0

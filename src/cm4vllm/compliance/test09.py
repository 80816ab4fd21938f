"""TEST09: answers in performance mode are on average as long as those of the reference.

The official verification (compliance/TEST09/run_verification.py) counts the tokens of each answer, those without data
as none, and holds their mean against both bounds. A log that lacks answers passes it; here it does not.
"""

from collections.abc import Sequence

from cm4vllm.compliance.run_verdict import LoggedRun, Verdict
from cm4vllm.records.compliance import CheckResult
from cm4vllm.records.logs.answers import LoggedAnswer

SHORT, LONG, WHOLE = "Min check pass", "Max check pass", "All samples logged"


def verify(run: LoggedRun) -> Verdict:
    """Return the verdict on a run. Raises RunFailed for a log without answers."""
    run.require_answers(1)
    bounds = run.test.thresholds
    least, most = bounds["min_output_tokens"], bounds["max_output_tokens"]
    return verdict(run.answers, least=least, most=most, samples=run.settings.samples)


def verdict(answers: Sequence[LoggedAnswer], *, least: float, most: float, samples: int) -> Verdict:
    """Return the verdict on a log: the mean of its tokens within [least..most], and each of `samples` answered once."""
    mean = sum(len(answer.tokens) for answer in answers) / len(answers) if answers else 0.0
    logged = {answer.sample for answer in answers}
    return Verdict(
        (
            CheckResult(
                name=SHORT, passed=mean >= least, found=f"mean of {mean:.2f} tokens, at least {least} required"
            ),
            CheckResult(name=LONG, passed=mean <= most, found=f"mean of {mean:.2f} tokens, at most {most} allowed"),
            CheckResult(
                name=WHOLE,
                passed=len(answers) == samples == len(logged),
                found=f"{len(answers)} answers to {len(logged)} samples; the dataset has {samples}",
            ),
        ),
        facts=(
            f"Total samples: {len(answers)}",
            f"Mean output tokens: {mean:.2f}",
            f"Min threshold: {least}",
            f"Max threshold: {most}",
        ),
    )

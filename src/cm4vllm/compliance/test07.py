"""TEST07: the accuracy of answers that were given in performance mode reaches a threshold.

The official verification (compliance/TEST07/run_verification.py) runs the benchmark's accuracy script on the log and
compares the number that it prints. A log that lacks answers passes it; here it does not.
"""

from collections.abc import Sequence
from pathlib import Path

from cm4vllm.accuracy.metric_families import Samples
from cm4vllm.accuracy.scoring import require_tokenizer, rows_of_samples, scorer_of
from cm4vllm.accuracy.sentences import NO_SENTENCES
from cm4vllm.assets.tokenizer_file import Detokenizer
from cm4vllm.compliance.run_verdict import LoggedRun, Verdict
from cm4vllm.records.compliance import CheckResult
from cm4vllm.records.logs.answers import LoggedAnswer
from cm4vllm.records.run import RunSettings

ACCURACY, WHOLE = "Accuracy check pass", "All samples logged"
#: The score that is compared, by its label.
SCORE = "exact_match"


def verify(run: LoggedRun) -> Verdict:
    """Return the verdict on a run. Raises RunFailed for a log without answers."""
    run.require_answers(1)
    return verdict(
        _score(run.answers, run.settings),
        len({answer.sample for answer in run.answers}),
        least=run.test.thresholds["accuracy_threshold"],
        samples=run.settings.samples,
    )


def verdict(score: float | None, logged: int, *, least: float, samples: int) -> Verdict:
    """Return the verdict on a score in percent (None where the answers could not be scored) of `logged` samples."""
    words = "the answers were not scored" if score is None else f"{score} against a threshold of {least}"
    return Verdict(
        (
            CheckResult(name=ACCURACY, passed=score is not None and score >= least, found=words),
            CheckResult(
                name=WHOLE, passed=logged == samples, found=f"answers to {logged} samples; the dataset has {samples}"
            ),
        ),
        facts=(f"'{SCORE}': {score}", f"Accuracy threshold: {least}"),
    )


def _score(answers: Sequence[LoggedAnswer], settings: RunSettings) -> float | None:
    """Return the accuracy of the answers in percent by the benchmark's scorer; None if the scorer does not give one."""
    require_tokenizer(settings)
    scorer = scorer_of(settings.terms)
    rows = rows_of_samples(settings.dataset, [answer.sample for answer in answers])
    texts = Detokenizer(Path(settings.model.path)).decode(
        [answer.tokens for answer in answers], special_tokens=scorer.special_tokens
    )
    return scorer.compute(Samples(texts, rows, NO_SENTENCES)).values.get(SCORE)

"""Scores against the log that they are of, the client's count of tokens, and the targets of the benchmark."""

import math
from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, check
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.run import RunRecord
from cm4vllm.results.log_folders import terms_of
from cm4vllm.results.model import Accuracy, Submission

#: The difference allowed between the scored tokens per sample and the received ones; a wrong width doubles them.
WIDTH_TOLERANCE = 0.05


def _scored(submission: Submission) -> Iterator[tuple[Accuracy, RunRecord, AccuracyRecord]]:
    for result in submission.results:
        if (part := result.accuracy) and part.run and part.record:
            yield part, part.run, part.record


@check(
    "SCORES-LOG", source="docs/results.md", remedy="score the run again: --tags=process,mlperf,accuracy", each=_scored
)
def scores_of_this_log(part: Accuracy, run: RunRecord, record: AccuracyRecord) -> Iterator[Fault]:
    """Scores are those of the log beside them."""
    log = run.files.get(ACCURACY_LOG)
    if log is not None and log != record.log_sha256:
        yield Fault(
            f"the scores in {part.beside(ACCURACY_FILE)} are those of another log",
            part.beside(ACCURACY_FILE),
            "log_sha256",
            record.log_sha256,
            log,
        )


@check(
    "TOKEN-WIDTH",
    source="evaluate-accuracy.py of the benchmark, --dtype",
    remedy="remove the run's folder and run it again",
    each=_scored,
)
def token_width(part: Accuracy, run: RunRecord, record: AccuracyRecord) -> Iterator[Fault]:
    """Tokens are scored with the width that they were written with: a 64-bit token read as two 32-bit ones doubles the
    tokens of a sample.
    """
    if not record.samples or not run.client.completed:
        return
    scored, received = record.tokens / record.samples, run.client.completion_tokens / run.client.completed
    if not math.isclose(scored, received, rel_tol=WIDTH_TOLERANCE):
        yield Fault(
            f"the scores in {part.beside(ACCURACY_FILE)} count {scored:,.1f} tokens a sample, the client "
            f"received {received:,.1f}",
            part.beside(ACCURACY_FILE),
            "tokens",
            f"{scored:,.1f} a sample",
            f"{received:,.1f} a sample",
        )


@check(
    "SCORES-TARGETS",
    source="tools/submission/submission_checker/constants.py, accuracy-target and accuracy-upper-limit",
    remedy="remove accuracy.json and score the run again: --tags=process,mlperf,accuracy",
    each=_scored,
)
def targets(part: Accuracy, run: RunRecord, record: AccuracyRecord) -> Iterator[Fault]:
    """Scores are compared with the targets of their round, benchmark and scenario."""
    terms = run.settings.terms
    if terms_of(terms.round, terms.benchmark, terms.scenario, terms.mode) is None:
        return
    known = rules.accuracy_targets(terms.round, terms.benchmark, terms.scenario)
    expected = sorted(
        (target.metric, target.label, target.lower, target.upper)
        for target in known
        if target.metric not in record.unscored
    )
    stated = sorted((score.metric, score.label, score.lower, score.upper) for score in record.scores)
    whole = record.samples == rules.benchmark_terms(terms.round, terms.benchmark).samples
    by_metric = {target.metric: target for target in known}
    wrong = [
        score.metric
        for score in record.scores
        if score.metric in by_metric and score.met != by_metric[score.metric].met(score.value, whole=whole)
    ]
    fault = f"the accuracy targets are not those of {terms.benchmark}"
    if stated != expected:
        yield Fault(fault, part.beside(ACCURACY_FILE), "scores", stated, expected)
    elif wrong:
        yield Fault(
            f"{fault}: scores are judged wrongly",
            part.beside(ACCURACY_FILE),
            "scores",
            ", ".join(wrong),
            "what the rules say of these values",
        )

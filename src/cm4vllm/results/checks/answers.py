"""What a published accuracy run states of its answers: counts, scores and samples, each stated once and alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.common.files import opened
from cm4vllm.loadgen.logs import ACCURACY_LOG
from cm4vllm.results.checks.accuracy_runs import MAX_LOG, scored, served_tokens, text_file
from cm4vllm.results.checks.check import Fault, Stage, check
from cm4vllm.results.checks.performance_runs import is_strict
from cm4vllm.results.findings import Severity
from cm4vllm.results.model import Accuracy, Result, Submission

__all__: list[str] = []

_SCRIPT = "evaluate-accuracy.py of the benchmark"
_SCORE = "score the run's whole accuracy log again, and publish what the script prints"
_SAMPLES, _TOKENS, _EACH = "gen_num", "gen_tok_len", "tokens_per_sample"
#: tokens_per_sample has one digit after the point.
_ROUNDED = 0.051
#: How far the tokens a sample of the two runs may lie apart: of 800 published results, 1.8 % at most, and 50 % in one
#: whose tokens were read with the wrong width.
_TOLERANCE = 0.04
#: Entries of an accuracy log that truncation left, also those that it cut.
_ENTRY = re.compile(rb'"seq_id"\s*:\s*(\d+)\s*,\s*"qsl_idx"\s*:\s*(\d+)')


@check(
    "SCORES-CONTRADICT",
    "accuracy.txt states each score of the benchmark once: the official checker compares every line that has it",
    source="tools/submission/submission_checker/checks/accuracy_check.py, accuracy_result_check",
    remedy=_SCORE,
    stage=Stage.TREE,
)
def stated_once(submission: Submission) -> Iterator[Fault]:
    for _, part in scored(submission):
        asked = {one.label for one in (part.terms.targets if part.terms else ())}
        found: dict[str, list[float]] = defaultdict(list)
        for figure in part.stated:
            if figure.name in asked | {_SAMPLES, _TOKENS}:
                found[figure.name].append(figure.value)
        for label, values in found.items():
            if len(set(values)) > 1:
                yield Fault(
                    "a score is stated with several values",
                    text_file(part),
                    label,
                    ", ".join(f"{one:g}" for one in values[:4]),
                    "one value",
                    severity=None if is_strict(submission) else Severity.WARNING,
                )


@check(
    "ACCURACY-COUNTS",
    "the counts in accuracy.txt agree with each other and with the log: samples, tokens, and tokens a sample",
    source=_SCRIPT,
    remedy=_SCORE,
    stage=Stage.TREE,
)
def counts(submission: Submission) -> Iterator[Fault]:
    for _, part in scored(submission):
        samples, tokens, each = (part.figures.value(one) for one in (_SAMPLES, _TOKENS, _EACH))
        expected = _answered(part)
        if samples and expected and samples != expected:
            yield Fault(
                "the scores are of another number of samples than the run answered",
                text_file(part),
                _SAMPLES,
                f"{samples:.0f}",
                expected,
            )
        elif samples and tokens and each and abs(tokens / samples - each) > _ROUNDED:
            yield Fault(
                "tokens a sample are not tokens divided by samples",
                text_file(part),
                _EACH,
                f"{each:g}",
                f"{tokens / samples:.1f}, {tokens:.0f} / {samples:.0f}",
            )


def _answered(part: Accuracy) -> int | None:
    """Return how many samples the accuracy run answered, by its log."""
    found = (part.settings.get(key) for key in ("accuracy_sample_count", "qsl_reported_total_count"))
    return next((one for one in found if isinstance(one, int) and one > 0), None)


@check(
    "TOKENS-DIFFER",
    "a sample has as many tokens in the performance run as in the accuracy run: LoadGen's rates are of those answers",
    source="loadgen/results.cc, tokens_per_second and tps_as_completed",
    remedy="publish the logs and scores of runs with the same sampling parameters, as they were written",
    stage=Stage.TREE,
)
def tokens(submission: Submission) -> Iterator[Fault]:
    for result, part in scored(submission):
        each, served, run = part.figures.value(_EACH), served_tokens(result), result.performance
        if not each or not served or run is None or not _same_dataset(result):
            continue
        apart = served / each - 1
        # About twice or half as many is TOKENS-DOUBLED.
        if abs(apart) > _TOLERANCE and not 1.8 < each / served < 2.2:
            yield Fault(
                f"the performance run has {apart:+.1%} tokens a sample, against the accuracy run",
                run.log,
                run.figures["tokens_per_second"].source.field,
                f"{served:.1f} a sample",
                f"{each:g}, {_EACH} in {text_file(part)}",
            )


def _same_dataset(result: Result) -> bool:
    run, part = result.performance, result.accuracy
    if run is None or part is None or run.terms is None or part.terms is None:
        return False
    return run.terms.samples == part.terms.samples


@check(
    "ANSWERS-TWICE",
    "an accuracy log has one answer for each sample of the dataset",
    source="loadgen/logging.cc, LogAccuracy",
    remedy="publish the run's own accuracy log, truncated by the official tool",
    stage=Stage.TREE,
)
def entries(submission: Submission) -> Iterator[Fault]:
    for _, part in scored(submission):
        name = (Path(part.log).parent / ACCURACY_LOG).as_posix()
        text = _head_and_tail(part.folder / ACCURACY_LOG)
        found = [(int(sequence), int(sample)) for sequence, sample in _ENTRY.findall(text)]
        total = part.settings.get("qsl_reported_total_count")
        for key, values in (("seq_id", [one[0] for one in found]), ("qsl_idx", [one[1] for one in found])):
            twice = [value for value, count in Counter(values).items() if count > 1]
            if twice:
                yield Fault("two answers have one number", name, key, twice[0], "each number once")
        beyond = [sample for _, sample in found if isinstance(total, int) and total and sample >= total]
        if beyond:
            yield Fault("an answer is of no sample of the dataset", name, "qsl_idx", beyond[0], f"less than {total}")


def _head_and_tail(path: Path) -> bytes:
    """Return what truncation leaves of an accuracy log: of one that is not truncated, as much of it."""
    try:
        with opened(path) as file:
            head = file.read(MAX_LOG)
            rest = path.stat().st_size - len(head)
            if rest > 0:
                file.seek(max(len(head), path.stat().st_size - MAX_LOG))
                head += b"\n" + file.read(MAX_LOG)
            return head
    except OSError:
        return b""

"""Checks the answers of a published accuracy run: counts, scores and samples, each stated once and alike."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.accuracy import ACCURACY_TEXT
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.results.checks.accuracy_runs import MAX_LOG, served_tokens
from cm4vllm.results.checks.subjects import is_strict, scored_results
from cm4vllm.results.log_folders import head_and_tail
from cm4vllm.results.model import Accuracy, Result

_SCRIPT = "evaluate-accuracy.py of the benchmark"
_SCORE = "score the run's whole accuracy log again, and publish what the script prints"
_SAMPLES, _LENGTH, _TOKENS, _EACH = "gen_num", "gen_len", "gen_tok_len", "tokens_per_sample"
#: tokens_per_sample has one digit after the point.
_ROUNDED = 0.051
#: The difference allowed between the tokens per sample of the two runs: it is 1.8 % at most in 800 published results,
#: and 50 % in one result whose tokens were read with the wrong width.
_TOLERANCE = 0.04
#: Scores of texts are percent; of one text, pairs of words and common sequences are a part of its words.
_MOST, _WORDS, _OF_WORDS = 100.0, "rouge1", ("rouge2", "rougeL", "rougeLsum")
#: An answer has at least this many characters a token: of 747 published results, 1.7.
_CHARACTERS = 0.5
#: An answer that truncation left whole, and how many tokens it states.
_ANSWER = re.compile(rb'"data"\s*:\s*"([0-9A-Fa-f]*)"[^{}]{0,256}?"token_count"\s*:\s*(\d+)')
#: Hexadecimal digits of a token, as its 32 or 64 bits.
_WIDTHS = (8, 16)
#: Bytes around the place where truncation joined two parts of a log, in which a number may be cut.
_JOINED = 32
#: Entries of an accuracy log that truncation left, also those that it cut.
_ENTRY = re.compile(rb'"seq_id"\s*:\s*(\d+)\s*,\s*"qsl_idx"\s*:\s*(\d+)')


@check(
    "SCORES-CONTRADICT",
    source="tools/submission/submission_checker/checks/accuracy_check.py, accuracy_result_check",
    remedy=_SCORE,
    stage=Stage.TREE,
    each=scored_results,
)
def stated_once(result: Result, part: Accuracy) -> Iterator[Fault]:
    """accuracy.txt states each score of the benchmark once: the official checker compares every line that has it."""
    asked = {target.label for target in (part.terms.targets if part.terms else ())}
    by_name: dict[str, list[float]] = defaultdict(list)
    for figure in part.stated:
        if figure.name in asked | {_SAMPLES, _TOKENS}:
            by_name[figure.name].append(figure.value)
    yield from (
        Fault(
            "a score is stated with several values",
            part.beside(ACCURACY_TEXT),
            label,
            ", ".join(f"{value:g}" for value in values[:4]),
            "one value",
            severity=None if is_strict(result) else Severity.WARNING,
        )
        for label, values in by_name.items()
        if len(set(values)) > 1
    )


@check("SCORE-IMPOSSIBLE", source=_SCRIPT, remedy=_SCORE, stage=Stage.TREE, each=scored_results)
def possible(_: Result, part: Accuracy) -> Iterator[Fault]:
    """Scores are possible: none is above 100, and none of the ROUGE scores above that of single words."""
    parts = {
        target.label
        for target in (part.terms.targets if part.terms else ())
        if target.upper is None and target.reference <= _MOST
    }
    words = part.figures.value(_WORDS)
    for label in sorted(parts | set(_OF_WORDS)):
        value = part.figures.value(label)
        most = words if label in _OF_WORDS and words is not None else _MOST
        if value is not None and not 0 <= value <= most:
            than = f"{_WORDS}, {most:g}" if label in _OF_WORDS else f"{_MOST:g}"
            yield Fault("no run has such a score", part.beside(ACCURACY_TEXT), label, f"{value:g}", f"0 to {than}")


@check("ACCURACY-COUNTS", source=_SCRIPT, remedy=_SCORE, stage=Stage.TREE, each=scored_results)
def counts(_: Result, part: Accuracy) -> Iterator[Fault]:
    """The counts in accuracy.txt agree with each other and with the log: samples, tokens, and tokens a sample."""
    samples, tokens, each = (part.figures.value(name) for name in (_SAMPLES, _TOKENS, _EACH))
    expected = _answered_samples(part)
    if samples and expected and samples != expected:
        yield Fault(
            "the scores are of another number of samples than the run answered",
            part.beside(ACCURACY_TEXT),
            _SAMPLES,
            f"{samples:.0f}",
            expected,
        )
    elif samples and tokens and each and abs(tokens / samples - each) > _ROUNDED:
        yield Fault(
            "tokens a sample are not tokens divided by samples",
            part.beside(ACCURACY_TEXT),
            _EACH,
            f"{each:g}",
            f"{tokens / samples:.1f}, {tokens:.0f} / {samples:.0f}",
        )
    characters = part.figures.value(_LENGTH)
    if characters is not None and tokens and characters < _CHARACTERS * tokens:
        yield Fault(
            "the answers have fewer characters than so many tokens can have",
            part.beside(ACCURACY_TEXT),
            _LENGTH,
            f"{characters:.0f}",
            f"more, for {tokens:.0f} tokens",
        )


def _answered_samples(part: Accuracy) -> int | None:
    """Return how many samples the accuracy run answered, by its log."""
    counts = (part.settings.get(key) for key in ("accuracy_sample_count", "qsl_reported_total_count"))
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


@check(
    "TOKENS-DIFFER",
    source="loadgen/results.cc, tokens_per_second and tps_as_completed",
    remedy="publish the logs and scores of runs with the same sampling parameters, as they were written",
    stage=Stage.TREE,
    each=scored_results,
)
def tokens(result: Result, part: Accuracy) -> Iterator[Fault]:
    """A sample has as many tokens in the performance as in the accuracy run: LoadGen's rates are of those answers."""
    each, served, run = part.figures.value(_EACH), served_tokens(result), result.performance
    if not each or not served or run is None or run.terms is None or part.terms is None:
        return
    if run.terms.samples != part.terms.samples:
        return  # each has a dataset of its own
    apart = served / each - 1
    # About twice or half as many is TOKENS-DOUBLED.
    if abs(apart) > _TOLERANCE and not 1.8 < each / served < 2.2:
        yield Fault(
            f"the performance run has {apart:+.1%} tokens a sample, against the accuracy run",
            run.log,
            run.figures["tokens_per_second"].source.field,
            f"{served:.1f} a sample",
            f"{each:g}, {_EACH} in {part.beside(ACCURACY_TEXT)}",
        )


@check(
    "ANSWERS-TWICE",
    source="loadgen/logging.cc, LogAccuracy",
    remedy="publish the run's own accuracy log, truncated by the official tool",
    stage=Stage.TREE,
    each=scored_results,
)
def entries(_: Result, part: Accuracy) -> Iterator[Fault]:
    """An accuracy log has one answer for each sample of the dataset."""
    name = part.beside(ACCURACY_LOG)
    pairs = [
        (int(match[1]), int(match[2]))
        for match in _untruncated_matches(_ENTRY, head_and_tail(part.folder / ACCURACY_LOG, MAX_LOG))
    ]
    total = part.settings.get("qsl_reported_total_count")
    for key, values in (("seq_id", [pair[0] for pair in pairs]), ("qsl_idx", [pair[1] for pair in pairs])):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            yield Fault("two answers have one number", name, key, twice[0], "each number once")
    beyond = [sample for _, sample in pairs if isinstance(total, int) and total and sample >= total]
    if beyond:
        yield Fault("an answer is of no sample of the dataset", name, "qsl_idx", beyond[0], f"less than {total}")


@check(
    "ANSWERS-LENGTHS",
    source="loadgen/logging.cc, LogAccuracy",
    remedy="publish the run's own accuracy log, truncated by the official tool",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=scored_results,
)
def lengths(_: Result, part: Accuracy) -> Iterator[Fault]:
    """An accuracy log has answers, each with as many tokens as it states."""
    path = part.folder / ACCURACY_LOG
    name, text = part.beside(ACCURACY_LOG), head_and_tail(path, MAX_LOG)
    if path.is_file() and b'"qsl_idx"' not in text:
        yield Fault("the accuracy log has no answers", name, "data", "nothing", "the answers of the run")
    answers = [(len(match[1]), int(match[2])) for match in _untruncated_matches(_ANSWER, text)]
    # Some systems log texts: only where an answer is of tokens with a fixed width, all are.
    width = next((width for width in _WIDTHS if any(size == width * count > 0 for size, count in answers)), 0)
    for size, count in answers:
        if size != width * count if width else size < count:
            yield Fault(
                "an answer has another length than it states",
                name,
                "token_count",
                count,
                f"{size // width} tokens" if width else f"{size // 2} bytes",
            )
            break


def _untruncated_matches(pattern: re.Pattern[bytes], text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the matches that do not lie where truncation joined the beginning of a log and its end, as much of each."""
    cut = len(text) // 2
    yield from (match for match in pattern.finditer(text) if not match.start() - _JOINED < cut < match.end() + _JOINED)

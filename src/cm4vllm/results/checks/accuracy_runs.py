"""The accuracy runs of a written tree: scores, their targets, tokens a sample, the log and its digest."""

import re
from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.accuracy import ACCURACY_TEXT
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.results.checks.subjects import is_strict, scored_results
from cm4vllm.results.log_folders import head_and_tail, text_at
from cm4vllm.results.model import Accuracy, Result
from cm4vllm.rules import benchmark_terms

_CONSTANTS = "tools/submission/submission_checker/constants.py"
_SCORE = "score the run's whole accuracy log again, and publish what the script prints"
#: A truncated accuracy log has this many bytes at most (MAX_ACCURACY_LOG_SIZE).
MAX_LOG = 10 * 1024
#: Scored tokens a sample over those of the performance run, between which a width was misread.
_DOUBLED = (1.8, 2.2)
_TOKENS = "tokens_per_sample"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DATA = re.compile(r'"data"\s*:\s*"([0-9A-Fa-f]{64,})')
#: A score as numpy 2 prints it, by its label; the official checkers look only for the labels that have a target.
_NUMPY = re.compile(r"""["']([\w-]+)["']:\s*(np\.\w+\()""")


@check(
    "ACCURACY-TARGET",
    source=f"{_CONSTANTS}, accuracy-target and accuracy-upper-limit",
    remedy="use a model that reaches the target, or the open division",
    stage=Stage.TREE,
    each=scored_results,
)
def targets(result: Result, part: Accuracy) -> Iterator[Fault]:
    """Scores reach the targets of the benchmark's variant and round: in the closed division all of them."""
    for target in part.terms.targets if part.terms else ():
        # The official checker compares every line that states a score.
        values = [score.value for score in (part.stated or part.figures.values()) if score.name == target.label]
        value = next((value for value in reversed(values) if target.met(value) is False), None)
        if value is not None:
            bounds = [
                f"{target.lower:g} or more" if target.lower is not None else "",
                f"{target.upper:g} or less" if target.upper is not None else "",
            ]
            yield Fault(
                f"{target.metric} misses the target of {result.benchmark}",
                part.figures[target.label].source.file,
                target.label,
                f"{value:g}",
                " and ".join(filter(None, bounds)),
                severity=Severity.ERROR if is_strict(result) else Severity.NOTE,
            )


@check(
    "SCORE-UNREADABLE",
    source=f"{_CONSTANTS}, ACC_PATTERN",
    remedy=f"{_SCORE}; a number is printed as one, not as np.float64(...)",
    stage=Stage.TREE,
    each=scored_results,
)
def readable(result: Result, part: Accuracy) -> Iterator[Fault]:
    """accuracy.txt has every score of the benchmark as the official checker reads it."""
    path = part.folder / ACCURACY_TEXT
    if part.terms is None or not path.is_file():
        return
    severity = Severity.ERROR if is_strict(result) else Severity.WARNING
    # The official checkers accept a score that has only an upper bound and is left out.
    asked = [target.label for target in part.terms.targets if target.lower is not None]
    missing = [label for label in asked if part.figures.value(label) is None]
    if missing:
        yield Fault(
            "scores are missing",
            part.beside(ACCURACY_TEXT),
            ", ".join(missing),
            "nothing",
            "a number",
            severity=severity,
        )
        return
    by_numpy = dict(_NUMPY.findall(head_and_tail(path).decode(errors="replace")))
    if unread := [label for label in asked if label in by_numpy]:
        yield Fault(
            "the official checker cannot read the scores",
            part.beside(ACCURACY_TEXT),
            ", ".join(unread),
            f"{by_numpy[unread[0]]}...)",
            "a number",
            severity=severity,
        )


@check(
    "TOKENS-DOUBLED",
    source="evaluate-accuracy.py of the benchmark, --dtype",
    remedy="score the run again with the width that its tokens were written with (--dtype)",
    stage=Stage.TREE,
    each=scored_results,
)
def answered_twice(result: Result, part: Accuracy) -> Iterator[Fault]:
    """Tokens a sample of the accuracy run are about those of the performance run: tokens written with 64 bits and read
    with 32 count twice.
    """
    each, served = part.figures.value(_TOKENS), served_tokens(result)
    if not each or not served:
        return
    ratio = each / served
    if _DOUBLED[0] < ratio < _DOUBLED[1] or (ratio > _DOUBLED[0] and _is_int64(part)):
        width = "; every second 32-bit word of the log is zero: its tokens have 64 bits" if _is_int64(part) else ""
        yield Fault(
            f"the scores count each token twice{width}",
            part.beside(ACCURACY_TEXT),
            _TOKENS,
            f"{each:g}",
            f"about {served:.1f}, as in the performance run",
        )


def served_tokens(result: Result) -> float | None:
    """Return the tokens a sample of the performance run; None where its log has no token figures."""
    part = result.performance
    if part is None or part.tokens_per_second is None or not part.samples_per_second:
        return None
    return part.tokens_per_second / part.samples_per_second


def _is_int64(part: Accuracy) -> bool:
    """Return True if the answers in the log, complete or truncated, have zero in every second 32-bit word."""
    words = [
        data[at : at + 8]
        for data in _DATA.findall(text_at(part.folder / ACCURACY_LOG, MAX_LOG))
        for at in range(8, len(data) - 7, 16)
    ]
    return len(words) > 8 and words.count("00000000") > 0.9 * len(words)


@check(
    "TOKENS-RANGE",
    source=f"{_CONSTANTS}, accuracy-upper-limit",
    remedy="measure both runs with the same sampling parameters",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=scored_results,
)
def token_range(result: Result, part: Accuracy) -> Iterator[Fault]:
    """Tokens a sample of the performance run lie within the bounds that the accuracy run has to keep."""
    served, run = served_tokens(result), result.performance
    bounds = next((target for target in (part.terms.targets if part.terms else ()) if target.label == _TOKENS), None)
    if served is None or bounds is None or run is None or bounds.met(served) is not False:
        return
    yield Fault(
        "the performance run makes another number of tokens a sample than the benchmark allows",
        run.log,
        run.figures["tokens_per_second"].source.field,
        f"{served:.1f}",
        f"{bounds.lower or 0:g} to {bounds.upper or 0:g}",
    )


@check(
    "ACCURACY-SAMPLES",
    source=f"{_CONSTANTS}, dataset-size",
    remedy="run the accuracy run over the whole dataset",
    stage=Stage.TREE,
    each=scored_results,
)
def whole_dataset(_: Result, part: Accuracy) -> Iterator[Fault]:
    """An accuracy run answers every sample of the dataset."""
    if part.terms is None:
        return
    for key in ("accuracy_sample_count", "qsl_reported_total_count"):
        count = part.settings.get(key)
        if isinstance(count, int) and count < part.terms.samples:
            yield Fault("the accuracy run leaves samples out", part.log, key, count, part.terms.samples)
            break


@check(
    "ACCURACY-FILES",
    source=f"{_CONSTANTS}, REQUIRED_ACC_BENCHMARK",
    remedy="submit them beside the accuracy log; the rounds that MLCommons publishes are without them",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=scored_results,
)
def answers(_: Result, part: Accuracy) -> Iterator[Fault]:
    """An accuracy run publishes the answers to the samples that the rules name: images or videos."""
    if part.terms is None:
        return
    for name, samples in benchmark_terms(part.terms.round, part.terms.benchmark).accuracy_files.items():
        folder = part.folder / name
        names = {path.name.partition(".")[0] for path in folder.iterdir()} if folder.is_dir() else set()
        if missing := [sample for sample in samples if sample not in names]:
            yield Fault(
                f"{len(missing)} of {len(samples)} answers are missing", part.beside(name), "", "", ", ".join(missing)
            )


@check(
    "ACCURACY-HASH",
    source="tools/submission/truncate_accuracy_log.py",
    remedy="truncate the log with the official tool, which adds it",
    stage=Stage.TREE,
    each=scored_results,
)
def digest(result: Result, part: Accuracy) -> Iterator[Fault]:
    """accuracy.txt ends with the digest of the accuracy log before it was truncated."""
    if not _SHA256.fullmatch(part.hash) and (part.folder / ACCURACY_TEXT).is_file():
        yield Fault(
            "no digest of the accuracy log",
            part.beside(ACCURACY_TEXT),
            "hash",
            part.hash or "nothing",
            "hash=<SHA-256>",
            severity=Severity.ERROR if is_strict(result) else Severity.NOTE,
        )


@check(
    "ACCURACY-LOG-SIZE",
    source=f"{_CONSTANTS}, MAX_ACCURACY_LOG_SIZE",
    remedy="truncate it: --tags=truncate,mlperf,inference,accuracy,log",
    stage=Stage.TREE,
    each=scored_results,
)
def log_size(_: Result, part: Accuracy) -> Iterator[Fault]:
    """A published accuracy log is truncated to 10 KB."""
    path = part.folder / ACCURACY_LOG
    if path.is_file() and (size := path.stat().st_size) > MAX_LOG:
        yield Fault(
            "the accuracy log is not truncated",
            part.beside(ACCURACY_LOG),
            "",
            f"{size} bytes",
            f"{MAX_LOG} bytes or less",
        )

"""One run under several submitters or systems of a tree: found by figures that no two runs have in common.

Latencies and times have up to twelve digits: of 5,700 published values none stands in the logs of two submitters. Bytes
are not compared, so that white space, dates or a changed rate do not hide a copy.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.results.log_folders import head_and_tail
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.submission_trees import compliance_folders

#: The entry whose time in ms two logs of different runs never share, and figures in ns of which they never share this
#: many.
_STAMP, _ENOUGH = "power_end", 3
_LATENCIES = (
    "result_min_latency_ns",
    "result_max_latency_ns",
    "result_mean_latency_ns",
    "result_50.00_percentile_latency_ns",
    "result_99.00_percentile_latency_ns",
    "result_first_token_max_latency_ns",
    "result_first_token_mean_latency_ns",
    "result_time_to_output_token_mean",
)
#: Smaller figures have too few digits, in ns and in ms.
_LEAST_NS, _LEAST_MS = 10**6, 1000.0
#: As much of a file of answers is compared, at its beginning and at its end.
_BLOCK = 4096
#: A file of answers that is shorter may be alike by chance.
_LEAST_ANSWERS = 2048


class LogMarks(msgspec.Struct, frozen=True):
    """A published log with its submitter, its system and the marks of its run: a time in ms, and latencies.

    `answers` is the digest of a compliance test's answers: a model with one answer to a sample repeats it elsewhere.
    """

    file: str
    submitter: str
    system: str
    test: bool
    marks: tuple[str, ...] = ()
    answers: str = ""


def marks_of(submission: Submission) -> tuple[LogMarks, ...]:
    """Return the figures that mark each log of a submission: of performance, accuracy and compliance runs."""
    return tuple(mark for result in submission.results for mark in _marks(submission, result))


def _marks(submission: Submission, result: Result) -> Iterator[LogMarks]:
    yield from (
        LogMarks(
            file=part.log,
            submitter=submission.submitter,
            system=result.system,
            test=part is not result.performance and part is not result.accuracy,
            marks=tuple(_marks_of_run(part.detail)),
        )
        for part in result.logged
        if part.detail is not None
    )
    for name in result.compliance:
        for place in compliance_folders(submission.home, submission.root / result.folder):
            path = place / name / "accuracy" / ACCURACY_LOG
            if digest := _answers(path):
                yield LogMarks(
                    file=path.relative_to(submission.root).as_posix(),
                    submitter=submission.submitter,
                    system=result.system,
                    test=True,
                    answers=digest,
                )


def _marks_of_run(log: DetailLog) -> Iterator[str]:
    """Yield the figures of a run that no other run has, by their keys."""
    stamp = log.times_ms.get(_STAMP, 0.0)
    if stamp >= _LEAST_MS:
        yield f"{_STAMP}={stamp:.6f}"
    for key in _LATENCIES:
        value = log.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= _LEAST_NS:
            yield f"{key}={value}"


def _answers(path: Path) -> str:
    """Return a digest of the answers that a compliance test logged; empty if there are none or too few."""
    text = head_and_tail(path, _BLOCK)
    return f"{hashlib.sha256(text).hexdigest()} {path.stat().st_size}" if len(text) >= _LEAST_ANSWERS else ""


@check(
    "LOG-COPIED",
    source="inference_policies/submission_rules.adoc: a submitter measures what it submits",
    remedy="publish each result with the logs of its own runs",
    stage=Stage.ACROSS,
    each=whole,
)
def copied(logs: Sequence[LogMarks]) -> Iterator[Fault]:
    """A log is that of one run, of one submitter and one system."""
    for number, other in sorted(_same_run(logs).items()):
        foreign = logs[number].submitter != logs[other].submitter
        yield _fault(
            f"the same run stands under another {'submitter' if foreign else 'system'}", logs[number], logs[other]
        )


@check(
    "TEST-ALIKE",
    source="compliance/README.md",
    remedy="publish each result with the compliance test of its own system",
    severity=Severity.NOTE,
    stage=Stage.ACROSS,
    each=whole,
)
def alike(logs: Sequence[LogMarks]) -> Iterator[Fault]:
    """Tests of different systems are different runs, unless a model has but one answer to each sample."""
    answers: dict[str, list[LogMarks]] = defaultdict(list)
    for log in logs:
        if log.answers:
            answers[log.answers].append(log)
    yield from (
        _fault("the test's answers are those of another system, too", copy, first)
        for first, *others in answers.values()
        for copy in others
        if (copy.submitter, copy.system) != (first.submitter, first.system)
    )


def _fault(text: str, marks: LogMarks, other: LogMarks) -> Fault:
    owner, expected = f"{marks.submitter}, {marks.system}", f"another run than that of {other.file}"
    return Fault(text, marks.file, value=owner, expected=expected)


def _same_run(logs: Sequence[LogMarks]) -> dict[int, int]:
    """Return the logs that are of one run with a log of another submitter or system, each with one of these."""
    by_mark: dict[str, list[int]] = defaultdict(list)
    for number, log in enumerate(logs):
        for mark in log.marks:
            by_mark[mark].append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for mark, group in by_mark.items():
        for pair in combinations(group, 2):
            shared[pair] += _ENOUGH if mark.startswith(_STAMP) else 1
    first_of: dict[int, int] = {}
    for (earlier, other), count in shared.items():
        if count >= _ENOUGH and _apart(logs[earlier], logs[other]):
            first_of.setdefault(earlier, other)
            first_of.setdefault(other, earlier)
    return first_of


def _apart(marks: LogMarks, other: LogMarks) -> bool:
    """Return True if two logs may not be of one run. Within a submission, LOG-TWICE is of the runs of results."""
    return marks.submitter != other.submitter or (marks.test and other.test and marks.system != other.system)

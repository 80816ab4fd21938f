"""The logs of a result, which are of one system; and one run under several results, systems or submitters.

Latencies and times have up to twelve digits: of 5,700 published values none stands in the logs of two submitters. Bytes
are not compared, so that white space, dates or a changed rate do not hide a copy.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.accuracy import ACCURACY_TEXT
from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.results.checks.subjects import measured_results, scored_results, with_submission
from cm4vllm.results.log_folders import head_and_tail
from cm4vllm.results.model import Accuracy, Performance, Result, Submission
from cm4vllm.results.submission_trees import compliance_folders

#: Scenarios whose result an edge system may infer from the log of another one, given first.
_INFERRED = {("SingleStream", "MultiStream"), ("SingleStream", "Offline"), ("MultiStream", "Offline")}
#: The ends of the names of a benchmark's variants: the part of the reference's accuracy that they reach.
_VARIANT = re.compile(r"-(9[59](?:\.9)?)$")
_TOGETHER = "publish the logs of runs that were made on one system for this result"
#: The facts that all runs of a result share, by their entries in the log; the accuracy run may be of another scenario.
_SHARED = ("sut_name", "qsl_name")
_SCENARIO = "effective_scenario"
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


def base_of(result: Result) -> str:
    """Return the benchmark without its variant: llama2-70b of llama2-70b-99.9, yolo of yolo-95."""
    return _VARIANT.sub("", result.benchmark)


def is_inferred(submission: Submission, result: Result) -> bool:
    """Return True if the result is inferred from the log of another scenario, as an edge system may do."""
    system = submission.system(result.system)
    run = result.performance
    return bool(
        run
        and system
        and "edge" in str(system.description.get("system_type", ""))
        and (run.loadgen_scenario, result.scenario) in _INFERRED
    )


def _runs_by_log(submission: Submission) -> Iterator[tuple[list[Result]]]:
    """Yield the results that have the performance log of one run, by its latencies, in groups of two or more."""
    groups: dict[object, list[Result]] = defaultdict(list)
    for result, part in measured_results(submission):
        # No two runs have these in common, each to the nanosecond; dates and rates of a copy may be changed.
        latencies = tuple(
            (figure.name, float(figure.value)) for figure in part.figures.values() if "latency" in figure.name
        )
        groups[latencies or part.log].append(result)
    yield from ((group,) for group in groups.values() if len(group) > 1)


def _variants(submission: Submission, group: list[Result]) -> list[Result]:
    """Return those of a group that are variants of one benchmark, scenario and system; none where they are not."""
    own = [result for result in group if not is_inferred(submission, result)]
    alike = len({(base_of(result), result.scenario, result.system) for result in own}) == 1
    return own if alike and len({result.benchmark for result in own}) == len(own) else []


@check(
    "LOG-TWICE",
    source="inference_policies/inference_rules.adoc, Results; get_inferred_result in the official checkers",
    remedy="publish each result with the log of its own run",
    stage=Stage.TREE,
    each=with_submission(_runs_by_log),
)
def one_result_a_log(submission: Submission, group: list[Result]) -> Iterator[Fault]:
    """A log is that of one result."""
    inferred = [other for other in group if is_inferred(submission, other)]
    for result in inferred:
        run = next((other for other in group if other not in inferred and other.system == result.system), None)
        yield Fault(
            "the result is inferred from the log of another scenario",
            _log(result),
            "",
            result.performance.loadgen_scenario if result.performance else "",
            "" if run is None else f"the log of {run.folder}",
            severity=Severity.NOTE,
            remedy="",
        )
    others = [other for other in group if other not in inferred]
    yield from (
        Fault(
            "the same performance log stands under two results",
            _log(result),
            expected=f"another log than {_log(others[0])}",
        )
        for result in ([] if _variants(submission, group) else others[1:])
    )


@check(
    "ONE-RUN-TWO-VARIANTS",
    source="inference_policies/inference_rules.adoc, Benchmarks",
    remedy="withdraw the result of the stricter variant, or measure with a model that reaches it",
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=with_submission(_runs_by_log),
)
def both_variants(submission: Submission, group: list[Result]) -> Iterator[Fault]:
    """Two variants of a benchmark, as those of 99 % and 99.9 %, may come from one run that reaches both targets."""
    variants = sorted(_variants(submission, group), key=_part)
    for result in variants[1:]:
        if missed := next(_missed_targets(result), None):
            yield Fault(
                f"one run stands under both variants, and misses the {_part(result):g} % target: {missed[0]}",
                result.accuracy.log if result.accuracy else "",
                *missed,
                severity=Severity.ERROR,
            )
        else:
            yield Fault(
                "one run stands under both variants of the benchmark",
                _log(result),
                value=f"one run with {variants[0].folder}",
                remedy="",
            )


def _part(result: Result) -> float:
    match = _VARIANT.search(result.benchmark)
    return float(match[1]) if match else 0.0


def _missed_targets(result: Result) -> Iterator[tuple[str, float, str]]:
    if result.accuracy is None or result.accuracy.terms is None:
        return
    for target in result.accuracy.terms.targets:
        value = result.accuracy.figures.value(target.label)
        if value is not None and target.lower is not None and value < target.lower:
            yield target.label, value, f"{target.lower:g} or more"


@check(
    "SCORES-TWICE",
    source="inference_policies/inference_rules.adoc, Results",
    remedy="publish each result with the scores of its own accuracy run",
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=whole,
)
def one_result_each(submission: Submission) -> Iterator[Fault]:
    """Scores of different systems come from different runs: equal ones are possible where a model has one answer."""
    groups: dict[str, list[tuple[Result, Accuracy]]] = defaultdict(list)
    for result, part in scored_results(submission):
        if part.hash:
            groups[part.hash].append((result, part))
    for group in groups.values():
        first = group[0][0]
        for result, part in group[1:]:
            # The scenarios and variants of one model on one system may share an accuracy run.
            if result.system != first.system or base_of(result) != base_of(first):
                yield Fault(
                    "the same accuracy log stands under two results",
                    part.beside(ACCURACY_TEXT),
                    "hash",
                    part.hash[:12],
                    f"another than that of {first.folder}",
                )


def _log(result: Result) -> str:
    return result.performance.log if result.performance else result.folder


@check(
    "RUNS-APART",
    source="compliance/README.md; inference_policies/inference_rules.adoc, Results",
    remedy=_TOGETHER,
    stage=Stage.TREE,
    each=measured_results,
)
def one_system(result: Result, performance: Performance) -> Iterator[Fault]:
    """Performance, accuracy and compliance runs of a result are of one system under test and one sample library."""
    for part in result.logged:
        if part.detail is None or performance.detail is None:
            continue
        for key in (*_SHARED, *((_SCENARIO,) if isinstance(part, Performance) else ())):
            stated, expected = part.detail.values.get(key), performance.detail.values.get(key)
            if stated and expected and stated != expected:
                yield Fault(
                    "the run is not of the system and scenario of the performance run",
                    part.log,
                    key,
                    stated,
                    f"{expected}, as in {performance.log}",
                )
                break


@check(
    "LOADGEN-VERSIONS",
    source="wheels of mlcommons-loadgen, and LoadGen as built from the sources of the round",
    remedy="measure all runs of a result with one LoadGen of the round",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=measured_results,
)
def loadgen_versions(result: Result, part: Performance) -> Iterator[Fault]:
    """The runs of a result were made by one LoadGen, of a version that has the round's seeds."""
    if (
        part.detail is not None
        and (known := _known_versions(result.round))
        and not _fits(part.loadgen_version, result.round)
    ):
        yield Fault("the LoadGen is not one of the round", part.log, "loadgen_version", part.loadgen_version, known)
    for other in result.logged:
        if other.loadgen_version and _number(other.loadgen_version) != _number(part.loadgen_version):
            yield Fault(
                "the runs of a result were made by different versions of LoadGen",
                part.log,
                "loadgen_version",
                part.loadgen_version,
                f"{other.loadgen_version}, as in {other.log}",
            )
            break


def _known_versions(round_name: str) -> str:
    known = rules.if_known(rules.round_terms, round_name)
    return " or ".join((f"{known.loadgen.first} to {known.loadgen.last}", *known.builds)) if known else ""


def _fits(version: str, round_name: str) -> bool:
    known, number = rules.round_terms(round_name), _number(version)
    first, last = _parts(known.loadgen.first), _parts(known.loadgen.last)
    return number in known.builds or first <= _parts(number) <= last


def _number(version: str) -> str:
    return version.partition(" ")[0]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isascii() and part.isdigit())


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
        first, second = logs[earlier], logs[other]
        # Within a submission, LOG-TWICE is of the runs of results.
        tests = first.test and second.test and first.system != second.system
        if count >= _ENOUGH and (first.submitter != second.submitter or tests):
            first_of.setdefault(earlier, other)
            first_of.setdefault(other, earlier)
    return first_of

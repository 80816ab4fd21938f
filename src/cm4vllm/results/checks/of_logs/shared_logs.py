"""The logs of a result, which are of one system, and one log under several results: variants, inferred scenarios."""

import re
from collections import defaultdict
from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.accuracy import ACCURACY_TEXT
from cm4vllm.results.checks.subjects import measured, scored, with_submission
from cm4vllm.results.model import Accuracy, Performance, Result, Submission

#: Scenarios whose result an edge system may infer from the log of another one, given first.
_INFERRED = {("SingleStream", "MultiStream"), ("SingleStream", "Offline"), ("MultiStream", "Offline")}
#: The ends of the names of a benchmark's variants: the part of the reference's accuracy that they reach.
_VARIANT = re.compile(r"-(9[59](?:\.9)?)$")
_TOGETHER = "publish the logs of runs that were made on one system for this result"
#: The facts that all runs of a result share, by their entries in the log; the accuracy run may be of another scenario.
_SHARED = ("sut_name", "qsl_name")
_SCENARIO = "effective_scenario"


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
    for result, part in measured(submission):
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
        if missed := next(_missed(result), None):
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


def _missed(result: Result) -> Iterator[tuple[str, float, str]]:
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
    for result, part in scored(submission):
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
    each=measured,
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
    each=measured,
)
def loadgen_versions(result: Result, part: Performance) -> Iterator[Fault]:
    """The runs of a result were made by one LoadGen, of a version that has the round's seeds."""
    if part.detail is not None and (known := _known(result.round)) and not _fits(part.loadgen_version, result.round):
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


def _known(round_name: str) -> str:
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

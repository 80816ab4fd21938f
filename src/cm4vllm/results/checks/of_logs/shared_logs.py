"""One log under several results: two variants of a benchmark from one run, inferred scenarios, and what is neither."""

import re
from collections import defaultdict
from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.records.accuracy import ACCURACY_TEXT
from cm4vllm.results.checks.subjects import measured, scored, with_submission
from cm4vllm.results.model import Accuracy, Result, Submission

#: Scenarios whose result an edge system may infer from the log of another one, given first.
_INFERRED = {("SingleStream", "MultiStream"), ("SingleStream", "Offline"), ("MultiStream", "Offline")}
#: The ends of the names of a benchmark's variants: the part of the reference's accuracy that they reach.
_VARIANT = re.compile(r"-(9[59](?:\.9)?)$")


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
    for result in [] if _variants(submission, group) else others[1:]:
        yield Fault(
            "the same performance log stands under two results",
            _log(result),
            expected=f"another log than {_log(others[0])}",
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

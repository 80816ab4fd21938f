"""The accuracy runs of a curve's points: whose dataset they are of, whether they are whole, and what they score."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.of_points.configurations import shares_a_word
from cm4vllm.results.endpoints.curves import Curve, Point, samples_of, stated_scores
from cm4vllm.results.endpoints.endpoints_harness import count, part
from cm4vllm.results.log_folders import SCORE_UNITS
from cm4vllm.rules import EndpointsBenchmark

_MOST = 100.0
#: ROUGE scores of pairs of words and of common sequences, which are a part of the words that both texts have.
_WORDS, _OF_WORDS = "rouge1", ("rouge2", "rougeL", "rougeLsum")
_COUNTS = ("issued", "scored", "empty", "missing")


@check(
    "POINT-ACCURACY",
    source="§4.3, §6.6; the official checker leaves out a score that it cannot read",
    remedy="make the accuracy run again with the whole dataset of the benchmark, and publish its file as it is",
    stage=Stage.CURVE,
    each=whole,
)
def whole_accuracy_runs(curve: Curve) -> Iterator[Fault]:
    """An accuracy run is of the benchmark's dataset, whole, with an answer to each sample, and has possible scores."""
    benchmark = curve.measurable
    for point in curve.points:
        if point.accuracy is None:
            yield from _absent(point)
            continue
        if not point.accuracy:
            yield Fault("the file has no accuracy run", point.accuracy_file, "accuracy_scores", "none", "an entry")
        for entry in point.accuracy:
            yield from _scores(point, entry)
            yield from _answers(point, entry)
            if benchmark is not None:
                yield from _dataset(point, entry, benchmark)
                yield from _labels(point, entry, benchmark)
        yield from _undeclared(point)
        if benchmark is not None and point.accuracy:
            yield from _samples(point, benchmark)


def _absent(point: Point) -> Iterator[Fault]:
    declared = point.declared.get("dataset_type")
    if isinstance(declared, str) and "accuracy" in declared.lower():
        fault = ("the declared accuracy run is missing", f"{point.name}/point.yaml", "dataset_type", declared)
        yield Fault(*fault, "a file with its scores", severity=Severity.WARNING)


def _scores(point: Point, entry: Mapping[str, Any]) -> Iterator[Fault]:
    """Find scores that are absent, no number, or that no run has; lengths have no upper bound."""
    field, scores = f"accuracy_scores.{entry.get('dataset_name', '')}.score", stated_scores(entry)
    if not scores:
        yield Fault("an accuracy run has no score", point.accuracy_file, field, "none", "a score")
    for metric, stated in scores.items():
        value = _number(stated)
        most = math.inf if metric in SCORE_UNITS else _MOST
        if value is None or not math.isfinite(value) or not 0 <= value <= most:
            expected = "a number of at least 0" if most == math.inf else f"0 to {most:g}"
            yield Fault("no run has such a score", point.accuracy_file, f"{field}.{metric}", stated, expected)


def _labels(point: Point, entry: Mapping[str, Any], benchmark: EndpointsBenchmark) -> Iterator[Fault]:
    """Compare scores by name with the benchmark's targets: the official checker leaves out one that is missing."""
    field, scores = f"accuracy_scores.{entry.get('dataset_name', '')}.score", stated_scores(entry)
    named = () if set(scores) <= {"score"} else benchmark.targets
    labels = [target.label for target in named if target.lower is not None]
    for label in (label for label in labels if label not in scores):
        yield Fault("a score of the benchmark is missing", point.accuracy_file, f"{field}.{label}", "none", "a score")
    words = _number(scores.get(_WORDS))
    for metric in _OF_WORDS if words is not None else ():
        value = _number(scores.get(metric))
        if value is not None and words is not None and value > words:
            expected = f"{words:g} at most, {_WORDS}"
            yield Fault("no run has such a score", point.accuracy_file, f"{field}.{metric}", f"{value:g}", expected)


def _undeclared(point: Point) -> Iterator[Fault]:
    declared = point.declared.get("dataset_type")
    if point.accuracy and isinstance(declared, str) and "accuracy" not in declared.lower():
        fault = ("the accuracy run is not declared", f"{point.name}/point.yaml", "dataset_type", declared)
        yield Fault(*fault, "Accuracy + Performance", severity=Severity.WARNING)


def _answers(point: Point, entry: Mapping[str, Any]) -> Iterator[Fault]:
    """Find runs that call themselves partial, and answers that are empty, missing or not counted."""
    field = f"accuracy_scores.{entry.get('dataset_name', '')}"
    if entry.get("complete", True) is not True:
        wrong = "the accuracy run calls itself incomplete"
        yield Fault(wrong, point.accuracy_file, f"{field}.complete", entry.get("complete"), True)
    counts = part(entry, "response_counts")
    values = {key: count(counts, key) for key in _COUNTS}
    issued = values["issued"]
    if issued is None:
        severity = Severity.ERROR if "response_counts" in entry else Severity.WARNING
        fault = ("the answers were not counted", point.accuracy_file, f"{field}.response_counts", "none", "counts")
        yield Fault(*fault, severity=severity)
        return
    empty, missing, scored = (values[key] or 0 for key in ("empty", "missing", "scored"))
    if empty or missing:
        wrong, value = "answers of the accuracy run are empty or missing", f"{empty:,} empty, {missing:,} missing"
        yield Fault(wrong, point.accuracy_file, f"{field}.response_counts", value, "none")
    if not issued or (values["scored"] is not None and scored + empty + missing != issued):
        wrong, expected = "the counts of answers do not add up", f"{scored + empty + missing:,}"
        yield Fault(wrong, point.accuracy_file, f"{field}.response_counts.issued", f"{issued:,}", expected)


def _dataset(point: Point, entry: Mapping[str, Any], benchmark: EndpointsBenchmark) -> Iterator[Fault]:
    name = entry.get("dataset_name")
    if not isinstance(name, str) or not shares_a_word(name, benchmark):
        expected = ", ".join(dict.fromkeys(dataset.name for dataset in benchmark.scored))
        wrong = "the accuracy run is of another dataset"
        yield Fault(wrong, point.accuracy_file, "accuracy_scores.dataset_name", name or "none", expected)


def _samples(point: Point, benchmark: EndpointsBenchmark) -> Iterator[Fault]:
    """Compare the samples of all entries, those of all their passes, with the benchmark's."""
    samples = sum(map(samples_of, point.accuracy or ()))
    if samples < benchmark.accuracy_samples:
        fault = ("not each sample of the dataset was scored", point.accuracy_file, "unit_samples", f"{samples:,}")
        yield Fault(*fault, f"{benchmark.accuracy_samples:,} at least")


def _number(stated: object) -> float | None:
    """Return a score, also one that the client wrote as text; None for anything else."""
    if isinstance(stated, bool) or not isinstance(stated, int | float | str):
        return None
    try:
        return float(stated)
    except (ValueError, OverflowError):
        return None

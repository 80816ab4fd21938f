"""Curves of MLPerf Endpoints: points at fixed concurrency, read from run folders or from a bundle of anyone.

The files are those of the reference client (performance/result_summary.json in a run folder, result_summary.json in a
bundle) and of the submitter (point.yaml, system_desc.json), in a run folder of cm4vllm also its record (point.json).
None and empty stand for what is not known.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.units import Milliseconds, Samples, Seconds, TokensPerSecond
from cm4vllm.results.endpoints.endpoints_harness import SCORES, SUMMARY, count, magnitude, number, part, times
from cm4vllm.results.figures import Figure, Figures, Source
from cm4vllm.results.log_folders import Reader
from cm4vllm.rules import RULES_FILE, EndpointsBenchmark, EndpointsRules, endpoints_rules, read_rules

_SUMMARIES = (SUMMARY, Path(SUMMARY.name))
_SCORES = (SCORES, Path(SCORES.name))
_DECLARED, _SYSTEM, _CONFIG, _POWER = "point.yaml", "system_desc.json", "config.yaml", "system_power.json"
#: The record of a point that cm4vllm measured, in its run folder (endpoints.records.PointRecord).
POINT_FILE = "point.json"
#: Power figures of the points by the official checker, beside the run folders.
POWER_FILE = "power.json"
#: The figure of the output tokens/s that a user sees: 1000 over the 90th percentile of TPOT in ms.
PER_USER = "tokens_per_second_per_user"
_FOLDER = re.compile(r"r([0-9]{1,9})")
_NS_OF_MS, _NS_OF_S = 1e6, 1e9
#: Entries that the client scores on the performance run are no accuracy run.
_INLINE = "performance"


@dataclass(frozen=True)
class Score:
    """A score of an accuracy run as the file states it.

    `samples` are those of the dataset, `answered` those that were issued and answered, None where that is not stated:
    the client also scores a run that ended early.
    """

    dataset: str
    metric: str
    value: float
    samples: int
    source: Source
    answered: int | None = None


@dataclass(frozen=True)
class Histogram:
    """Samples of the whole run by TTFT or TPOT: `counts` between neighbours of `edges`, in ms."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """One point. `declared` is point.yaml, `config` the client's configuration, `summary` its summary, as they are.

    `figures` are the client's over the whole run: system_tps, samples, duration, and in ms the percentiles (ttft_p90),
    ends and means of ttft, tpot and latency; PER_USER. `tps_per_kw` is the official checker's, where it was computed.
    `accuracy` are the entries of its accuracy runs, None where it has none but scores of the performance run at most;
    `accuracy_file` is their file.
    `record` is point.json, empty in a bundle; `window_figures` are those that it has over the window of the steady
    state: system_tps, ttft_p90 and tpot_p90.
    """

    folder: Path
    name: str
    declared: Mapping[str, Any]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    system: Mapping[str, Any]
    figures: Figures
    scores: tuple[Score, ...] = ()
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    window_figures: Figures = field(default_factory=Figures)
    accuracy: tuple[Mapping[str, Any], ...] | None = None
    accuracy_file: str = ""

    @property
    def concurrency(self) -> int | None:
        """Requests in flight that the point declares, else that its folder is named by."""
        if (value := count(self.declared, "concurrency")) is not None:
            return value
        match = _FOLDER.fullmatch(self.folder.name)
        return int(match[1]) if match else None

    @property
    def offline(self) -> str:
        """The declaration of the Offline result: none, elected or dedicated."""
        return str(self.declared.get("offline") or "none")

    @property
    def steady_state(self) -> Mapping[str, Any]:
        """The declared steady state."""
        return part(self.declared, "steady_state")

    @property
    def samples_issued(self) -> int | None:
        """Samples that the client issued."""
        return count(self.summary, "n_samples_issued")


@dataclass(frozen=True)
class Curve:
    """The points of one model on one system, in the order of their concurrency; `power` is system_power.json.

    `rules` are those by which the curve is judged.
    """

    folder: Path
    name: str
    points: tuple[Point, ...]
    power: Mapping[str, Any] = field(default_factory=dict)
    rules: EndpointsRules = field(default_factory=endpoints_rules)

    @property
    def place(self) -> str:
        """The path that findings on the curve name."""
        return self.name

    @property
    def concurrency_points(self) -> tuple[Point, ...]:
        """The points at fixed concurrency: all but a dedicated Offline run."""
        return tuple(point for point in self.points if point.offline != "dedicated")

    @property
    def model(self) -> str:
        """The benchmark model that the points name; empty where they differ."""
        names = {str(point.declared.get("model_name", "")) for point in self.points}
        return names.pop() if len(names) == 1 else ""

    @property
    def benchmark(self) -> EndpointsBenchmark | None:
        """The benchmark model, by the rules; None for another model."""
        return self.rules.known_benchmark(self.model)

    @property
    def measurable(self) -> EndpointsBenchmark | None:
        """The benchmark model, where the rules have its samples and parameters; None for another one."""
        return None if self.benchmark is None or self.benchmark.refused else self.benchmark

    @property
    def c_max(self) -> int | None:
        """The declared C_max; None where the points differ."""
        values = {count(point.declared, "max_supported_concurrency") for point in self.points}
        return values.pop() if len(values) == 1 else None


def read_curves(root: Path, rules: EndpointsRules | None = None) -> tuple[tuple[Curve, ...], tuple[Finding, ...]]:
    """Read all curves below `root`; what cannot be read becomes a finding. A curve is a folder of points.

    They are judged by `rules`, without them by those that come with cm4vllm.
    """
    reader = Reader(root)
    folders: dict[Path, list[Path]] = {}
    for folder in point_folders(root):
        folders.setdefault(folder.parent, []).append(folder)
    curves = []
    for parent, points in sorted(folders.items()):
        read = [_read_point(reader, folder) for folder in points]
        read.sort(key=lambda point: (point.offline == "dedicated", point.concurrency or 0))
        curves.append(
            Curve(
                folder=parent,
                name=reader.name(parent),
                points=tuple(read),
                power=_power(reader, parent, points),
                rules=rules or endpoints_rules(),
            )
        )
    return tuple(curves), tuple(reader.problems)


def curves_at(place: Path) -> tuple[Curve, ...]:
    """Return the curves in a results folder (those of its run folders), in run folders, or in a bundle.

    Those of a results folder are judged by the rules of their job, others by those that come with cm4vllm.
    """
    points, own = place / "points", place / RULES_FILE
    rules = read_rules(own) if points.is_dir() and own.is_file() else endpoints_rules()
    return read_curves(points if points.is_dir() else place, rules)[0] if place.is_dir() else ()


def point_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of points below `root`: those that hold a point.yaml or are named r and a number."""
    return (
        folder
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]
        if (folder / _DECLARED).is_file() or (_FOLDER.fullmatch(folder.name) and _first(folder, _SUMMARIES))
    )


def _read_point(reader: Reader, folder: Path) -> Point:
    summary_path = _first(folder, _SUMMARIES)
    summary = reader.json(summary_path) if summary_path else {}
    if summary_path is None:
        reader.problem("FILE-MISSING", "result_summary.json is missing", folder / _SUMMARIES[0])
    record = reader.json(folder / POINT_FILE) if (folder / POINT_FILE).is_file() else {}
    scores_path = _first(folder, _SCORES)
    accuracy = _accuracy(reader.json(scores_path)) if scores_path else None
    accuracy_file = reader.name(scores_path) if scores_path else ""
    return Point(
        folder=folder,
        name=reader.name(folder),
        declared=reader.yaml(folder / _DECLARED),
        config=reader.yaml(folder / _CONFIG),
        summary=summary,
        system=reader.json(folder / _SYSTEM),
        figures=Figures(
            [*_figures(summary, reader.name(summary_path) if summary_path else ""), *_efficiency(reader, folder)]
        ),
        scores=tuple(_scores(accuracy or (), accuracy_file)),
        histograms={name: histogram for name in ("ttft", "tpot") if (histogram := _histogram(part(summary, name)))},
        record=record,
        window_figures=Figures(_window_figures(record, reader.name(folder / POINT_FILE))),
        accuracy=accuracy,
        accuracy_file=accuracy_file,
    )


def _figures(summary: Mapping[str, Any], file: str) -> Iterator[Figure]:
    tokens, duration = number(part(summary, "output_sequence_lengths"), "total"), number(summary, "duration_ns")
    if duration:
        yield Figure("duration", Seconds(duration / _NS_OF_S), Seconds.unit, Source(file, "duration_ns"))
    if tokens is not None and duration:
        yield Figure(
            "system_tps",
            TokensPerSecond(tokens / (duration / _NS_OF_S)),
            TokensPerSecond.unit,
            Source(file, "output_sequence_lengths.total / duration_ns"),
        )
    if (samples := number(summary, "n_samples_completed")) is not None:
        yield Figure("samples", Samples(samples), Samples.unit, Source(file, "n_samples_completed"))
    for name, value, key in times(summary, ("percentiles",)):
        yield Figure(name, value, value.unit, Source(file, key))
        if name == "tpot_p90" and value:  # rules §4.1
            yield Figure(PER_USER, TokensPerSecond(1000 / value), TokensPerSecond.unit, Source(file, f"1000 / {key}"))


def _window_figures(record: Mapping[str, Any], file: str) -> Iterator[Figure]:
    """Yield the figures over the window of the steady state, which cm4vllm computes from the client's events."""
    figures = part(part(record, "steady_state"), "figures")
    yield from (
        Figure(name, unit(value), unit.unit, Source(file, f"steady_state.figures.{key}"))
        for name, key, unit in (
            ("system_tps", "system_tps", TokensPerSecond),
            ("ttft_p90", "ttft_p90_ms", Milliseconds),
            ("tpot_p90", "tpot_p90_ms", Milliseconds),
        )
        if (value := number(figures, key)) is not None
    )


def _histogram(times: Mapping[str, Any]) -> Histogram | None:
    """Return the histogram of a summary; None if it has none, an unknown form of it, or numbers that none can have."""
    histogram = part(times, "histogram")
    buckets, counted = histogram.get("buckets"), histogram.get("counts")
    if not isinstance(buckets, list) or not isinstance(counted, list) or len(counted) != len(buckets) or not buckets:
        return None
    if not all(isinstance(bucket, list) and len(bucket) == 2 for bucket in buckets):
        return None
    stated = [magnitude(edge) for edge in (*(low for low, _ in buckets), buckets[-1][1])]
    edges = tuple(edge / _NS_OF_MS for edge in stated if edge is not None)
    counts = tuple(int(value) for value in map(magnitude, counted) if value is not None)
    rising = all(low < high for low, high in pairwise(edges))
    return Histogram(edges, counts) if rising and len(counts) == len(edges) - 1 == len(buckets) else None


def _efficiency(reader: Reader, folder: Path) -> Iterator[Figure]:
    """Yield the tokens/s per kW of a point, where the official checker has computed it."""
    path = folder.parent / POWER_FILE
    if not path.is_file():
        return
    value = number(part(part(reader.json(path), "points"), folder.name), "system_tps_per_kw")
    if value is not None:
        yield Figure(
            "tps_per_kw", value, "tokens/s/kW", Source(reader.name(path), f"points.{folder.name}.system_tps_per_kw")
        )


def _accuracy(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    """Return the entries of accuracy runs: those of a list, or by their datasets, as in older files.

    None where the file only has what the client scored on the performance run.
    """
    listed = content.get("accuracy_scores", content)
    named = listed.items() if isinstance(listed, Mapping) else (("", entry) for entry in _listed(listed))
    entries = [{"dataset_name": name, **entry} if name else entry for name, entry in named if isinstance(entry, dict)]
    own = tuple(entry for entry in entries if entry.get("dataset_type", entry.get("dataset_name")) != _INLINE)
    return None if entries and not own else own


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _scores(entries: Iterable[Mapping[str, Any]], file: str) -> Iterator[Score]:
    for entry in entries:
        dataset = str(entry.get("dataset_name", ""))
        samples = samples_of(entry)
        responses = part(entry, "response_counts")
        issued, missing = count(responses, "issued"), count(responses, "missing")
        empty = count(responses, "empty") or 0  # a request that failed has an empty answer
        answered = None if issued is None or missing is None else issued - missing - empty
        yield from (
            Score(dataset, metric, read, samples, Source(file, f"accuracy_scores.{dataset}.score.{metric}"), answered)
            for metric, value in stated_scores(entry).items()
            if (read := _score(value)) is not None
        )


def samples_of(entry: Mapping[str, Any]) -> int:
    """Return the samples of an accuracy run, those of all its passes; 0 where its entry does not state them."""
    once, passes = (
        next((value for name in names if (value := count(entry, name)) is not None), None)
        for names in (("unit_samples", "num_samples"), ("num_repeats", "n_repeats"))
    )
    return (once or 0) * (passes or 1)


def stated_scores(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scores of an entry as its file states them, by their metrics; empty where it states none."""
    score = entry.get("score")
    if isinstance(score, dict):
        return {str(metric): value for metric, value in score.items()}
    return {} if score is None else {"score": score}


def _power(reader: Reader, parent: Path, points: list[Path]) -> Mapping[str, Any]:
    """Return the power descriptor of the system: beside its models in a bundle, in a run folder otherwise."""
    for folder in (parent.parent, parent, *points):
        if (folder / _POWER).is_file():
            return reader.json(folder / _POWER)
    return {}


def _first(folder: Path, names: tuple[Path, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _score(value: object) -> float | None:
    """Return a score: the client writes some as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except ValueError:
        return None
    return read if math.isfinite(read) else None

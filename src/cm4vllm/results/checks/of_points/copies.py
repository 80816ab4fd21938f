"""Parts that the points of a curve share and may not, what they state differently, and our records beside them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.files import sha256_of
from cm4vllm.results.endpoints.curves import POINT_FILE, Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import count, number, part

_DIGEST = re.compile(r"[0-9a-f]{64}")
#: The files that a result is computed from; others may be left out of what is published.
_OF_RESULT = ("config.yaml", "performance/", "accuracy/")
#: Files by which a folder is that of a point.
_OF_POINT = ("point.yaml", "result_summary.json", "performance/result_summary.json")
#: The part by which a recorded time may differ from the client's: it is rounded to ms.
_ROUNDED = 1e-3
#: What point.yaml states of the whole curve; the model's name has a check of its own.
_DECLARED = (
    "division",
    "target_cohort",
    "seed_set",
    "model_precision",
    "link_to_model",
    "link_to_model_transformation",
    "dataset_name",
    "dataset_link",
)
_DISTRIBUTIONS = ("latency", "ttft", "tpot")


@check(
    "POINT-TWICE",
    source="§4.3: each point is a run of its own; not checked officially",
    remedy="measure each point, and publish its own summary and scores",
    stage=Stage.CURVE,
    each=whole,
)
def own_runs(curve: Curve) -> Iterator[Fault]:
    """Each point has a concurrency, a summary and accuracy runs of its own: times in ns are equal only in a copy."""
    for path in sorted(curve.folder.iterdir()) if len(curve.points) > 1 else ():
        if path.is_symlink() and any((path / name).is_file() for name in _OF_POINT):
            wrong, target = "a point is a link to another folder", path.readlink()
            yield Fault(wrong, f"{curve.name}/{path.name}", "", target, "a folder of its own")
    first: dict[tuple[str, object], Point] = {}
    for point in curve.points:
        for field, value in _traces(point):
            other = first.setdefault((field, value), point)
            if other is not point:
                wrong = f"the same run as {other.name}"
                yield Fault(wrong, point.name, field, value, "a value of its own")


@check(
    "CURVE-MAXIMUM",
    source="§5.4: one C_max of a curve; the official checker takes that of one point",
    remedy="state the same max_supported_concurrency in point.yaml and system_desc.json of all points",
    stage=Stage.CURVE,
    each=whole,
)
def one_maximum(curve: Curve) -> Iterator[Fault]:
    """All points state one max_supported_concurrency, in point.yaml and in system_desc.json."""
    key, first = "max_supported_concurrency", None
    for point in curve.points:
        for name, content in (("point.yaml", point.declared), ("system_desc.json", point.system)):
            if not (point.folder / name).is_file():
                continue  # a finding of its own
            value, file = count(content, key), f"{point.name}/{name}"
            if not value:
                yield Fault(
                    "no C_max is stated", file, key, content.get(key, "none"), first or "a whole number above 0"
                )
            elif first is None:
                first = value
            elif value != first:
                yield Fault("another C_max is stated than before", file, key, value, first)


@check(
    "CURVE-DECLARED",
    source="§4.3, §8.3: a curve is of one model, one dataset and one submission; the official checker compares a part",
    remedy="state the same in point.yaml of all points",
    stage=Stage.CURVE,
    each=whole,
)
def one_declaration(curve: Curve) -> Iterator[Fault]:
    """All points declare the same division, cohort, seed set, model and dataset."""
    declared = [point for point in curve.points if point.declared]
    yield from (
        Fault(f"{declared[0].name} declares another", f"{point.name}/point.yaml", key, value or "none", first or "none")
        for point in declared[1:]
        for key in _DECLARED
        if (value := point.declared.get(key)) != (first := declared[0].declared.get(key))
    )


@check(
    "POINT-RECORD",
    source="a design rule of cm4vllm: the record of a point has the digest of each file of the client",
    remedy="make the point again (--rerun=point.N), and publish its files as they are",
    stage=Stage.CURVE,
    each=whole,
)
def own_record(curve: Curve) -> Iterator[Fault]:
    """The record of a point that cm4vllm measured is that of the files beside it."""
    for point in curve.points:
        if point.record:
            yield from _digests(point)
            yield from _facts(point)


def _traces(point: Point) -> Iterator[tuple[str, object]]:
    """Yield the fields of a point that no other point of its curve has the same of."""
    if point.offline != "dedicated" and point.concurrency is not None:
        yield "concurrency", point.concurrency
    for name in _DISTRIBUTIONS:
        distribution = part(point.summary, name)
        if value := number(distribution, "total") or number(distribution, "avg"):
            yield name, value
    for entry in point.accuracy or ():
        if seconds := number(entry, "duration_s"):
            lengths = part(entry, "output_sequence_lengths")
            yield f"accuracy_scores.{entry.get('dataset_name')}", (seconds, number(lengths, "total"))


def _digests(point: Point) -> Iterator[Fault]:
    files, file = part(point.record, "files"), f"{point.name}/{POINT_FILE}"
    if not files:
        yield Fault("the record has no digest of a file", file, "files", "none", "a SHA-256 of each file of the client")
    if len(files) > 1 and len(set(map(str, files.values()))) == 1:
        yield Fault("all files have one digest", file, "files", next(iter(files.values())), "one of each file")
    for name, digest in files.items():
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            yield Fault("it is no SHA-256", file, f"files.{name}", digest, "64 hexadecimal digits")
        elif _is_below(name):
            yield from _file(point, name, digest)


def _file(point: Point, name: str, digest: str) -> Iterator[Fault]:
    path, place = point.folder / name, f"{point.name}/{name}"
    if path.is_file():
        if (value := sha256_of(path)) != digest:
            yield Fault("the file was changed after the run", place, "SHA-256", value, digest)
    elif name.startswith(_OF_RESULT):
        yield Fault("a file of the run is missing", place, "SHA-256", "none", digest)


def _facts(point: Point) -> Iterator[Fault]:
    """Compare the facts of a record with those of the client and of point.yaml."""
    record, seconds = point.record, number(point.summary, "duration_ns")
    steady, declared = part(record, "steady_state"), point.steady_state
    for key, value, other in (
        ("duration_s", _rounded(number(record, "duration_s")), _rounded(seconds / 1e9 if seconds else None)),
        ("terms.concurrency", count(part(record, "terms"), "concurrency"), count(point.declared, "concurrency")),
        ("steady_state.status", steady.get("status"), declared.get("status")),
        ("steady_state.window", _window(steady), _window(declared)),
        ("offline", record.get("offline"), point.offline),
    ):
        if value not in (None, "") and other is not None and not _same(value, other):
            yield Fault("the record is of another run", f"{point.name}/{POINT_FILE}", key, value, other)


def _window(steady_state: Mapping[str, Any]) -> int | None:
    return count(part(steady_state, "window"), "n_samples")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _same(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return abs(value - other) <= _ROUNDED * (1 + max(value, other))
    return value == other


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name

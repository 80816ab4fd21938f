"""Rules of MLPerf Endpoints that are newer than this package: a file of all of them, or the official checker's files.

Files of the checker are its seed sets (data/seed_sets.yaml) and its approved drafters (data/approved_drafters.yaml), as
a release of it has them or as its --seed-sets and --approved-drafters take them.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.bounded_documents import read_json, read_yaml
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import typed_path
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Settings
from cm4vllm.rules.bounds import Seed
from cm4vllm.rules.cohorts import ApprovedDrafter, SeedSet, cohort_name, cohort_number
from cm4vllm.rules.endpoints import EndpointsRules, endpoints_rules

T = TypeVar("T")

#: The rules of a job, in its results folder, and those that get,mlperf,rules gives.
RULES_FILE = "rules.json"


class _OfficialSet(msgspec.Struct, frozen=True):
    """An entry of the checker's seed sets; `cohorts` are those of its adoption where they are listed."""

    id: str
    scheduler_rng_seed: Seed
    sample_index_rng_seed: Seed
    model_seed: Seed
    cohorts: list[str] | None = None


class _Cohort(msgspec.Struct, frozen=True, rename={"cohort_id": "cohort-id"}):
    """The cohort that seed sets were published for, and the sets."""

    seed_sets: list[_OfficialSet]
    cohort_id: str = ""


class _SeedSetFile(msgspec.Struct, frozen=True):
    """The checker's file of seed sets: those of a cohort, or those that list their own cohorts."""

    cohort: _Cohort | None = None
    seed_sets: list[_OfficialSet] = []


class _OfficialDrafter(msgspec.Struct, frozen=True):
    """An entry of the checker's approved drafters."""

    benchmark: str
    approved_cohort: str
    model_id: str = ""
    weight_checksum: str = ""
    target_checksum: str = ""
    configuration: dict[str, int | float | str | bool] = {}


class _DrafterFile(msgspec.Struct, frozen=True):
    """The checker's file of approved drafters."""

    drafters: list[_OfficialDrafter]


def read_rules(path: Path) -> EndpointsRules:
    """Return the rules of a file that `get,mlperf,rules` wrote. Raises UsageError."""
    rules = _read(path, EndpointsRules, "rules of MLPerf Endpoints")
    if wrong := next(_contradictions(rules), ""):
        raise UsageError(
            f"{path} has no rules that can be followed", cause=wrong, remedy="use a file as it was written"
        )
    return rules


def _contradictions(rules: EndpointsRules) -> Iterator[str]:
    """Yield what cannot be meant: values that contradict each other, or that no program can follow."""
    for cohort in (*(entry.cohort for entry in rules.seed_sets), *(entry.cohort for entry in rules.drafters)):
        cohort_number(cohort)
    if rules.calendar.weeks[0] >= rules.calendar.weeks[1]:
        yield "the first cohort of a month is not before the second"
    if rules.durations[-1].up_to is not None:
        yield "the last of the durations has an end: none holds for a higher concurrency"
    if rules.curve.highest_c_min >= rules.curve.lowest_c_max or rules.curve.least_points > rules.curve.most_points:
        yield "the bounds of a curve leave none"
    for entry in rules.benchmarks:
        if not entry.refused and min(entry.samples, entry.accuracy_samples, entry.max_tokens) < 1:
            yield f"the benchmark {entry.name} has no samples, or answers without tokens"
        for dataset in (entry.performance, *entry.scored):
            for place in map(PurePath, (dataset.path, dataset.cached)):
                if place.is_absolute() or ".." in place.parts:
                    yield f"a file of the dataset {dataset.name} lies outside of the client's folder: {place}"
    if not any(not entry.refused for entry in rules.benchmarks):
        yield "no benchmark can be run"


def with_seed_sets(rules: EndpointsRules, path: Path) -> EndpointsRules:
    """Return the rules with the seed sets of a file of the official checker in the place of those of the same name.

    Raises UsageError for a file of another form, and for a set whose cohorts are not known or do not follow each other.
    """
    read = _read(path, _SeedSetFile, "seed sets of the official checker")
    published = read.cohort.cohort_id if read.cohort else ""
    entries = read.cohort.seed_sets if read.cohort else read.seed_sets
    source = f"{path.name}, SHA-256 {_digest(path)}"
    sets = [_seed_set(entry, published, rules.adopted_cohorts, source, path) for entry in entries]
    if not sets:
        raise UsageError(f"{path} has no seed sets")
    names = {entry.name for entry in sets}
    kept = [entry for entry in rules.seed_sets if entry.name not in names]
    together = tuple(sorted([*kept, *sets], key=lambda entry: cohort_number(entry.cohort)))
    return replace(rules, seed_sets=together, amended_by=_amended(rules, path))


def with_drafters(rules: EndpointsRules, path: Path) -> EndpointsRules:
    """Return the rules with the approved drafters of a file of the official checker. Raises UsageError."""
    read = _read(path, _DrafterFile, "approved drafters of the official checker")
    source = f"{path.name}, SHA-256 {_digest(path)}"
    drafters = tuple(
        ApprovedDrafter(
            benchmark=entry.benchmark,
            cohort=entry.approved_cohort,
            model=entry.model_id,
            weights=entry.weight_checksum,
            target=entry.target_checksum,
            configuration=entry.configuration,
            source=source,
        )
        for entry in read.drafters
    )
    for drafter in drafters:
        cohort_number(drafter.cohort)
    return replace(rules, drafters=drafters, amended_by=_amended(rules, path))


def _amended(rules: EndpointsRules, path: Path) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*rules.amended_by, path.name)))


class RulesInputs(Settings, frozen=True, kw_only=True):
    """The files that are used in place of the rules that come with cm4vllm: all rules, or parts of them."""

    rules_file: input_types.RulesFile = ""
    seed_sets_file: input_types.SeedSetsFile = ""
    drafters_file: input_types.DraftersFile = ""

    def absolute(self) -> Self:
        """Return the files with absolute paths, for recipes that work in other folders."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(self, **{name: str(typed_path(path).absolute()) for name, path in given.items() if path})

    def chosen(self) -> EndpointsRules:
        """Return the rules that the files have, else those that come with cm4vllm. Raises UsageError."""
        return self.chosen_from(read_rules(typed_path(self.rules_file)) if self.rules_file else endpoints_rules())

    def chosen_from(self, rules: EndpointsRules) -> EndpointsRules:
        """Return rules with the seed sets and drafters that the files have. Raises UsageError."""
        rules = with_seed_sets(rules, typed_path(self.seed_sets_file)) if self.seed_sets_file else rules
        return with_drafters(rules, typed_path(self.drafters_file)) if self.drafters_file else rules


class RulesUsed(Record, frozen=True, kw_only=True):
    """The rules that a record was made by: version, day and digest; empty where they are not known.

    `measuring_sha256` is the digest of the parts that decide how a point is measured: curve, lengths and window.
    """

    version: str = ""
    dated: str = ""
    sha256: str = ""
    measuring_sha256: str = ""

    @classmethod
    def of(cls, rules: EndpointsRules) -> Self:
        """Return what a record states of rules."""
        return cls(
            version=rules.version,
            dated=rules.dated,
            sha256=rules_digest(rules),
            measuring_sha256=_sha256_of((rules.curve, rules.durations, rules.window)),
        )


def official_seed_sets(rules: EndpointsRules) -> dict[str, Any]:
    """Return the seed sets in the form that the official checker takes with --seed-sets."""
    return {
        "seed_sets": [
            {
                "id": entry.name,
                "scheduler_rng_seed": entry.scheduler,
                "sample_index_rng_seed": entry.sample_index,
                "model_seed": entry.model,
                "cohorts": [cohort_name(cohort_number(entry.cohort) + later) for later in range(entry.cohorts)],
            }
            for entry in rules.seed_sets
        ]
    }


def official_drafters(rules: EndpointsRules) -> dict[str, Any]:
    """Return the approved drafters in the form that the official checker takes with --approved-drafters."""
    named = {
        "benchmark": "benchmark",
        "approved_cohort": "cohort",
        "model_id": "model",
        "weight_checksum": "weights",
        "target_checksum": "target",
        "configuration": "configuration",
    }
    return {
        "drafters": [
            {key: value for key, field in named.items() if (value := getattr(drafter, field))}
            for drafter in rules.drafters
        ]
    }


def plain_rules(rules: EndpointsRules) -> dict[str, Any]:
    """Return rules as they are written to a file."""
    plain: dict[str, Any] = msgspec.to_builtins(rules)
    return plain


def rules_digest(rules: EndpointsRules) -> str:
    """Return the SHA-256 of rules: by all that they say, not by how a file is written."""
    read = msgspec.convert(plain_rules(rules), EndpointsRules)  # a default of a number may be a whole one
    return _sha256_of(read)


def _sha256_of(content: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def _seed_set(entry: _OfficialSet, published: str, adopted_cohorts: int, source: str, path: Path) -> SeedSet:
    cohorts = sorted(entry.cohorts or [published] * bool(published), key=cohort_number)
    if not cohorts:
        raise UsageError(
            f"the seed set {entry.id} of {path} has no cohort",
            cause="without one nobody knows until when a submission may adopt it",
            remedy="use the file as MLCommons publishes it: it states cohort-id",
        )
    count = len(cohorts) if entry.cohorts else adopted_cohorts
    if entry.cohorts and cohort_number(cohorts[-1]) - cohort_number(cohorts[0]) != count - 1:
        raise UsageError(f"the cohorts of the seed set {entry.id} of {path} do not follow each other")
    return SeedSet(
        name=entry.id,
        scheduler=entry.scheduler_rng_seed,
        sample_index=entry.sample_index_rng_seed,
        model=entry.model_seed,
        cohort=cohorts[0],
        cohorts=count,
        source=source,
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path, kind: type[T], title: str) -> T:
    """Return a YAML file as a record of this kind. Raises UsageError with the file and what is wrong in it."""
    try:
        document: Any = read_json(path) if path.suffix == ".json" else read_yaml(path)
        return msgspec.convert(document, kind)
    except OSError as error:
        raise UsageError(f"cannot read the {title}: {path}", cause=str(error.strerror)) from error
    except ValueError as error:
        raise UsageError(f"{path} has no {title}", cause=str(error)) from error

"""MLPerf's rules as the files under data/ state them. Only modules of this package read these tables."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from cm4vllm.rules.assets import Catalogue
from cm4vllm.rules.entries import DivisionRule, Entry, Family, RoundTerms, ScenarioEntry
from cm4vllm.rules.vocabulary import Mode, Scenario

_DATA = Path(__file__).with_name("data")

E = TypeVar("E", bound=Entry)
T = TypeVar("T")


def matching(
    entries: Iterable[E], round_name: str, benchmark: str, scenario: Scenario | None = None, mode: Mode | None = None
) -> list[E]:
    """Return the entries that hold for a cell; a scenario or mode left out matches any."""
    order = [entry.name for entry in round_entries()]
    position = order.index(round_name)
    return [
        entry
        for entry in entries
        if (not entry.since or order.index(entry.since) <= position)
        and (not entry.until or position <= order.index(entry.until))
        and (not entry.benchmarks or benchmark in entry.benchmarks)
        and (scenario is None or not entry.scenarios or scenario in entry.scenarios)
        and (mode is None or not entry.modes or mode in entry.modes)
    ]


def facts_of(entries: Iterable[Entry], kind: type[T]) -> Iterator[T]:
    """Return the facts of entries as records whose fields have the same names, without the cells that they hold for."""
    return (msgspec.convert(entry, kind, from_attributes=True) for entry in entries)


@cache
def round_entries() -> tuple[RoundTerms, ...]:
    """Return the rounds, oldest first."""
    return read_table("rounds.yaml", tuple[RoundTerms, ...])


@cache
def scenario_entries() -> dict[Scenario, ScenarioEntry]:
    """Return LoadGen's way to run each scenario."""
    return {entry.name: entry for entry in read_table("scenarios.yaml", tuple[ScenarioEntry, ...])}


@cache
def division_rule_entries() -> tuple[DivisionRule, ...]:
    """Return the rules of the divisions."""
    return read_table("divisions.yaml", tuple[DivisionRule, ...])


@cache
def families() -> tuple[Family, ...]:
    """Return the benchmarks, those of one model together."""
    return tuple(read_files("benchmarks", Family).values())


@cache
def catalogue() -> Catalogue:
    """Return the catalogue that comes with cm4vllm, with the assets that the files of benchmarks have."""
    known = read_table("../catalogue.yaml", Catalogue)
    for more in (family.assets for family in families() if family.assets):
        known.models.update(more.models)
        known.datasets.update(more.datasets)
        known.benchmarks.update(more.benchmarks)
    return known


@cache
def sources() -> dict[str, str]:
    """Return the files that the first word of an entry's `source` stands for."""
    return read_table("sources.yaml", dict[str, str])


def read_table(name: str, kind: type[T]) -> T:
    """Return a file of the rules."""
    return msgspec.yaml.decode((_DATA / name).read_bytes(), type=kind)


def read_files(folder: str, kind: type[T]) -> dict[str, T]:
    """Return the files in a folder of the rules by their names without the ending, sorted."""
    return {file.stem: read_table(f"{folder}/{file.name}", kind) for file in sorted((_DATA / folder).glob("*.yaml"))}

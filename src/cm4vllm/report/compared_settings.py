"""What a result was measured with, setting by setting, as texts that can be held against those of another result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cm4vllm.loadgen.records import RunRecord
from cm4vllm.report.wording import server_words
from cm4vllm.results.model import Result, Submission
from cm4vllm.serving.given_options import given_options, value_text

__all__ = [
    "NOT_STATED",
    "Difference",
    "Group",
    "Setting",
    "as_text",
    "differences",
    "loadgen_settings",
    "server_settings",
    "settings_of",
]


class Group(StrEnum):
    """What a setting belongs to, in the order in which differences are shown."""

    MEASURED = "what was measured"
    SERVER = "server"
    CLIENT = "client and LoadGen"
    SYSTEM = "system"
    PACKAGES = "packages"


#: The value of a setting that a result does not state.
NOT_STATED = "not stated"
#: What a setting belongs to, and its name.
Setting = tuple[Group, str]
#: Settings of LoadGen that name a run and set nothing.
_NO_SETTINGS = ("test_datetime", "qsl_reported_name", "power_")


@dataclass(frozen=True)
class Difference:
    """A setting with a text for each result, empty where it was not given, and the scenarios in which it is so."""

    group: Group
    name: str
    values: tuple[str, ...]
    scenarios: tuple[str, ...]


def differences(compared: Mapping[str, Sequence[Mapping[Setting, str]]]) -> tuple[list[Difference], int, int]:
    """Return the settings that differ, how many are the same, and how many not all state.

    `compared` has for each scenario the settings of the results; those that differ in the same way in several scenarios
    are one difference.
    """
    found: dict[tuple[Group, str, tuple[str, ...]], list[str]] = {}
    same: set[Setting] = set()
    open_: set[Setting] = set()
    for scenario, sides in compared.items():
        for key in dict.fromkeys(key for side in sides for key in side):
            values = tuple(_stated(side, key) for side in sides)
            if len(set(values) - {NOT_STATED}) > 1:
                found.setdefault((*key, values), []).append(scenario)
            else:
                (open_ if NOT_STATED in values else same).add(key)
    order = list(Group)
    rows = [Difference(group, name, values, tuple(scenarios)) for (group, name, values), scenarios in found.items()]
    differing = {(row.group, row.name) for row in rows}
    return sorted(rows, key=lambda row: order.index(row.group)), len(same - differing), len(open_ - differing)


def _stated(side: Mapping[Setting, str], key: Setting) -> str:
    """Return the value that a result has of a setting: of an option that was not given, none; else NOT_STATED."""
    if key in side:
        return side[key]
    optional = key[0] in (Group.SERVER, Group.PACKAGES) and any(group is key[0] for group, _ in side)
    return "" if optional else NOT_STATED


def settings_of(submission: Submission, result: Result) -> dict[Setting, str]:
    """Return the settings of a result, by group and name."""
    rows = [*_measured(result), *_system(submission, result)]
    if result.performance is not None:
        rows += loadgen_settings(result.performance.settings, result.performance.loadgen_version)
        if result.performance.run is not None:
            rows += _recorded(result.performance.run)
    return {(group, name): as_text(value) for group, name, value in rows}


def loadgen_settings(settings: Mapping[str, Any], version: str) -> Iterator[tuple[Group, str, Any]]:
    """Give the settings that LoadGen used and its version; the build is what stands behind the version in its log."""
    for name, value in settings.items():
        if not name.startswith(_NO_SETTINGS):
            yield Group.CLIENT, f"LoadGen: {name}", value
    number, _, build = version.partition(" ")
    yield Group.CLIENT, "LoadGen", number
    if build:
        yield Group.CLIENT, "LoadGen's build", build


def _measured(result: Result) -> Iterator[tuple[Group, str, Any]]:
    for name in ("round", "division", "submitter", "model", "system"):
        yield Group.MEASURED, name, getattr(result, name)
    for name, value in result.measurements.items():
        yield Group.MEASURED, name.replace("_", " "), value


def _system(submission: Submission, result: Result) -> Iterator[tuple[Group, str, Any]]:
    described = submission.system(result.system)
    for name, value in (described.description if described else {}).items():
        if name not in ("division", "submitter"):
            yield Group.SYSTEM, name.replace("_", " "), value


def _recorded(run: RunRecord) -> Iterator[tuple[Group, str, Any]]:
    one = run.settings
    for name, value in (
        ("rehearsal", "yes" if one.rehearsal else "no"),
        ("model's SHA-256", one.model.sha256),
        ("weight data types", one.model.weight_data_types),
        ("weight transformations", one.model.weight_transformations),
        ("dataset", one.dataset.name),
        ("dataset's SHA-256", one.dataset.sha256),
        ("samples", one.samples),
    ):
        yield Group.MEASURED, name, value
    yield Group.SERVER, "server", one.server.named
    yield Group.SERVER, "started by cm4vllm", "yes" if one.server.owned else "no"
    yield Group.SERVER, "max_model_len", one.server.max_model_len
    yield from server_settings(*server_words(one.server, one.model.path))
    for name in ("max_tokens", "min_tokens", "max_in_flight", "stream_interval"):
        yield Group.CLIENT, name, getattr(one, name)
    yield Group.CLIENT, "worker processes", sum(process.name.startswith("worker") for process in run.client.processes)
    for name, value in {**run.versions, **one.server.packages}.items():
        yield Group.PACKAGES, name, value


def server_settings(env: Mapping[str, str], words: Sequence[str]) -> Iterator[tuple[Group, str, Any]]:
    """Give the environment and the options that a server was started with, as they are published."""
    for name, text in env.items():
        yield Group.SERVER, name, text
    for name, value in given_options(words).items():
        yield Group.SERVER, f"--{name}", value_text(value)


def as_text(value: Any) -> str:
    """Write a setting's value in one line; a whole number has no decimals."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return " ".join(str(value).split())

"""The settings that a result was measured with, as texts that can be compared with those of other results."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cm4vllm.records.vllm.given_options import given_options, value_text
from cm4vllm.results.capsule import RUN_RECORDS, Capsule
from cm4vllm.results.model import Accuracy, Performance, Result


class Group(StrEnum):
    """The part of a measurement that a setting belongs to, in the order in which differences are shown."""

    MEASURED = "measurement"
    SERVER = "server"
    OPTIONS = "server's options"
    LOADGEN = "LoadGen"
    SAMPLING = "sampling"
    CLIENT = "client"
    SYSTEM = "system"
    PROGRAM = "program"
    PACKAGES = "packages"
    CONTENTS = "files of packages"
    SERVER_PACKAGES = "server's packages"
    SERVER_CONTENTS = "files of the server's packages"


#: The value of a setting that a result does not state.
NOT_STATED = "not stated"
#: The group of a setting, and its name.
Setting = tuple[Group, str]
#: Groups in which a result that states any setting states all of them: the others were not given, or not installed.
_WHOLE = {
    *(Group.OPTIONS, Group.LOADGEN, Group.SAMPLING, Group.CLIENT),
    *(Group.PACKAGES, Group.CONTENTS, Group.SERVER_PACKAGES, Group.SERVER_CONTENTS),
}
#: Groups whose settings make another measurement where they differ, and settings of other groups that do.
_DECISIVE_GROUPS = {Group.OPTIONS, Group.LOADGEN, Group.SAMPLING, Group.CLIENT}
_DECISIVE = {
    *((Group.MEASURED, name) for name in ("round", "benchmark", "model's SHA-256", "dataset's SHA-256")),
    *((Group.SERVER, name) for name in ("software", "version", "endpoints")),
}
#: Settings of those groups that explain a value or name a build.
_NOT_DECISIVE = {"target_qps_source", "worker_processes", "build"}
#: Settings of LoadGen that name a run and set nothing.
_NO_SETTINGS = ("test_datetime", "qsl_reported_name", "power_")
#: Options of a server's command that say where it listens.
_ADDRESS = ("port", "host", "uds", "root-path")


@dataclass(frozen=True)
class ComparedSetting:
    """A setting with a text for each result, empty where it was not given, and the runs in which it is so.

    `runs` is empty where it is so in all.
    """

    group: Group
    name: str
    values: tuple[str, ...]
    runs: tuple[str, ...]

    @property
    def title(self) -> str:
        """The group and the name, followed by the runs unless the setting is the same in all of them."""
        runs = f" ({', '.join(self.runs)})" if self.runs else ""
        return f"{self.group}: {self.name}{runs}"

    @property
    def stated(self) -> bool:
        """Return True if all results state the setting."""
        return NOT_STATED not in self.values

    @property
    def equal(self) -> bool:
        """Return True if all results state the same value."""
        return self.stated and len(set(self.values)) == 1

    @property
    def differs(self) -> bool:
        """Return True if two results state different values."""
        return len({*self.values} - {NOT_STATED}) > 1

    @property
    def decisive(self) -> bool:
        """Return True if results with different values are not measurements of the same thing."""
        whole = self.group in _DECISIVE_GROUPS and self.name not in _NOT_DECISIVE
        return whole or (self.group, self.name) in _DECISIVE


def compare_settings(runs: Mapping[str, Sequence[Mapping[Setting, str]]]) -> list[ComparedSetting]:
    """Compare the settings of several results, run by run: those with the same values in several runs are one."""
    differing = defaultdict[tuple[Group, str, tuple[str, ...]], list[str]](list)
    for run, sides in runs.items():
        stated = [{group for group, _ in side} & _WHOLE for side in sides]
        for key in dict.fromkeys(key for side in sides for key in side):
            absent = ("" if key[0] in groups else NOT_STATED for groups in stated)
            differing[*key, tuple(side.get(key, none) for side, none in zip(sides, absent, strict=True))].append(run)
    order = list(Group)
    rows = [
        ComparedSetting(group, name, values, tuple(named) if len(named) < len(runs) else ())
        for (group, name, values), named in differing.items()
    ]
    return sorted(rows, key=lambda row: order.index(row.group))


def settings_of(capsule: Capsule, result: Result | None, part: Performance | Accuracy | None) -> dict[Setting, str]:
    """Return the settings of a run that a capsule states, by group and name; without a run, those of all runs."""
    rows = [*_measured_settings(capsule), *_server(capsule)]
    if result is not None:
        rows += ((Group.MEASURED, name.replace("_", " "), value) for name, value in result.measurements.items())
    if part is not None:
        rows += _run(part)
    for group, values in (
        (Group.SYSTEM, capsule.machine),
        (Group.PROGRAM, capsule.program),
        (Group.PACKAGES, capsule.packages),
        (Group.CONTENTS, capsule.contents),
        (Group.SERVER_PACKAGES, capsule.server.packages),
        (Group.SERVER_CONTENTS, capsule.server.contents),
    ):
        whole = group in _WHOLE
        rows += ((group, name if whole else name.replace("_", " "), value) for name, value in values.items())
    return {(group, name): as_text(value) for group, name, value in rows if value not in ("", None)}


def _measured_settings(capsule: Capsule) -> Iterator[tuple[Group, str, Any]]:
    yield from (
        (Group.MEASURED, name, getattr(capsule, name))
        for name in ("round", "division", "submitter", "system", "benchmark")
    )
    yield Group.MEASURED, "rehearsal", "yes" if capsule.rehearsal else "no"
    for subject, facts in (("model", capsule.model), ("dataset", capsule.dataset)):
        for name, value in facts.items():
            words = {"name": subject, "sha256": f"{subject}'s SHA-256"}
            yield (
                Group.MEASURED,
                words.get(name, name.replace("_", " ") if "_" in name else f"{subject}'s {name}"),
                value,
            )


def _server(capsule: Capsule) -> Iterator[tuple[Group, str, Any]]:
    server = capsule.server
    yield from ((Group.SERVER, name, getattr(server, name)) for name in ("software", "version", "max_model_len"))
    if server.software:
        yield Group.SERVER, "endpoints", server.endpoints
    if capsule.made_from == RUN_RECORDS:
        yield Group.SERVER, "started by cm4vllm", "yes" if server.command else "no"
    yield from ((Group.SERVER, name, value) for name, value in (server.container | server.env).items())
    if server.command:
        yield (
            Group.OPTIONS,
            "command",
            " ".join(itertools.takewhile(lambda word: not word.startswith("--"), server.command)),
        )
    yield from (
        (Group.OPTIONS, f"--{name}", value_text(given))
        for name, given in (given_options(server.command) | server.options).items()
        if name not in _ADDRESS
    )


def _run(part: Performance | Accuracy) -> Iterator[tuple[Group, str, Any]]:
    number, _, build = part.loadgen_version.partition(" ")
    yield Group.LOADGEN, "version", number
    yield Group.LOADGEN, "build", build
    for group, values in (
        (Group.LOADGEN, part.settings),
        (Group.SAMPLING, part.conditions.sampling),
        (Group.CLIENT, part.conditions.client),
    ):
        yield from ((group, name, value) for name, value in values.items() if not name.startswith(_NO_SETTINGS))


def as_text(value: Any) -> str:
    """Write a setting's value in one line; a whole number has no decimals."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).split())

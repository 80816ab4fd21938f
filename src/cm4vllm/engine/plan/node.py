"""The tree of a plan: a node for each script, with what a run would do with it and bring onto the machine for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.units import size_text
from cm4vllm.engine.cache.entries import Entry
from cm4vllm.engine.format.meta import Bring, ScriptMeta
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.plan.run_facts import in_words
from cm4vllm.engine.run.environment import substitute
from cm4vllm.engine.run.python_packages import listed_packages, needs


class Status(StrEnum):
    """The action of a run for a script."""

    CACHED = "cached"
    REUSED = "made above"
    MAKE = "to make"
    RUN = "to run"
    OPEN = "open"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Brought:
    """One thing that a run would download, install or make. `disk_bytes` is 0 where it was not measured."""

    how: str
    what: str
    disk_bytes: int
    measured: str

    def __str__(self) -> str:
        size = f"{size_text(self.disk_bytes)} on disk" if self.disk_bytes else "size not known in advance"
        return f"{self.how} {self.what} ({size}{f', {self.measured}' if self.disk_bytes and self.measured else ''})"


@dataclass(slots=True, kw_only=True)
class Node:
    """One script of the tree.

    `why` is the phase of `parent` that asks for it, or "step" where the code of `parent` runs it; `name` and `data` are
    that code's for it. `env` is what the asking entry sets, `added_by` the variation that brings the entry, `only_if`
    what decides whether it takes part at all, `open_facts` what decides which script it is or which cache entry fits.
    """

    tags: str
    why: str
    parent: str = ""
    name: str = ""
    data: Any = None
    names: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    added_by: str = ""
    only_if: tuple[str, ...] = ()
    status: Status = Status.OPEN
    script: ScriptMeta | None = None
    variations: tuple[str, ...] = ()
    asked: str = ""
    version: str = ""
    entry: Entry | None = None
    open_facts: tuple[str, ...] = ()
    brings: tuple[Brought, ...] = ()
    notes: list[str] = field(default_factory=list)
    error: CmError | None = None
    children: list[Node] = field(default_factory=list)

    def walk(self, certain: bool = True) -> Iterator[tuple[Node, bool]]:
        """Yield this node and all below it, each with whether it is certain to take part."""
        certain = certain and not self.only_if
        yield self, certain
        for child in self.children:
            yield from child.walk(certain and self.status is not Status.OPEN)

    def failure(self) -> CmError | None:
        """Return the first error that the run is certain to meet."""
        return next((node.error for node, certain in self.walk() if certain and node.error is not None), None)


def brought_by(
    script: ScriptMeta,
    brings: Iterable[Bring],
    wanted: Wanted,
    missing: Callable[[Path], list[str]],
    env: Mapping[str, Any],
) -> tuple[Brought, ...]:
    """Return the things that a run of the script would bring; none for Python packages that are installed already.

    `missing` gives the requirements of a file that the running Python does not fulfil. `env` is the environment of the
    script as far as it is known.
    """
    brought = (_brought(script, bring, wanted, missing) for bring in brings if bring.conditions.hold(env))
    return tuple(replace(thing, what=in_words(substitute(thing.what, env))) for thing in brought if thing)


def _brought(script: ScriptMeta, bring: Bring, wanted: Wanted, missing: Callable[[Path], list[str]]) -> Brought | None:
    """Return what an entry of `brings` brings here, None where nothing is missing."""
    title, size = bring.what, bring.disk_bytes
    if bring.package:
        condition = wanted.pip_text()
        if bring.shared and not needs(bring.package, condition):
            return None
        title = f"{title or 'the package'} {bring.package}{condition}"
    elif bring.requirements:
        path = (script.path / bring.requirements).resolve()
        packages = missing(path) if bring.shared else [name for name, _ in listed_packages(path)]
        if not packages:
            return None
        title = f"{title}: {len(packages)} package{'s' if len(packages) > 1 else ''} of {path.name}"
    return Brought(bring.how, title, size, bring.measured)

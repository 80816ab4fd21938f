"""The tree of a plan: a node for each script, with what a run would do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.engine.cache.entries import Entry
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.plan.costs import Brought

__all__ = ["Node", "Status"]


class Status(StrEnum):
    """The action of a run for a script."""

    CACHED = "cached"
    REUSED = "made above"
    MAKE = "to make"
    RUN = "to run"
    OPEN = "open"
    FAILS = "fails"


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

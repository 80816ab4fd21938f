"""Processes of this machine in place of nodes: for a rehearsal of a start over several nodes, and for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self


@dataclass(frozen=True)
class LocalLauncher:
    """Nodes that are all this machine."""

    nodes: tuple[str, ...]
    name: ClassVar[str] = "local"
    job_variable: ClassVar[str] = ""

    @classmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        return cls(names or tuple(f"node{number}" for number in range(1, count + 1)))

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        return list(program)

    def address(self, node: str) -> str:
        return "127.0.0.1"

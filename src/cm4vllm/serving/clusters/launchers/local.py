"""Processes of this machine in place of nodes: for a rehearsal of a start over several nodes, and for tests."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LocalLauncher:
    """Nodes that are all this machine."""

    nodes: tuple[str, ...]
    name: str = "local"

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        return list(program)

    def address(self, node: str) -> str:
        return "127.0.0.1"

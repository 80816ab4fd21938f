"""The settings with which the client's benchmark measures, and the programs that it needs and may not find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.task import Result
from figures import Figure

__all__ = ["Bench", "Case", "Group", "not_installed"]


@dataclass(frozen=True)
class Bench:
    """The settings of a measurement: the cores of each side, the rounds, and the `share` of the work that is done."""

    client: int
    server: int
    rounds: int
    share: float = 1.0
    endpoints: str | None = None
    vllm: str | None = None
    model: Path | None = None

    def queries(self, whole: int) -> int:
        return max(64, int(whole * self.share))


Case = Callable[[], Result]
Group = Callable[[Bench], Iterator[Figure]]


def not_installed(name: str, how: str) -> None:
    """Say that something is not measured, and how it is installed or given."""
    print(f"{name}: not installed ({how})", file=sys.stderr)

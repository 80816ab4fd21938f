"""The settings with which the client's benchmark measures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.task import Result
from figures import Figure


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

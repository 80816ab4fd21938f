"""The facts that a job of MLPerf Inference and one of MLPerf Endpoints share: what their execution needs to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.campaign.live.page_address import Address
from cm4vllm.campaign.steps import ALL, key_of
from cm4vllm.rules import ExecutionMode

__all__ = ["ScheduledJob"]


@dataclass(frozen=True, kw_only=True)
class ScheduledJob(ABC):
    """A job that is executed by its schedule; its results go to the folder `out`.

    A step is tried `attempts` times where the server that the job started ends during it. `rerun` are the steps that
    are taken again, by their keys. `serve` is where the live view is served, `notes` are shown before the first step.
    """

    execution_mode: ExecutionMode
    out: Path
    attempts: int
    rerun: frozenset[str] = frozenset()
    serve: Address | None = None
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The job in a few words."""

    @property
    @abstractmethod
    def notices(self) -> list[str]:
        """Statements that every page and record of the job must carry, as far as they are known before its runs."""

    @property
    def rehearsal(self) -> bool:
        """True for a rehearsal: its runs are shorter than the rules ask."""
        return self.execution_mode is ExecutionMode.TEST

    def reruns(self, step: str) -> bool:
        """Tell whether a step is made again even if an earlier command left its product."""
        return not self.rerun.isdisjoint((ALL, key_of(step)))

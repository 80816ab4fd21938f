"""steps.json: which steps of the schedule a run has taken, and how long each took."""

from __future__ import annotations

from enum import StrEnum

from cm4vllm.campaign.steps import Duration
from cm4vllm.common.records import Record

__all__ = ["STEPS_FILE", "Outcome", "StepRecord", "StepsRecord"]

#: The name of the record's file in the folder of a job's results.
STEPS_FILE = "steps.json"


class Outcome(StrEnum):
    DONE = "done"
    LEFT_OUT = "left out"
    FAILED = "failed"


class StepRecord(Record, frozen=True, kw_only=True):
    """One step as it was taken.

    `inputs` are those of the schedule with all values filled in; `why` says why it was left out or failed.
    """

    name: str
    tags: str
    inputs: dict[str, str]
    outcome: Outcome
    ended_at: str
    took_s: float
    why: str = ""


class StepsRecord(Record, frozen=True, kw_only=True):
    """The steps of a run in their order, as far as it has come."""

    steps: list[StepRecord]

    def durations(self) -> dict[str, Duration]:
        """Return how long each step took that was done, by its name."""
        return {step.name: Duration(seconds=step.took_s, source=f"as on {step.ended_at[:10]}")
                for step in self.steps if step.outcome is Outcome.DONE}

"""status.json: how far a job is, written about once a second while it runs. docs/status.md describes every field.

It is put together from the steps of the job and from what is under way in this process.
"""

import os
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, TypeVar

from msgspec.structs import replace

from cm4vllm.campaign.ledger import LedgerFile, State, StepState
from cm4vllm.campaign.planning.steps import Duration, Step, point_name
from cm4vllm.common import progress
from cm4vllm.common.clock import now
from cm4vllm.common.errors import CmError
from cm4vllm.common.progress import under_way, warnings
from cm4vllm.common.records import Record, read_record
from cm4vllm.common.units import duration_text
from cm4vllm.endpoints.records import CurveStatus
from cm4vllm.loadgen.process.messages import RunStatus, TimeLeft
from cm4vllm.records.searches.rate_search import SearchStatus

T = TypeVar("T")

#: The name of the record's file in the folder of a job's results.
STATUS_FILE = "status.json"
#: Seconds between two writings of it.
INTERVAL_S = 1.0
#: Warnings that are shown.
_WARNINGS = 20


class JobState(StrEnum):
    """The state of the job. A job that was killed is still recorded as running."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"


class StepStatus(Record, frozen=True, kw_only=True):
    """One step of the schedule: `took_s` until now, or in all; `why` says why it was left out, kept or failed.

    `expected_s` is how long it takes by the rules, or took before; `at_least` says that it may take longer. None where
    that is not known.
    """

    name: str
    state: State
    took_s: float | None = None
    expected_s: float | None = None
    at_least: bool = False
    why: str = ""


#: Returns the steps of the job as they are now, in the order of the schedule.
Steps = Callable[[], Sequence[StepStatus]]


class StatusRecord(Record, frozen=True, kw_only=True):
    """A job at `updated_at`, `elapsed_s` after its start; process `pid` writes this record every `interval_s`.

    `doing` is the innermost piece of work under way and `progress` how far it is, in words. `run` is the LoadGen run
    under way, `search` the search, `curve` the curve of MLPerf Endpoints while a point of it is measured. `left` is the
    time to the end of the job as far as it is known; `left_is_least` says that for some of its steps no time is known,
    or only the least; `left_at_most` are the seconds that its minutes leave a rehearsal. `cause` says why it failed.
    """

    SCHEMA: ClassVar[int] = 2

    title: str
    notices: tuple[str, ...]
    state: JobState
    pid: int
    started_at: str
    updated_at: str
    elapsed_s: float
    interval_s: float = INTERVAL_S
    steps: tuple[StepStatus, ...] = ()
    doing: str = ""
    progress: str = ""
    run: RunStatus | None = None
    search: SearchStatus | None = None
    curve: CurveStatus | None = None
    left: TimeLeft | None = None
    left_is_least: bool = False
    left_at_most: float | None = None
    warnings: tuple[str, ...] = ()
    cause: str = ""

    @property
    def left_words(self) -> str:
        """The time to the end of the job, as far as it is known."""
        return left_words(self.left, least=self.left_is_least, most_s=self.left_at_most)

    @property
    def outlook(self) -> str:
        """The same as a part of a line on something else."""
        return f"the job: {self.left_words}" if self.left_words else ""


class JobStatus:
    """The status of a job from its start on; `state` and `cause` are set when it has ended."""

    def __init__(
        self, title: str, notices: Sequence[str], steps: Steps, most_s: Callable[[], float | None] = lambda: None
    ) -> None:
        self.state = JobState.RUNNING
        self.cause = ""
        self._title, self._notices = title, tuple(notices)
        self._steps, self._most_s = steps, most_s
        self._started_at, self._began = now(), time.monotonic()

    def read(self) -> StatusRecord:
        """Return the status now."""
        works = under_way() if self.state is JobState.RUNNING else ()
        run, curve = _facts(works, RunStatus), _facts(works, CurveStatus)
        steps = _with_foreseen_seconds(self._steps(), curve)
        left, least = job_left(steps, run) if self.state is JobState.RUNNING else (None, False)
        most_s = self._most_s() if self.state is JobState.RUNNING else None
        innermost = works[-1] if works else None
        return StatusRecord(
            title=self._title,
            notices=self._notices,
            state=self.state,
            pid=os.getpid(),
            started_at=self._started_at,
            updated_at=now(),
            elapsed_s=round(time.monotonic() - self._began, 1),
            steps=steps,
            doing=innermost.title if innermost else "",
            progress=innermost.text if innermost else "",
            run=run,
            search=_facts(works, SearchStatus),
            curve=curve,
            left=left,
            left_is_least=least,
            left_at_most=None if most_s is None else round(max(0.0, most_s), 1),
            warnings=warnings()[-_WARNINGS:],
            cause=self.cause,
        )


def _with_foreseen_seconds(steps: Sequence[StepStatus], curve: CurveStatus | None) -> tuple[StepStatus, ...]:
    """Return the steps with the seconds that a planned curve foresees of its points."""
    if curve is None:
        return tuple(steps)
    seconds = {point_name(number): expected for number, expected in enumerate(curve.foreseen_s, 1)}
    return tuple(
        replace(step, expected_s=seconds[step.name], at_least=False)
        if step.name in seconds and step.state in (State.PLANNED, State.RUNNING)
        else step
        for step in steps
    )


def steps_of(
    steps: Sequence[Step], file: LedgerFile, expected: Callable[[Step], Duration | None] | None = None
) -> Steps:
    """Return a function for the steps of a job as its ledger has them, with how long they took before this command.

    What is `expected` of a step by the rates measured so far goes before that.
    """
    planned = file.ledger.with_durations(steps)
    seen: dict[tuple[str, int], float] = {}  # by the monotonic clock: the time of day may be set

    def read() -> list[StepStatus]:
        known = [(step, (expected(step) if expected else None) or step.duration) for step in planned]
        return [_step_status(step, took, file.ledger.states.get(step.name), seen) for step, took in known]

    return read


def _step_status(
    step: Step, expected: Duration | None, entered: StepState | None, seen: dict[tuple[str, int], float]
) -> StepStatus:
    """Return the status of a step; `seen` is when each attempt was first seen to run."""
    seconds, at_least = (expected.seconds, expected.at_least) if expected else (None, False)
    state, last = (entered.last.state, entered.last) if entered else (State.PLANNED, None)
    if entered is not None and state is State.RUNNING:
        took = time.monotonic() - seen.setdefault((step.name, entered.attempts), time.monotonic())
        return StepStatus(name=step.name, state=state, took_s=round(took, 1), expected_s=seconds, at_least=at_least)
    if last is None or state is State.PLANNED:
        return StepStatus(name=step.name, state=state, expected_s=seconds, at_least=at_least)
    return StepStatus(name=step.name, state=state, took_s=last.took_s, why=last.why)


def _facts(works: Sequence[progress.Step], kind: type[T]) -> T | None:
    """Return the status of the innermost work of this kind."""
    return next((work.facts for work in reversed(works) if isinstance(work.facts, kind)), None)


def job_left(steps: Sequence[StepStatus], run: RunStatus | None) -> tuple[TimeLeft | None, bool]:
    """Return the time to the end of the steps as far as it is known, and whether it is only the least that it can be.

    The uncertainty is that of the run under way.
    """
    known, low, high, least = 0.0, 0.0, 0.0, False
    anything = False
    for step in steps:
        if step.state is State.RUNNING and run is not None and run.left is not None:
            known, low, high, anything = known + run.left.seconds, low + run.left.low, high + run.left.high, True
        elif step.state in (State.PLANNED, State.RUNNING):
            least = least or step.expected_s is None or step.at_least
            if step.expected_s is not None:
                seconds = max(0.0, step.expected_s - (step.took_s or 0.0))
                known, low, high, anything = known + seconds, low + seconds, high + seconds, True
    if not anything:
        return None, True
    return TimeLeft(seconds=round(known, 1), low=round(low, 1), high=round(high, 1)), least


def read_status(out: Path) -> tuple[StatusRecord, float] | None:
    """Return the status of the job whose results come into the folder `out`, and how many seconds old it is.

    None where there is none, or where another version of cm4vllm wrote it.
    """
    path = out / STATUS_FILE
    try:
        return read_record(path, StatusRecord), max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, CmError):
        return None


def left_words(left: TimeLeft | None, *, least: bool = False, most_s: float | None = None) -> str:
    """Return the time left with its bounds where they differ from it; empty where nothing is known of it.

    With `least` parts of the time are not known, so that its lower bound alone holds. `most_s` bounds the upper one.
    """
    most = "" if most_s is None else f"at most {duration_text(max(0.0, most_s))}"
    if left is None or (most_s is not None and left.seconds > most_s):
        return f"{most} left" if most else ""
    low = duration_text(left.low)
    if least:
        return ", ".join(filter(None, (f"at least {low} left", most)))
    high = duration_text(left.high if most_s is None else min(left.high, most_s))
    words = f"{duration_text(left.seconds)} left"
    return ", ".join(filter(None, (words if low == high else f"{words} ({low} to {high})", most)))

"""status.json: how far a job is, written about once a second while it runs. docs/status.md describes every field."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path

from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.search.search_status import SearchStatus
from cm4vllm.common.errors import CmError
from cm4vllm.common.records import Record, read_record
from cm4vllm.endpoints.curve_status import CurveStatus
from cm4vllm.loadgen.process.run_status import RunStatus, TimeLeft

__all__ = ["INTERVAL_S", "STATUS_FILE", "JobState", "StatusRecord", "StepStatus", "read_status"]

#: The name of the record's file in the folder of a job's results.
STATUS_FILE = "status.json"
#: Seconds between two writings of it.
INTERVAL_S = 1.0


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


class StatusRecord(Record, frozen=True, kw_only=True):
    """A job at `updated_at`, `elapsed_s` after its start; process `pid` writes this record every `interval_s`.

    `doing` is the innermost piece of work under way and `progress` how far it is, in words. `run` is the LoadGen run
    under way, `search` the search, `curve` the curve of MLPerf Endpoints while a point of it is measured. `left` is the
    time to the end of the job as far as it is known; `left_is_least` says that for some of its steps no time is known,
    or only the least. `cause` says why the job failed.
    """

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
    warnings: tuple[str, ...] = ()
    cause: str = ""


def read_status(out: Path) -> tuple[StatusRecord, float] | None:
    """Return the status of the job whose results come into the folder `out`, and how many seconds old it is.

    None where there is none, or where another version of cm4vllm wrote it.
    """
    path = out / STATUS_FILE
    try:
        return read_record(path, StatusRecord), max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, CmError):
        return None

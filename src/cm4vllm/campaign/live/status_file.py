"""The status of a job as another process reads it: from status.json of its results folder."""

from __future__ import annotations

import time
from pathlib import Path

from cm4vllm.campaign.live.panels import view_of
from cm4vllm.campaign.live.records import STATUS_FILE, StatusRecord
from cm4vllm.campaign.live.terminal import plain_text
from cm4vllm.common.errors import CmError
from cm4vllm.common.records import read_record

__all__ = ["read_status", "status_text"]


def read_status(out: Path) -> tuple[StatusRecord, float] | None:
    """Return the status of the job whose results come into the folder `out`, and how many seconds old it is.

    None where there is none, or where another version of cm4vllm wrote it.
    """
    path = out / STATUS_FILE
    try:
        return read_record(path, StatusRecord), max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, CmError):
        return None


def status_text(status: StatusRecord, age_s: float, width: int = 80) -> str:
    """Return the view of a status that is so many seconds old."""
    return plain_text(view_of(status, age_s), width)

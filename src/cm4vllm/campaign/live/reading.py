"""The status of a job as another process reads it: from status.json of its results folder."""

from __future__ import annotations

import time
from pathlib import Path

from cm4vllm.campaign.live.records import STATUS_FILE, StatusRecord
from cm4vllm.campaign.live.terminal import plain_text
from cm4vllm.campaign.live.view import view_of
from cm4vllm.common.errors import CmError
from cm4vllm.common.records import read_record

__all__ = ["status_text"]


def status_text(out: Path, width: int = 80) -> str:
    """Return the view of the job whose results come, or came, into the folder `out`.

    Raises CmError where no job has begun there, OtherSchema where another version of cm4vllm wrote the status.
    """
    path = out / STATUS_FILE
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError as error:
        raise CmError(f"no job has begun in {out}", cause=f"{STATUS_FILE}: {error.strerror}",
                      remedy="name the folder of its results, which ends in test or valid") from error
    return plain_text(view_of(read_record(path, StatusRecord), age_s), width)

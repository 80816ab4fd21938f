"""The power that a meter recorded through a run.

The mean of a run is that of the official checker (tools/submission/submission_checker/checks/power_check.py): of the
values above zero that the power meter's log, spl.txt, has between the log's power_begin and power_end.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cm4vllm.common.files import text_of
from cm4vllm.results.figures import Figure, Source
from cm4vllm.results.model import Performance

__all__ = ["measured_power"]

_FILE = "spl.txt"
_FORMAT = "%m-%d-%Y %H:%M:%S.%f"


def measured_power(part: Performance) -> Figure | None:
    """Return the mean power of a performance run in W; None where no meter's log lies beside LoadGen's."""
    path = part.folder / _FILE
    span = _span(part.settings)
    if span is None or not path.is_file():
        return None
    begin, end = span
    values = []
    for line in text_of(path).splitlines():
        words = line.split(",")
        if words[0] != "Time" or len(words) < 4:
            continue
        try:
            at, watts = datetime.strptime(words[1], _FORMAT), float(words[3])
        except ValueError:
            continue
        if begin < at < end and watts > 0:
            values.append(watts)
    where = f"{part.log.rpartition('/')[0]}/{_FILE}"
    return Figure("power", sum(values) / len(values), "W", Source(where, "Watts, mean of the run")) if values else None


def _span(settings: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    try:
        begin, end = (datetime.strptime(str(settings[name]), _FORMAT) for name in ("power_begin", "power_end"))
    except (KeyError, ValueError):
        return None
    return begin, end

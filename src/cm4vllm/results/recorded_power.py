"""The power that an analyzer recorded through a run, as the figures that the official checkers make of it.

Both are those of tools/submission/submission_checker/checks/power_check.py: the mean of the samples above zero between
the log's power_begin and power_end, in W; and for results that are compared by a latency, the energy of a query in mJ.
"""

from __future__ import annotations

from cm4vllm.common.units import Milliseconds
from cm4vllm.loadgen.logs.detail_log import DETAIL_LOG
from cm4vllm.power.samples import SAMPLES, mean_watts, time_of
from cm4vllm.power.session import SESSION, Phase, Window, session_beside
from cm4vllm.results.figures import Figure, Source
from cm4vllm.results.model import Performance

__all__ = ["measured_power", "power_metric"]


def measured_power(part: Performance) -> Figure | None:
    """Return the mean power of a performance run in W; None where no analyzer's samples lie beside LoadGen's log."""
    window = _window(part)
    if window is None or not (part.folder / DETAIL_LOG).is_file():
        return None
    session = session_beside(part.folder)
    if session is None:
        return None
    watts = mean_watts(session.samples(Phase.TESTING).within(window.begin, window.end))
    return None if watts is None else Figure("power", watts, "W", _source(part, "Watts, mean of the run"))


def power_metric(part: Performance) -> Figure | None:
    """Return the figure of power that is published with a result: W, or mJ/query where queries come one by one."""
    power, window = measured_power(part), _window(part)
    if power is None or window is None or part.metric is None or not isinstance(part.metric.value, Milliseconds):
        return power
    if not part.queries:
        return None
    energy = power.value * window.seconds * 1000 / part.queries
    field = "Watts, mean of the run; power_begin, power_end, result_query_count of LoadGen's log"
    return Figure("energy_per_query", energy, "mJ/query", _source(part, field))


def _source(part: Performance, field: str) -> Source:
    folder = part.log.rpartition("/")[0]
    if not (part.folder / SAMPLES).is_file():  # our own runs have their session beside them
        folder = f"{folder.rpartition('/')[0]}/{SESSION}/{Phase.TESTING}"
    return Source(f"{folder}/{SAMPLES}", field)


def _window(part: Performance) -> Window | None:
    begin, end = (time_of(part.settings.get(name)) for name in ("power_begin", "power_end"))
    return None if begin is None or end is None else Window(begin, end)

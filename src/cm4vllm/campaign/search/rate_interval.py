"""The interval of the true rate: how far what the probes of a search point to would move with other probes.

Each probe says at which rate a full-length run would just keep a limit. The rate to which all point together is found
again without each of them in turn (the jackknife): how much that changes is its standard error. The server's noise and
the errors of the models are in it, as far as they differ from probe to probe; an error that all probes share is not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cm4vllm.campaign.search.projection import Point, meeting_point
from cm4vllm.results.rate_search_record import Interval, ProbeRecord

__all__ = ["predicted_rate", "rate_interval"]

#: A full-length run counts for so many times its seconds: the schedule that decides is its own, to its end or to the
#: passage that failed it.
_FULL_LENGTH = 4.0

#: The least number of probes that say something, and Student's t by degrees of freedom from 1 on: 95 %, to both sides.
_LEAST = 3
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def rate_interval(probes: Sequence[ProbeRecord]) -> Interval | None:
    """Return the interval by the probes of a search; None where too few of them say something."""
    telling = [probe for probe in probes if probe.projected]
    if len(telling) < _LEAST:
        return None
    whole = predicted_rate(telling)
    without = [math.log(predicted_rate([*telling[:place], *telling[place + 1 :]])) for place in range(len(telling))]
    count = len(telling)
    error = math.sqrt((count - 1) ** 2 / count * statistics.variance(without))
    reach = math.exp(_T[min(count - 1, len(_T)) - 1] * error)
    return Interval(
        rate=float(f"{whole:.4g}"), low=float(f"{whole / reach:.4g}"), high=float(f"{whole * reach:.4g}"), probes=count
    )


def predicted_rate(probes: Sequence[ProbeRecord]) -> float:
    """Return the rate at which the first limit is reached, by all probes. One of them must have a projection."""
    points: dict[str, list[Point]] = {}
    for probe in probes:
        seconds = min(probe.took_s, probe.planned_s) * (_FULL_LENGTH if probe.sure else 1.0)
        for name, edge in probe.projected.items():
            points.setdefault(name, []).append(Point(probe.rate, edge, seconds))
    return min(map(meeting_point, points.values()))

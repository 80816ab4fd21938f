"""The highest rate at which a server keeps its limits, by short probes: the score of a candidate of server settings.

A bracket is narrowed: what passes is raised, what fails is lowered, and between the two the next rate is where the
latencies that decide would just keep their limits. It shows which of two servers does more under the same probes; it
does not show what a full-length run does at that rate (`rate_search`).
"""

import math
from collections.abc import Mapping

import numpy as np

from cm4vllm.campaign.search.full_length import FullLength
from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.campaign.search.projection import Window, largest_but
from cm4vllm.campaign.search.rate_search import Prober
from cm4vllm.common.errors import InvalidResult
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict
from cm4vllm.records.searches.settings_search import Score
from cm4vllm.rules import LatencyLimits

#: The probes that the time is enough for, where none ends early; and how narrow a bracket is not narrowed any more.
PROBES, _NARROW = 5, 0.01
#: The first step up or down, as a factor; without an end in sight its logarithm doubles each time, up to the furthest.
_STEP, _FURTHEST = 1.06, 3.0
#: Where fewer queries than this are issued and none counts, the rate is too low for the probe.
_FEW = 10
#: A rate inside a bracket is so far from its ends, as a part of its logarithm.
_INSIDE = 0.2
#: A probe is at least so many answers long, where half of the time is enough for that.
_ANSWERS_LONG = 3
#: The warm-up of a probe: its least share of the probe, its longest time, and its length in mean answers.
_WARM, _MOST_WARM, _ANSWERS_WARM = 1 / 6, 1 / 3, 1.5


def bracket(prober: Prober, scenario: str, start: float, limits: LatencyLimits, seconds: float) -> Score:
    """Probe from the rate `start` on, for `seconds` in all; return the score in a paced scenario.

    Its value lies between the ends of the bracket, where the limits would just be kept; it is the one end where there
    is no other. Raises what the prober raises.
    """
    return _Bracketing(prober, limits, seconds).run(scenario, start)


class _Bracketing:
    """A bracket under way. Of each end the excess is kept: ln(latency that decides / limit), above 0 where it fails."""

    def __init__(self, prober: Prober, limits: LatencyLimits, seconds: float) -> None:
        self._prober = prober
        self._limits = limits.by_name
        self._seconds = seconds
        self._spent = self._answer_s = 0.0
        self._low: tuple[float, float] | None = None
        self._high: tuple[float, float] | None = None

    def run(self, scenario: str, start: float) -> Score:
        rate, step = start, math.log(_STEP)
        each = self._seconds / PROBES
        while self._spent == 0 or self._spent + each <= self._seconds:
            if not self._probe(rate, each):
                each *= 2  # its answers take longer than the probe, or it has hardly a query
                rate *= 2.0 if rate * each < _FEW else 1.0
            elif self._low and self._high:
                if self._high[0] / self._low[0] < 1 + _NARROW:
                    break
                rate = self._between(_INSIDE)
            else:
                step = min(step, math.log(_FURTHEST))
                rate *= math.exp(step if self._low else -step)
                step *= 2
            each = max(each, min(_ANSWERS_LONG * self._answer_s, self._seconds / 2))
        if not (self._low or self._high):
            raise InvalidResult(
                f"no query was counted in {self._spent:.0f} s of probes at {rate:g} queries/s",
                cause="the time of a measurement is too short for answers that long",
            )
        low, high = (end[0] if end else None for end in (self._low, self._high))
        middle = self._between(0.0) if low and high else low or high or 0.0
        return Score(scenario=scenario, value=float(f"{middle:.4g}"), unit="queries/s", low=low, high=high)

    def _probe(self, rate: float, seconds: float) -> bool:
        """Make a probe; say whether a query was counted, or too many were late for that."""
        rate = float(f"{rate:.4g}")
        warm_up = min(max(_WARM * seconds, _ANSWERS_WARM * self._answer_s), _MOST_WARM * seconds)
        full_s = self._prober.full.duration(rate)
        probe, window = self._prober.probe(rate, ProbePlan(seconds=seconds, warm_up_s=warm_up, full_s=full_s))
        self._spent += probe.took_s
        self._answer_s = max(self._answer_s, probe.answer_ms / 1000)
        if not probe.queries and probe.verdict is not Verdict.FAILS:
            return False
        excess = _excess(probe, window, self._limits, self._prober.full)
        if excess <= 0:
            self._low = max(self._low or (0.0, 0.0), (rate, excess))
            if self._high and self._high[0] <= rate:
                self._high = None
        else:
            self._high = min(self._high or (math.inf, 0.0), (rate, excess))
            if self._low and self._low[0] >= rate:
                self._low = None
        return True

    def _between(self, inside: float) -> float:
        """Return the rate at which the excess would be 0, at least the part `inside` away from both ends."""
        assert self._low and self._high  # noqa: S101 - asked for when there are both
        (low, below), (high, above) = self._low, self._high
        part = 0.5 if math.isinf(above) or math.isinf(below) else -below / (above - below)
        return low * math.pow(high / low, min(1 - inside, max(inside, part)))


def _excess(probe: ProbeRecord, window: Window, limits: Mapping[str, float], full: FullLength) -> float:
    """Return ln(latency that decides / limit) of the limit that binds; infinite where too much was not answered."""
    judged, worst = window.judged, -math.inf
    if not probe.queries or probe.growing:
        return math.inf
    for name, limit in limits.items():
        values = window.values(name)
        seen = values[judged & np.isfinite(values)]
        if len(seen):
            decides = largest_but(seen, window.rank(full))
            worst = max(worst, math.log(max(1e-9, decides) / (limit / 1000)))
    if worst <= 0 and probe.verdict is Verdict.FAILS:  # by queries that are not answered yet
        return math.inf
    return worst

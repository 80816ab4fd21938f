"""The steady state of a point, from the client's event log: the block that point.yaml reports (rules §4.4).

The rules name the test for a trend in a short series (§4.4; scripts/steady_state_diagnostics.md of the reference
client): Mann and Kendall's, corrected for autocorrelation by Hamed and Rao (1998). Its statistic is S = the sum of
sign(x_j - x_i) over i < j; its variance is that of independent values, with ties, times a factor from the significant
autocorrelations of the ranks of the series without its slope.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np

from cm4vllm.common.records import Record
from cm4vllm.endpoints.events import SampleTimes
from cm4vllm.rules import PointTerms, WindowRules, endpoints_rules

Status = Literal["windowable", "insufficient_duration", "insufficient_passes", "partial_dataset"]
Verdict = Literal["STEADY STATE", "drifting_up", "drifting_down", "anomaly", "not found"]
State = Literal["Plateau", "Drifting Up", "Drifting Down"]
_NS, _NS_OF_MS = 1e9, 1e6
#: With fewer values no trend is significant.
_LEAST_VALUES = 4
#: Autocorrelations outside of the 95 % range of independent values count.
_SIGNIFICANT = NormalDist().inv_cdf(0.975)


class Window(Record, frozen=True, kw_only=True):
    """Blocks of whole passes, counted from 0 over the run, both ends included; seconds from first to last issue."""

    super_pass_start: int
    super_pass_end: int
    super_pass_size: int
    n_samples: int
    duration_s: float


class Anomaly(Record, frozen=True, kw_only=True):
    """A second steady part after the first: the block that it begins with, and the change of TPOT p50 in percent."""

    super_pass: int
    change_percent: float


class WindowFigures(Record, frozen=True, kw_only=True):
    """The figures over the window: output tokens/s over its seconds of issue, 90th percentiles in ms of its samples."""

    system_tps: float
    ttft_p90_ms: float
    tpot_p90_ms: float


class SteadyState(Record, frozen=True, kw_only=True):
    """The block that point.yaml reports: `windowable` alone makes the figures of the window the official ones.

    `blocks` are all of the run after those left out. `least_variation` is the least, over as many successive blocks as
    a window takes at least, that the gating metric which varies most comes to; None where there are too few blocks.
    """

    status: Status
    verdict: Verdict
    window: Window | None = None
    state: dict[str, State] = {}
    anomaly: Anomaly | None = None
    figures: WindowFigures | None = None
    blocks: int = 0
    least_variation: float | None = None

    @property
    def words(self) -> str:
        """The status and the verdict; without a window, the reason for that."""
        rules = endpoints_rules().window
        begin = f"{self.status}, {self.verdict}"
        if self.window is not None or self.status == "partial_dataset":
            return begin
        if self.least_variation is None:
            return f"{begin}: {self.blocks} passes after the first, and a window takes {rules.passes}"
        return (
            f"{begin}: over {rules.passes} of the {self.blocks} passes after the first, TPOT varies by "
            f"{self.least_variation:.0%} at least; {rules.variation:.0%} are allowed, without a trend"
        )


def steady_state(samples: Sequence[SampleTimes], terms: PointTerms) -> SteadyState:
    """Return the steady state of a point, from its samples in the order in which they were issued.

    The window is the first run of blocks over which every gating metric is a plateau, as long as it stays one.
    """
    rules = endpoints_rules().window
    size = terms.samples_of_a_pass * math.ceil(terms.concurrency / terms.samples_of_a_pass)
    blocks = [samples[start : start + size] for start in range(0, len(samples) - size + 1, size)]
    if not blocks:
        return SteadyState(status="partial_dataset", verdict="not found")
    series = [_gating_metrics(block) for block in blocks]
    if (plateau := _first_plateau(series, rules)) is None:
        return SteadyState(
            status="insufficient_passes",
            verdict=_shape(series[rules.left_out :], rules, "not found"),
            state=_states(series, rules),
            blocks=len(series) - rules.left_out,
            least_variation=_least_variation(series, rules),
        )
    first, last = plateau
    inside = [sample for block in blocks[first : last + 1] for sample in block]
    seconds = (inside[-1].issued_ns - inside[0].issued_ns) / _NS
    later = _later_plateau(series, plateau, rules)
    return SteadyState(
        status="windowable" if seconds >= terms.least_seconds else "insufficient_duration",
        verdict="anomaly" if later else _shape(series[first:], rules, "STEADY STATE"),
        window=Window(
            super_pass_start=first, super_pass_end=last, super_pass_size=size, n_samples=len(inside), duration_s=seconds
        ),
        state=_states(series[first : last + 1], rules),
        anomaly=later,
        figures=_figures(inside, seconds),
        blocks=len(series) - rules.left_out,
        least_variation=_least_variation(series, rules),
    )


def _gating_metrics(block: Sequence[SampleTimes]) -> dict[str, float]:
    """Return the gating metrics of a block in ns; NaN where no answer has a token after its first chunk."""
    tpot = [value for sample in block if (value := sample.tpot_ns) is not None] or [math.nan]
    return {"tpot_p50": _percentile(tpot, 50), "tpot_p90": _percentile(tpot, 90)}


def _percentile(values: Sequence[float], percent: int) -> float:
    """Return the lower of the two values beside the percentile, as the client does."""
    return float(np.percentile(values, percent, method="lower"))


def _figures(samples: Sequence[SampleTimes], seconds: float) -> WindowFigures:
    return WindowFigures(
        system_tps=sum(sample.tokens for sample in samples) / seconds,
        ttft_p90_ms=_percentile([value for sample in samples if (value := sample.ttft_ns) is not None], 90) / _NS_OF_MS,
        tpot_p90_ms=_percentile([tpot for sample in samples if (tpot := sample.tpot_ns) is not None], 90) / _NS_OF_MS,
    )


def _first_plateau(series: Sequence[dict[str, float]], rules: WindowRules) -> tuple[int, int] | None:
    """Return the first and the last block of the earliest plateau, grown as long as it stays one; None without one."""
    for first in range(rules.left_out, len(series) - rules.passes + 1):
        last = first + rules.passes - 1
        if not _is_plateau(series[first : last + 1], rules):
            continue
        while last + 1 < len(series) and _is_plateau(series[first : last + 2], rules):
            last += 1
        return first, last
    return None


def _is_plateau(series: Sequence[dict[str, float]], rules: WindowRules) -> bool:
    return all(state == "Plateau" for state in _states(series, rules).values()) and all(
        _variation([metrics[name] for metrics in series]) <= rules.variation for name in rules.gating
    )


def _states(series: Sequence[dict[str, float]], rules: WindowRules) -> dict[str, State]:
    """Return the state of each gating metric over these blocks; empty where they are too few for a test."""
    states: dict[str, State] = {}
    for name in rules.gating if len(series) >= _LEAST_VALUES else ():
        p, slope = _trend([metrics[name] for metrics in series])
        states[name] = "Plateau" if not p < rules.alpha else "Drifting Up" if slope > 0 else "Drifting Down"
    return states


def _trend(values: Sequence[float]) -> tuple[float, float]:
    """Return whether the values rise or fall: the p value of both directions together, and the median slope per value
    (Theil and Sen).
    """
    series, count = np.asarray(values, dtype=float), len(values)
    first, later = np.triu_indices(count, k=1)
    rises = series[later] - series[first]
    slope = float(np.median(rises / (later - first)))
    score = int(np.count_nonzero(rises > 0) - np.count_nonzero(rises < 0))
    ties = sum(size * (size - 1) * (2 * size + 5) for size in Counter(values).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    factor = _autocorrelation_factor(series - slope * np.arange(1, count + 1))
    if variance == 0 or score == 0:
        return 1.0, slope
    if factor > 0:  # in a short series that alternates it can be negative: then nothing is corrected
        variance *= factor
    z = (score - math.copysign(1, score)) / math.sqrt(variance)
    return 2 * (1 - NormalDist().cdf(abs(z))), slope


def _autocorrelation_factor(detrended: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return by how much the autocorrelation of a series without its slope raises or lowers the variance of S."""
    count, ordered = len(detrended), np.sort(detrended)
    # From 1 on; equal values share the mean of their ranks.
    ranks = (np.searchsorted(ordered, detrended) + np.searchsorted(ordered, detrended, "right") + 1) / 2
    centred = ranks - ranks.mean()
    if (total := float(centred @ centred)) == 0:
        return 1.0
    factor = 0.0
    for lag in range(1, count):
        correlation = float(centred[lag:] @ centred[: count - lag]) / total
        if abs(correlation) > _SIGNIFICANT / math.sqrt(count):
            factor += (count - lag) * (count - lag - 1) * (count - lag - 2) * correlation
    return 1 + 2 / (count * (count - 1) * (count - 2)) * factor


def _variation(values: Sequence[float]) -> float:
    """Return the standard deviation over the mean; infinite where a value is missing or the mean is not positive."""
    mean = float(np.mean(values))
    return float(np.std(values, ddof=1)) / mean if mean > 0 else math.inf


def _least_variation(series: Sequence[dict[str, float]], rules: WindowRules) -> float | None:
    """Return the least variation that a window could have, by its worst gating metric; None without room for one."""
    worst = [
        max(_variation([metrics[name] for metrics in series[first : first + rules.passes]]) for name in rules.gating)
        for first in range(rules.left_out, len(series) - rules.passes + 1)
    ]
    return min((value for value in worst if math.isfinite(value)), default=None)


def _later_plateau(series: Sequence[dict[str, float]], plateau: tuple[int, int], rules: WindowRules) -> Anomaly | None:
    """Return a second plateau that differs from the first by more than the bound of variation; None without one.

    A run that goes on rising or falling after it has a drift, not a second plateau.
    """
    first, last = plateau
    rest = series[last + 1 :]
    later = _first_plateau(rest, msgspec.structs.replace(rules, left_out=0))
    if later is None or any(state != "Plateau" for state in _states(rest[later[0] :], rules).values()):
        return None
    before, after = (
        float(np.mean([metrics[rules.gating[0]] for metrics in part]))
        for part in (series[first : last + 1], rest[later[0] : later[1] + 1])
    )
    if abs(change := after / before - 1) <= rules.variation:
        return None
    return Anomaly(super_pass=last + 1 + later[0], change_percent=100 * change)


def _shape(series: Sequence[dict[str, float]], rules: WindowRules, without_drift: Verdict) -> Verdict:
    """Return the direction in which a metric drifts over these blocks, `without_drift` where none does."""
    states = _states(series, rules).values()
    if "Drifting Up" in states:
        return "drifting_up"
    return "drifting_down" if "Drifting Down" in states else without_drift

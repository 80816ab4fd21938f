"""The steady state of a point, from the client's event log: the block that point.yaml reports (rules §4.4).

Windows and figures are those of the official detector (metrics/steady_state_diagnostics.py of the reference client).
Its words for the outcome are of the rules: `status` says whether the window is long enough to be official, `verdict`
what the detector found over the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import msgspec

from cm4vllm.common.number_texts import percent, seconds
from cm4vllm.common.records import Record
from cm4vllm.endpoints.events import SampleTimes
from cm4vllm.endpoints.windows.super_passes import (
    LeastDuration,
    SuperPass,
    direction,
    issue_seconds,
    least_duration,
    percentile,
    plateaus,
    pooled_tpot,
    super_passes,
    trajectory,
    warm_up,
)
from cm4vllm.endpoints.windows.trend import change_point, variation
from cm4vllm.rules import PointTerms, WindowDuration, WindowRules, endpoints_rules

Status = Literal["windowable", "insufficient_duration", "insufficient_passes", "partial_dataset"]
Verdict = Literal["STEADY STATE", "drifting_up", "drifting_down", "anomaly", "not found"]
State = Literal["Plateau", "Drifting Up", "Drifting Down"]
_STATES: dict[int, State] = {0: "Plateau", 1: "Drifting Up", -1: "Drifting Down"}
_NS_OF_MS = 1e6


class Window(Record, frozen=True, kw_only=True):
    """Blocks of one pass each, counted from 0 over the run, both ends included.

    `n_samples` are those with a first chunk, `duration_s` the seconds from the first issue to the last.
    """

    super_pass_start: int
    super_pass_end: int
    super_pass_size: int
    n_samples: int
    duration_s: float


class Anomaly(Record, frozen=True, kw_only=True):
    """A second level of TPOT after the window: the block that it begins with, counted from 0 over the run.

    `change_percent` is by how much the mean TPOT of a later plateau differs from that of the window.
    """

    super_pass: int
    change_percent: float


class WindowFigures(Record, frozen=True, kw_only=True):
    """The figures over the window: output tokens/s over its seconds of issue, 90th percentiles in ms of its samples.

    The tokens are those after the first chunk of each answer, as the official detector counts.
    """

    system_tps: float
    ttft_p90_ms: float
    tpot_p90_ms: float


class SteadyState(Record, frozen=True, kw_only=True):
    """The block that point.yaml reports: `windowable` alone makes the figures of the window the official ones.

    Where all plateaus are too short, the window is the longest one. `blocks` are those of the run after the `warm_up`
    ones at its start. `drift` has the watched metrics with a trend from the start of the window (without a window, of
    the blocks) to the end of the run. `skipped` are plateaus before the window that are too short. `least_variation` is
    the least, over as many successive blocks as a window takes at least, that the gating metric which varies most comes
    to; None where there are too few blocks. `rules` are those that the window follows, None in an older record.
    """

    status: Status
    verdict: Verdict
    window: Window | None = None
    state: dict[str, State] = {}
    anomaly: Anomaly | None = None
    figures: WindowFigures | None = None
    warm_up: int = 0
    blocks: int = 0
    drift: dict[str, State] = {}
    skipped: int = 0
    least: LeastDuration | None = None
    least_variation: float | None = None
    rules: WindowRules | None = None

    @property
    def words(self) -> str:
        """The status and the verdict, with the reason where the window is not official or not the whole truth."""
        reason = self._why_short() or self._why_none() or self._after_the_window()
        return f"{self.status}, {self.verdict}" + (f": {reason}" if reason else "")

    def _why_short(self) -> str:
        """Return why the window is too short; empty for a window that is long enough, and without one."""
        if self.status != "insufficient_duration" or self.window is None or self.least is None:
            return ""
        return (
            f"TPOT is steady over {self.window.super_pass_end - self.window.super_pass_start + 1} passes, but their "
            f"{seconds(self.window.duration_s)} are too short: a window takes at least {seconds(self.least.all_s)}, "
            f"{_why_so_long(self.least, (self.rules or endpoints_rules().window).duration)}"
        )

    def _why_none(self) -> str:
        """Return why there is no window; empty with one."""
        if self.window is not None:
            return ""
        rules = self.rules or endpoints_rules().window
        if self.status == "partial_dataset":
            return "the run has fewer samples than one pass over the dataset"
        after = f"after the warm-up of {self.warm_up}"
        if self.blocks < rules.passes:
            return f"{self.blocks} passes {after}, and a window takes {rules.passes}"
        if self.least_variation is None:
            return f"no {rules.passes} successive passes {after} have a TPOT"
        # Over so few passes no trend is significant: all that could be a window vary too much.
        return (
            f"over any {rules.passes} of the {self.blocks} passes {after}, TPOT varies by "
            f"{percent(self.least_variation)} or more; {rules.variation:.0%} are allowed"
        )

    def _after_the_window(self) -> str:
        """Return what the run has beside its window; empty where it has nothing."""
        words = [f"plateaus before the window that are too short: {self.skipped}"] if self.skipped else []
        if self.anomaly:
            change = f"{self.anomaly.change_percent:+.0f}%"
            words.append(f"from about pass {self.anomaly.super_pass} on, TPOT changes by {change}")
        elif self.verdict in ("drifting_up", "drifting_down"):
            state, way = ("Drifting Up", "rise") if self.verdict == "drifting_up" else ("Drifting Down", "fall")
            names = ", ".join(name for name, drift in self.drift.items() if drift == state)
            words.append(f"from the window's start to the end of the run, {names} {way}")
        return "; ".join(words)


def _why_so_long(least: LeastDuration, terms: WindowDuration) -> str:
    reasons = {
        "of a point at this concurrency by the rules": least.region_s,
        "as any window of the official detector": least.floor_s,
        f"{terms.latencies:g} times the 90th percentile of the latency": least.latencies_s,
        f"for a mean TPOT that is known to {terms.precision:.0%}": least.precision_s,
    }
    return max(reasons, key=lambda reason: reasons[reason])


@dataclass(frozen=True)
class _Detected:
    """The window as the detector reports it: the plateau number `place` among the blocks after the warm-up.

    It has the blocks `inside`, from block `start` on. `after` are all blocks from there to the end of the run, `later`
    the plateaus after it.
    """

    place: int
    start: int
    inside: Sequence[SuperPass]
    after: Sequence[SuperPass]
    later: Sequence[Sequence[SuperPass]]
    least: LeastDuration

    @property
    def is_steady(self) -> bool:
        """Return True if the window is long enough for the detector."""
        return issue_seconds(self.inside) >= self.least.detected_s


def steady_state(samples: Sequence[SampleTimes], terms: PointTerms, rules: WindowRules) -> SteadyState:
    """Return the steady state of a point, from its samples in the order in which they were issued.

    The window is the first plateau of the gating metrics that is long enough, else the longest one.
    """
    size = terms.samples_of_a_pass
    if len(samples) < size:
        return SteadyState(status="partial_dataset", verdict="not found", rules=rules)
    run = super_passes(samples, size)
    left_out = warm_up(run, rules)
    blocks = run[left_out:]
    detected = _detected(blocks, rules, terms)
    ways = _ways(detected.after if detected else blocks, rules)
    state = SteadyState(
        status="insufficient_passes",
        verdict="not found",
        state=_states(blocks, rules),
        warm_up=left_out,
        blocks=len(blocks),
        drift={name: _STATES[way] for name, way in ways.items() if way},
        least_variation=_least_variation(blocks, rules),
        rules=rules,
    )
    return _with_window(state, blocks, detected, ways, terms, rules) if detected else state


def _ways(blocks: Sequence[SuperPass], rules: WindowRules) -> dict[str, int]:
    """Return for each watched metric whether it rises (1) or falls (-1) over these blocks."""
    return {name: direction(trajectory(blocks, name), rules) for name in rules.watched}


def _with_window(
    state: SteadyState,
    blocks: Sequence[SuperPass],
    detected: _Detected,
    ways: dict[str, int],
    terms: PointTerms,
    rules: WindowRules,
) -> SteadyState:
    """Return the state with the detected window; `ways` are those of the watched metrics from its start on."""
    duration_s = issue_seconds(detected.inside)
    shift, start = _level_shift(blocks, detected, rules), state.warm_up + detected.start
    return msgspec.structs.replace(
        state,
        status="windowable" if duration_s >= detected.least.all_s else "insufficient_duration",
        verdict=_verdict(detected, shift, ways, rules),
        window=Window(
            super_pass_start=start,
            super_pass_end=start + len(detected.inside) - 1,
            super_pass_size=terms.samples_of_a_pass,
            n_samples=sum(len(block.ttft_ns) for block in detected.inside),
            duration_s=duration_s,
        ),
        # A trend that the detector takes for none is none here too.
        state=dict.fromkeys(rules.gating, "Plateau"),
        anomaly=Anomaly(super_pass=state.warm_up + shift[0], change_percent=100 * shift[1]) if shift else None,
        figures=_figures(detected.inside, duration_s),
        skipped=detected.place,
        least=detected.least,
    )


def _detected(blocks: Sequence[SuperPass], rules: WindowRules, terms: PointTerms) -> _Detected | None:
    """Return the first plateau that is long enough for the detector, else the longest one; None without any."""
    ends = plateaus(blocks, rules)
    parts = [blocks[start:end] for start, end in ends]
    candidates = [
        _Detected(place, start, part, blocks[start:], parts[place + 1 :], least_duration(part, rules, terms))
        for place, ((start, _), part) in enumerate(zip(ends, parts, strict=True))
    ]
    longest = max(candidates, key=lambda candidate: issue_seconds(candidate.inside), default=None)
    return next((candidate for candidate in candidates if candidate.is_steady), longest)


def _level_shift(blocks: Sequence[SuperPass], detected: _Detected, rules: WindowRules) -> tuple[int, float] | None:
    """Return the block from which on TPOT has another level, and its change over the window's; None without one.

    It takes a later plateau whose mean TPOT differs, and a significant change in the means of all blocks.
    """
    before = _mean_tpot(detected.inside)
    for part in detected.later if before > 0 else ():
        change = (_mean_tpot(part) - before) / before
        if abs(change) > rules.level_shift:
            place = change_point([block.mean_tpot_ns for block in blocks], alpha=rules.alpha)
            return None if place is None else (place, change)
    return None


def _verdict(detected: _Detected, shift: tuple[int, float] | None, ways: dict[str, int], rules: WindowRules) -> Verdict:
    """Return the shape of a run with a plateau.

    A fall is one of the gating metrics (rules §4.4); the detector also warns of a rise of the others that it watches.
    """
    if not detected.is_steady:
        return "not found"
    if shift:
        return "anomaly"
    if 1 in ways.values():
        return "drifting_up"
    return "drifting_down" if any(ways[name] < 0 for name in rules.gating) else "STEADY STATE"


def _states(blocks: Sequence[SuperPass], rules: WindowRules) -> dict[str, State]:
    """Return the trend of each gating metric over these blocks; empty where they are too few for a test."""
    series = {name: trajectory(blocks, name) for name in rules.gating}
    return {name: _STATES[direction(values, rules)] for name, values in series.items() if len(values) >= rules.passes}


def _figures(blocks: Sequence[SuperPass], duration_s: float) -> WindowFigures:
    ttft = sorted(chain.from_iterable(block.ttft_ns for block in blocks))
    return WindowFigures(
        system_tps=sum(block.tokens for block in blocks) / duration_s if duration_s > 0 else 0.0,
        ttft_p90_ms=percentile(ttft, 90) / _NS_OF_MS,
        tpot_p90_ms=percentile(pooled_tpot(blocks), 90) / _NS_OF_MS,
    )


def _least_variation(blocks: Sequence[SuperPass], rules: WindowRules) -> float | None:
    """Return the least variation that a window could have, by its worst gating metric; None without room for one."""
    series = [[block.metric(name) for block in blocks] for name in rules.gating]
    places = range(len(blocks) - rules.passes + 1)
    cut = [[values[place : place + rules.passes] for values in series] for place in places]
    complete = [[[value for value in part if value is not None] for part in parts] for parts in cut]
    worst = [
        max(variation(part) for part in parts) for parts in complete if all(len(part) == rules.passes for part in parts)
    ]
    return min(worst, default=None)


def _mean_tpot(blocks: Sequence[SuperPass]) -> float:
    values = pooled_tpot(blocks)
    return sum(values) / len(values)

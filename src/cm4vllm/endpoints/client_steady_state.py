"""The steady state of a point as the reference client found it during the run, and wrote it into its summary.

The client has it from the commit on that computes it inside the run (settings.steady_state of its configuration; key
`steady_state` of result_summary.json, docs/steady_state_diagnostics.md of mlcommons/endpoints).
"""

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cm4vllm.endpoints.steady_state import Anomaly, State, SteadyState, Verdict, Window, WindowFigures
from cm4vllm.endpoints.windows.super_passes import LeastDuration
from cm4vllm.results.endpoints.endpoints_harness import count, number, part
from cm4vllm.rules import PointTerms, WindowRules

_NS_OF_MS = 1e6
#: The client's words for the trend of a metric from the window to the end of the run.
_STATES: Mapping[object, State] = {"steady": "Plateau", "up": "Drifting Up", "down": "Drifting Down"}
_PLATEAU: State = "Plateau"


def steady_state_of(summary: Mapping[str, Any], terms: PointTerms, rules: WindowRules) -> SteadyState | None:
    """Return the steady state in the client's summary of a run; None where the summary has none that can be read.

    `terms` have the seconds that the rules ask for at the point's concurrency, which the client does not know.
    """
    block = part(summary, "steady_state")
    size, passes, left_out = (count(block, name) for name in ("superpass_size", "n_super_passes", "warmup"))
    if left_out is None and passes is not None and (kept := count(block, "n_post_warmup")) is not None:
        left_out = passes - kept
    if not isinstance(block.get("found"), bool) or size is None or passes is None or left_out is None:
        return None
    trends, window = _trends(block, rules), _window(block, size, left_out)
    state = SteadyState(
        status="insufficient_passes" if passes else "partial_dataset",
        verdict="not found",
        state={name: trends[name] for name in rules.gating if name in trends},
        warm_up=left_out,
        blocks=max(0, passes - left_out),
        drift={name: trend for name, trend in trends.items() if trend != _PLATEAU},
        rules=rules,
    )
    return _with_window(state, window, block, terms, rules) if window else state


def _with_window(
    state: SteadyState, window: Window, block: Mapping[str, Any], terms: PointTerms, rules: WindowRules
) -> SteadyState:
    long_enough = block["found"] and window.duration_s >= terms.least_seconds
    anomaly = _anomaly(block, state.warm_up)
    return replace(
        state,
        status="windowable" if long_enough else "insufficient_duration",
        verdict=_verdict(anomaly, state.drift, rules) if block["found"] else "not found",
        window=window,
        # The client takes no window in which a gating metric has a trend; its trends are those after the window.
        state=dict.fromkeys(rules.gating, _PLATEAU),
        anomaly=anomaly,
        figures=_figures(block),
        skipped=count(part(block, "window"), "skipped_short") or 0,
        least=_least(block, terms),
    )


def _least(block: Mapping[str, Any], terms: PointTerms) -> LeastDuration | None:
    """Return the seconds that the window takes at least; None where the client does not state what asks for them."""
    short = part(block, "short_window")
    floor, latencies, precision = (number(short, f"t_{name}_s") for name in ("floor", "relaxation", "precision"))
    if floor is None or latencies is None or precision is None:
        return None
    return LeastDuration(floor_s=floor, latencies_s=latencies, precision_s=precision, region_s=terms.least_seconds)


def _window(block: Mapping[str, Any], size: int, warm_up: int) -> Window | None:
    """Return the window, its blocks counted from the begin of the run; the client counts them after its warm-up."""
    window = part(block, "window")
    start, end, samples = (count(window, name) for name in ("sp_lo", "sp_hi", "n_samples"))
    seconds = number(part(block, "short_window"), "window_duration_s")
    if start is None or not end or samples is None or seconds is None:
        return None
    return Window(
        super_pass_start=warm_up + start,
        super_pass_end=warm_up + end - 1,
        super_pass_size=size,
        n_samples=samples,
        duration_s=seconds,
    )


def _trends(block: Mapping[str, Any], rules: WindowRules) -> dict[str, State]:
    """Return the state of each watched metric that the client states a trend of."""
    trends = part(block, "global_trend")
    known = {name: _STATES.get(str(trends.get(name))) for name in rules.watched}
    return {name: state for name, state in known.items() if state}


def _verdict(anomaly: Anomaly | None, drift: Mapping[str, State], rules: WindowRules) -> Verdict:
    """Return the shape of a run with a steady window, as that of a state which is computed here."""
    if anomaly:
        return "anomaly"
    if "Drifting Up" in drift.values():
        return "drifting_up"
    return "drifting_down" if any(name in drift for name in rules.gating) else "STEADY STATE"


def _anomaly(block: Mapping[str, Any], warm_up: int) -> Anomaly | None:
    shift = part(block, "anomaly")
    place, change = count(shift, "change_point_sp"), shift.get("delta_pct")
    if shift.get("detected") is not True or place is None or not isinstance(change, int | float):
        return None
    return Anomaly(super_pass=warm_up + place, change_percent=change) if math.isfinite(change) else None


def _figures(block: Mapping[str, Any]) -> WindowFigures | None:
    """Return the figures over the window; the client names its times with their unit, or without."""
    system = number(part(block, "tps"), "system")
    ttft, tpot = (_p90(part(block, name)) for name in ("ttft", "tpot"))
    if system is None or ttft is None or tpot is None:
        return None
    return WindowFigures(system_tps=system, ttft_p90_ms=ttft / _NS_OF_MS, tpot_p90_ms=tpot / _NS_OF_MS)


def _p90(times: Mapping[str, Any]) -> float | None:
    return number(times, "p90_ns" if "p90_ns" in times else "p90")

"""The steady state of a point as the reference client found it during the run, and wrote it into its summary.

The client has it from the commit on that computes it inside the run (settings.steady_state of its configuration; key
`steady_state` of result_summary.json, docs/steady_state_diagnostics.md of mlcommons/endpoints).
"""

import math
from collections.abc import Mapping
from typing import Any

from cm4vllm.endpoints.steady_state import Anomaly, State, SteadyState, Verdict, Window, WindowFigures
from cm4vllm.results.endpoints.endpoints_harness import count, number, part
from cm4vllm.rules import PointTerms, endpoints_rules

_NS_OF_MS = 1e6
#: The client's words for the trend of a metric from the window to the end of the run.
_STATES: Mapping[object, State] = {"steady": "Plateau", "up": "Drifting Up", "down": "Drifting Down"}
_PLATEAU: State = "Plateau"


def steady_state_of(summary: Mapping[str, Any], terms: PointTerms) -> SteadyState | None:
    """Return the steady state in the client's summary of a run; None where the summary has none that can be read.

    The client rejects a window that is shorter than 600 s, or than it takes for a precise figure; the rules ask for
    more seconds at a high concurrency (`terms`), which count here, too.
    """
    block = part(summary, "steady_state")
    size, passes, warm_up = (count(block, name) for name in ("superpass_size", "n_super_passes", "warmup"))
    if warm_up is None and passes is not None and (kept := count(block, "n_post_warmup")) is not None:
        warm_up = passes - kept
    if not isinstance(block.get("found"), bool) or size is None or passes is None or warm_up is None:
        return None
    window, trends = _window(block, size, warm_up), _trends(block)
    if window is None:
        return SteadyState(
            status="insufficient_passes" if passes else "partial_dataset",
            verdict=_direction(trends, "not found"),
            state=trends,
            blocks=max(0, passes - warm_up),
        )
    long_enough = block["found"] and window.duration_s >= terms.least_seconds
    anomaly = _anomaly(block, warm_up)
    return SteadyState(
        status="windowable" if long_enough else "insufficient_duration",
        verdict="anomaly" if anomaly else _direction(trends, "STEADY STATE"),
        window=window,
        # The client takes no window in which a gating metric has a trend; its trends are those after the window.
        state=dict.fromkeys(endpoints_rules().window.gating, _PLATEAU),
        anomaly=anomaly,
        figures=_figures(block),
        blocks=max(0, passes - warm_up),
    )


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


def _trends(block: Mapping[str, Any]) -> dict[str, State]:
    """Return the state of each gating metric that the client states a trend of."""
    trends = part(block, "global_trend")
    known = {name: _STATES.get(str(trends.get(name))) for name in endpoints_rules().window.gating}
    return {name: state for name, state in known.items() if state}


def _direction(trends: Mapping[str, State], without: Verdict) -> Verdict:
    if "Drifting Up" in trends.values():
        return "drifting_up"
    return "drifting_down" if "Drifting Down" in trends.values() else without


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

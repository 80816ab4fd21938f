"""Measures one process of the client during a run: processor time, garbage collector pauses, lags."""

from __future__ import annotations

import gc
import resource
import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cm4vllm.records.client import ProcessRecord, Spread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


#: Seconds between two measurements of how late the event loop is.
LAG_INTERVAL_S = 0.02


def spread(times_ms: Sequence[float]) -> Spread | None:
    """Return the median, the 99th percentile and the greatest of times in ms; None of none."""
    if not times_ms:
        return None
    ordered = sorted(times_ms)
    p50, p99 = (ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.99))
    return Spread(p50_ms=round(p50, 3), p99_ms=round(p99, 3), max_ms=round(ordered[-1], 3))


def stop_garbage_collection() -> None:
    """Stop the garbage collector, and exempt all present objects: nothing on the path of a query forms cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()


class ProcessMetrics:
    """Measures its process from its creation on. Times in ns are those of time.monotonic_ns."""

    def __init__(self, name: str) -> None:
        """Begin to measure this process: processor time, pauses of the garbage collector, lags."""
        self._name = name
        self._cpu = time.process_time()
        self._begin = time.monotonic()
        self._pauses: list[float] = []
        self._pause_begin = 0.0
        self._loop_lags = array("d")
        self._issue_lags = array("d")
        gc.callbacks.append(self._collected)

    def measure_loop_lag(self, loop: AbstractEventLoop) -> None:
        """Measure at intervals how late `loop` runs what is due."""
        due = loop.time() + LAG_INTERVAL_S

        def measure() -> None:
            """Note by how many ms the event loop is late, and measure again after the interval."""
            nonlocal due
            now = loop.time()
            self._loop_lags.append(max(0.0, now - due) * 1e3)
            due = now + LAG_INTERVAL_S
            loop.call_at(due, measure)

        loop.call_at(due, measure)

    def add_issue_lag(self, issued_ns: int) -> None:
        """Record the time since a query was issued that is being sent now."""
        self._issue_lags.append((time.monotonic_ns() - issued_ns) / 1e6)

    def record(self, end_lags: Sequence[float] = ()) -> ProcessRecord:
        """Return what was measured, with the times in ms from the last token of some answers to their ends."""
        wall = time.monotonic() - self._begin
        gc.callbacks.remove(self._collected)
        return ProcessRecord(
            name=self._name,
            cpu_s=round(time.process_time() - self._cpu, 3),
            wall_s=round(wall, 3),
            peak_memory_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            gc_pauses=len(self._pauses),
            gc_longest_ms=round(max(self._pauses, default=0.0), 3),
            loop_lag=spread(self._loop_lags),
            issue_lag=spread(self._issue_lags),
            end_lag=spread(end_lags),
        )

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._pause_begin = time.perf_counter()
        else:
            self._pauses.append((time.perf_counter() - self._pause_begin) * 1e3)

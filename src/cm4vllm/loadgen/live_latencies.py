"""The latencies of a Server run while it goes on, as LoadGen judges them, for who may end the run early."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cm4vllm.loadgen.messages import Latencies, Timed
from cm4vllm.loadgen.sample_times import SampleTimes

if TYPE_CHECKING:
    from cm4vllm.loadgen.workers import Answer, WholeAnswer

__all__ = ["LiveLatencies"]

_MS = 1e6


class LiveLatencies(SampleTimes):
    """Keeps the times of the open samples beside the record of all of them; `take` is called in a third thread.

    TTFT is counted from the moment at which LoadGen issued the sample, TPOT over the tokens after the first one.
    """

    def __init__(self, ttft_limit_ms: float | None) -> None:
        super().__init__()
        self._limit_ns = math.inf if ttft_limit_ms is None else ttft_limit_ms * _MS
        # Filled in two threads and emptied in a third. A sample's issue may be noted after its first token, since it is
        # noted behind the sending: what comes too early waits for it.
        self._events: deque[tuple[int, int, int, int]] = deque()
        self._open: dict[int, tuple[int, int]] = {}
        self._early: dict[int, list[tuple[int, int, int]]] = {}
        self._begin_ns = 0
        self._issued_count = 0

    def issued(self, now_ns: int, samples: Iterable[tuple[int, int, int]]) -> None:
        samples = list(samples)
        self._events.extend((_ISSUED, key, now_ns, 0) for key, _, _ in samples)
        super().issued(now_ns, samples)

    def first_tokens(self, now_ns: int, answers: Sequence[Answer]) -> None:
        super().first_tokens(now_ns, answers)
        self._events.extend((_FIRST, key, now_ns, 0) for key, _, _ in answers)

    def completed(self, now_ns: int, answers: Sequence[WholeAnswer]) -> None:
        super().completed(now_ns, answers)
        self._events.extend((_ENDED, key, now_ns, tokens) for key, _, tokens, _ in answers)

    def take(self) -> Latencies:
        """Return the latencies since the last call, and the requests that are open now."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        now_ns = time.monotonic_ns()
        answers: list[Timed] = []
        for kind, key, at_ns, tokens in events:
            if kind == _ISSUED:
                self._begin_ns = self._begin_ns or at_ns
                self._issued_count += 1
                self._open[key] = (at_ns, 0)
                for early in self._early.pop(key, ()):
                    answers += self._event(key, *early)
            elif key in self._open:
                answers += self._event(key, kind, at_ns, tokens)
            else:
                self._early.setdefault(key, []).append((kind, at_ns, tokens))
        waiting = self._open.values()
        return Latencies(
            elapsed_s=(now_ns - self._begin_ns) / 1e9 if self._begin_ns else 0.0, answers=answers,
            issued=self._issued_count,
            overdue=sum(not first and now_ns - issued > self._limit_ns for issued, first in waiting),
            oldest_open_s=min((issued - self._begin_ns) / 1e9 for issued, _ in waiting) if waiting else None)

    def _event(self, key: int, kind: int, at_ns: int, tokens: int) -> list[Timed]:
        """Note a first token; return the times of an answer that has ended."""
        issued, first = self._open[key]
        if kind == _FIRST:
            self._open[key] = (issued, at_ns)
            return []
        del self._open[key]
        return [self._timed(issued, first, at_ns, tokens)]

    def _timed(self, issued: int, first: int, last: int, tokens: int) -> Timed:
        first = first or last
        return Timed((issued - self._begin_ns) / 1e9, (first - issued) / _MS,
                     (last - first) / _MS / (tokens - 1) if tokens > 1 else None, (last - issued) / _MS)


_ISSUED, _FIRST, _ENDED = range(3)

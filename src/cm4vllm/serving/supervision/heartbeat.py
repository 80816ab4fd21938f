"""Check that a run's servers, whose processes are up, still respond: made at each sample of their metrics.

A server is stuck when, in several samples in a row,

- one of its processes is stopped, as by SIGSTOP or a debugger (only of servers started by cm4vllm);
- it does not answer, and the client receives no token;
- it has requests open, and nothing of one of its engines moves: no request, no token, not the use of its KV cache.

Samples are counted, and not seconds: a run that was itself suspended for a while finds its servers as they are.
"""

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.serving.supervisor import descendants, title_of

#: Samples in a row at which a process is stopped: a profiler stops one for a moment.
STOPPED_LOOKS = 3
#: Samples in a row without an answer, each of which waits for it, while the client receives no token: a server from
#: which tokens come works, whatever it does with this page. One of several that has stopped is found when the others
#: have answered all that they were asked.
SILENT_LOOKS = 3
#: The largest value that is taken for a count or for seconds: integers above it have no exact float (IEEE 754).
_MOST = float(2**53)
#: Samples in a row without a change: 300 s at a sample every 2 s, as long as vLLM lets its workers take for one step
#: (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS) before it ends by itself.
STANDSTILL_LOOKS = 150
#: Seconds without a token while requests are open, for servers that say nothing of themselves: a whole answer of a
#: large model may be long in coming.
NO_TOKEN_S = 3600.0

#: The counters that move while an engine works. The engine is a label: a server may have several.
_STATE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|prompt_tokens_total|generation_tokens_total)"
    r'\{[^}\n]{0,999}?engine="([^"\n]{0,99})"[^}\n]{0,999}\} (\S{1,99})',
    re.MULTILINE,
)
_SHOWN_WORDS = 4
_STOPPED = "T"  # proc(5), /proc/pid/stat: stopped by a signal; "t" is a debugger's, which lasts as long as it looks


@dataclass
class _Engine:
    state: dict[str, float]
    still: int = 0

    @property
    def requests(self) -> int:
        return int(self.state.get("num_requests_running", 0) + self.state.get("num_requests_waiting", 0))


@dataclass
class Heartbeat:
    """The state of the servers of a run. `reason` says why one of them is stuck, and is empty while all work.

    `supervisors` are the endpoints of the servers that we started, by the process that supervises each.
    `open_requests` is the number of requests without an answer yet, `tokens` the number of tokens that the client has
    received so far; the client states both by `client_received`.
    """

    supervisors: Mapping[int, str] = field(default_factory=dict)
    interval_s: float = 2.0
    open_requests: int = 0
    tokens: int = 0
    reason: str = ""
    _moved_at: float = field(default_factory=time.monotonic)
    _stopped: dict[tuple[str, str], int] = field(default_factory=dict)
    _silent: dict[str, tuple[int, int]] = field(default_factory=dict)
    _engines: dict[tuple[str, str], _Engine] = field(default_factory=dict)

    def client_received(self, tokens: int, open_requests: int) -> None:
        """Note the client's progress: the tokens received so far, and the number of requests that it waits for."""
        now = time.monotonic()
        if tokens != self.tokens or not self.open_requests:
            self._moved_at = now
        self.tokens, self.open_requests = tokens, open_requests
        if open_requests and now - self._moved_at > NO_TOKEN_S:
            self._stuck(f"{open_requests} requests are open, and no token has come for {now - self._moved_at:.0f} s")

    def look_at_processes(self) -> bool:
        """Return True if a process of the servers is stopped, and take note of it."""
        stopped = [(endpoint, name) for pid, endpoint in self.supervisors.items() if (name := stopped_process(pid))]
        self._stopped = {process: self._stopped.get(process, 0) + 1 for process in stopped}
        for (endpoint, name), looks in self._stopped.items():
            if looks >= STOPPED_LOOKS:
                self._stuck(f"{endpoint}: its process {name} is stopped, as by SIGSTOP or a debugger")
        return bool(stopped)

    def silent(self, endpoint: str, waited_s: float) -> None:
        """Take note of a server that did not answer."""
        looks, tokens_before = self._silent.get(endpoint, (0, self.tokens))
        looks = 1 + (looks if self.tokens == tokens_before else 0)
        self._silent[endpoint] = looks, self.tokens
        if looks >= SILENT_LOOKS:
            self._stuck(
                f"{endpoint} answered none of the last {looks} requests for its /metrics, each of which waited "
                f"{waited_s:g} s"
            )

    def answered(self, endpoint: str, page: str) -> None:
        """Note the values of a server's /metrics, as far as they can be such values."""
        self._silent.pop(endpoint, None)
        states: dict[str, dict[str, float]] = {}
        for name, engine, text in _STATE.findall(page):
            with contextlib.suppress(ValueError):
                if possible(value := float(text)):
                    states.setdefault(engine, {})[name] = value
        for number, state in states.items():
            engine = self._engines.setdefault((endpoint, number), _Engine({}))
            stands = state == engine.state and (engine.requests or self.open_requests)
            engine.state, engine.still = state, engine.still + 1 if stands else 0
        nothing_moves = all(engine.still >= STANDSTILL_LOOKS for engine in self._engines.values())
        for (where, number), engine in self._engines.items():
            if engine.still >= STANDSTILL_LOOKS and (engine.requests or nothing_moves):
                waiting = f"{engine.requests} requests" if engine.requests else f"{self.open_requests} requests open"
                self._stuck(
                    f"{where}, engine {number}: {waiting}, and no progress for {engine.still * self.interval_s:.0f} s"
                )

    def _stuck(self, reason: str) -> None:
        self.reason = self.reason or reason


def possible(value: float) -> bool:
    """Return True if a value can be one of these metrics: finite, not negative, and exact as a floating number."""
    return 0 <= value <= _MOST


def stopped_process(supervisor: int) -> str:
    """Return the name and number of a process of a supervisor's server that is stopped, empty where none is."""
    for pid in descendants(supervisor):
        with contextlib.suppress(OSError, ValueError):
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == _STOPPED:
                program, *words = title_of(pid).split()[:_SHOWN_WORDS]
                return f"{' '.join([Path(program).name, *words])} ({pid})"
    return ""

"""Load of the machine during a run: the shares of server, client and others, and slowed-down processors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from cm4vllm.hardware.machine_samples import processor_seconds
from cm4vllm.hardware.throttling import throttled, throttling
from cm4vllm.loadgen.records import MachineLoad
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.supervisor import descendants

__all__ = ["MachineMeter"]

_TICKS = os.sysconf("SC_CLK_TCK")
#: proc(5), /proc/pid/stat, counted from the field behind the name: utime, stime, cutime, cstime.
_TIMES = slice(11, 15)


class MachineMeter:
    """Measures the machine from its creation on. Its own are this process, its children, and the server's processes."""

    def __init__(self, server: ServerRecord) -> None:
        self._supervisors = tuple(server.supervisors)
        # Ray starts the workers, not the server: their processes are not known here. Nor are those of other nodes.
        elsewhere = any(node.launcher != "local" for node in server.nodes)
        by_ray = server.options.get("distributed-executor-backend") == "ray"
        self._knows_server = server.owned and not by_ray and not elsewhere
        self._throttling = throttling()
        self._begin = time.monotonic()
        self._machine = processor_seconds()
        self._own = self._own_s()

    def load(self) -> MachineLoad | None:
        """Return the load measured until now; None where the kernel shows none. The client's processes have ended."""
        before, after = self._machine, processor_seconds()
        if before is None or after is None:
            return None
        return MachineLoad(
            processors=os.cpu_count() or 1,
            wall_s=round(time.monotonic() - self._begin, 3),
            busy_s=round(after[0] - before[0], 2),
            stolen_s=round(after[1] - before[1], 2),
            own_s=round(max(0.0, self._own_s() - self._own), 2) if self._knows_server else None,
            throttled=throttled(self._throttling, throttling()),
        )

    def _own_s(self) -> float:
        mine = os.times()
        pids = [pid for supervisor in self._supervisors for pid in (supervisor, *descendants(supervisor))]
        return mine.user + mine.system + mine.children_user + mine.children_system + _processes_s(pids)


def _processes_s(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of their children that have ended."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            total += sum(map(int, fields[_TIMES]))
    return total / _TICKS

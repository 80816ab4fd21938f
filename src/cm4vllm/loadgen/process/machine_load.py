"""Load of the machine during a run: the shares of server, client and others, and slowed-down processors."""

from __future__ import annotations

import contextlib
import os
import time

import psutil
from msgspec.structs import replace

from cm4vllm.hardware.machine_samples import MachineSample, machine_sample
from cm4vllm.hardware.throttling import throttled
from cm4vllm.loadgen.records import MachineLoad
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.supervisor import descendants

__all__ = ["MachineMeter", "load_between"]


class MachineMeter:
    """Measures the machine from its creation on. Its own are this process, its children, and the server's processes."""

    def __init__(self, server: ServerRecord) -> None:
        self._supervisors = tuple(server.supervisors)
        # Ray starts the workers, not the server: their processes are not known here. Nor are those of other nodes.
        elsewhere = any(node.launcher != "local" for node in server.nodes)
        by_ray = server.options.get("distributed-executor-backend") == "ray"
        self._knows_server = server.owned and not by_ray and not elsewhere
        self._begin = time.monotonic()
        self._first = machine_sample(self._begin)
        self._own = self._own_s()

    def load(self) -> MachineLoad | None:
        """Return the load measured until now; None where the kernel shows none. The client's processes have ended."""
        load = load_between(self._first, machine_sample(self._begin))
        if load is None or not self._knows_server:
            return load
        return replace(load, own_s=round(max(0.0, self._own_s() - self._own), 2))

    def _own_s(self) -> float:
        """Return the processor time of its own processes, and of their children that have ended."""
        pids = [pid for supervisor in self._supervisors for pid in (supervisor, *descendants(supervisor))]
        total = 0.0
        for pid in (os.getpid(), *pids):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total


def load_between(first: MachineSample, last: MachineSample) -> MachineLoad | None:
    """Return the load of a machine between two samples; None if the kernel does not show it."""
    if first.busy_s is None or last.busy_s is None:
        return None
    return MachineLoad(
        processors=last.processors,
        wall_s=round(last.at_s - first.at_s, 3),
        busy_s=round(last.busy_s - first.busy_s, 2),
        stolen_s=round((last.stolen_s or 0.0) - (first.stolen_s or 0.0), 2),
        throttled=throttled(first.throttled, last.throttled),
    )

"""What the system allows a client to open, and what a run may need: too little is refused before it begins."""

from __future__ import annotations

import math
import resource
from pathlib import Path

from cm4vllm.common.errors import RunFailed
from cm4vllm.loadgen.client import SPARE
from cm4vllm.loadgen.records import RunSettings

__all__ = ["connections_of", "require_files", "require_ports"]

#: File descriptors of a worker beside its connections: the interpreter's, the socket pair, the event loop's.
FILES_BESIDE = 64

_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def connections_of(settings: RunSettings) -> int:
    """Return the connections that a run may need at a time, over all servers and workers.

    Where LoadGen paces the queries that is the rate times the longest that an answer takes when each is as slow as the
    limits allow (what needs more has lost its result anyhow), and the spare ones.
    """
    limits = settings.terms.limits
    if not settings.terms.paced or limits is None:
        return settings.max_in_flight
    longest_s = (limits.latency_ms or (limits.ttft_ms or 0) + settings.max_tokens * (limits.tpot_ms or 0)) / 1e3
    spare = 2 * SPARE * len(settings.server.endpoints) * (settings.num_workers or 1)
    return math.ceil(settings.target_qps * longest_s) + spare


def require_files(settings: RunSettings, workers: int) -> None:
    """Raise this process's limit of open files to what the system allows, which its workers inherit.

    Raises RunFailed when that is too little for the share of each worker.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = math.ceil(connections_of(settings) / workers) + FILES_BESIDE
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise RunFailed(
            f"the run may need {needed:,} open files in a process of the client, {hard:,} are allowed",
            cause="each open request has its own connection",
            remedy=f"raise the limit before the run: ulimit -Hn {needed}; or spread them: --num_workers={workers * 2}",
        )


def require_ports(settings: RunSettings) -> None:
    """Raise RunFailed when the system has too few local ports for the connections to one server."""
    try:
        first, last = map(int, _PORT_RANGE.read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return  # not Linux: its limit is not known
    endpoints = settings.server.endpoints
    needed = math.ceil(connections_of(settings) / len(endpoints))
    if needed > last - first + 1 and not all(endpoint.startswith("unix:") for endpoint in endpoints):
        raise RunFailed(
            f"the run may need {needed:,} connections to a server, the system has {last - first + 1:,} local ports",
            cause=f"{_PORT_RANGE} is {first} to {last}",
            remedy="widen it: sysctl net.ipv4.ip_local_port_range='1024 65535'; or use more servers",
        )

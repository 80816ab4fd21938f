"""A vLLM server's needs against the machine's limits: processes that hold connections, shared memory.

Read in vLLM 0.32.0: entrypoints/cli/serve.py, v1/executor/multiproc_executor.py,
distributed/device_communicators/shm_broadcast.py.
"""

import math
from collections.abc import Mapping

from cm4vllm.records.vllm.given_options import OptionValue, whole_number

#: File descriptors of vLLM's HTTP process beside the connections: 30 when nothing is open (0.32.0, one engine).
SERVER_FILES_BESIDE = 64
#: A ring buffer between the engine and its workers: so many chunks of so many bytes. vLLM ends where /dev/shm has less
#: free than one of them takes; it takes the memory itself only as messages fill it.
_CHUNKS, _CHUNK_BYTES = 10, 24 * 2**20
#: Executors whose workers are not further processes on this machine.
_OTHER_EXECUTORS = ("uni", "ray", "external_launcher")


def api_processes(options: Mapping[str, OptionValue]) -> int:
    """Return how many processes of a server take connections, which it spreads over them.

    vLLM starts as many as it has data-parallel engines where --api-server-count does not say it.
    """
    return whole_number(options, "api-server-count") or whole_number(options, "data-parallel-size") or 1


def worker_count(options: Mapping[str, OptionValue]) -> int:
    """Return how many workers a server has, each with a GPU of its own."""
    return engine_workers(options) * (whole_number(options, "data-parallel-size") or 1)


def local_workers(options: Mapping[str, OptionValue]) -> int:
    """Return how many workers a server has on this machine; 0 where that is not known, as others may have some."""
    if whole_number(options, "nnodes") or options.get("distributed-executor-backend") in _OTHER_EXECUTORS[1:]:
        return 0
    engines = whole_number(options, "data-parallel-size-local") or whole_number(options, "data-parallel-size") or 1
    return engine_workers(options) * engines


def uses_ray(options: Mapping[str, OptionValue]) -> bool:
    """Return True if Ray starts workers of a server."""
    return "ray" in (options.get("distributed-executor-backend"), options.get("data-parallel-backend"))


def engine_workers(options: Mapping[str, OptionValue]) -> int:
    """Return how many workers each data-parallel engine of a server has."""
    kinds = ("tensor", "pipeline", "prefill-context")
    sizes = (whole_number(options, f"{kind}-parallel-size") for kind in kinds)
    return math.prod(size or 1 for size in sizes)


def ring_buffer_bytes(options: Mapping[str, OptionValue]) -> int:
    """Return the bytes that /dev/shm must have free for a server to start, 0 where its workers do not use it."""
    if engine_workers(options) == 1 or options.get("distributed-executor-backend") in _OTHER_EXECUTORS:
        return 0
    return _CHUNKS * _CHUNK_BYTES

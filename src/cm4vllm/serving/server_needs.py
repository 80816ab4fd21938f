"""What a vLLM server of a command line needs of the machine's limits: processes that hold connections, shared memory.

Read in vLLM 0.32.0: entrypoints/cli/serve.py, v1/executor/multiproc_executor.py,
distributed/device_communicators/shm_broadcast.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from cm4vllm.serving.fixed_options import written_in_full

__all__ = ["SERVER_FILES_BESIDE", "api_processes", "option_value", "ring_buffer_bytes"]

#: File descriptors of vLLM's HTTP process beside the connections: 30 when nothing is open (0.32.0, one engine).
SERVER_FILES_BESIDE = 64
#: A ring buffer between the engine and its workers: so many chunks of so many bytes. vLLM ends where /dev/shm has less
#: free than one of them takes; it takes the memory itself only as messages fill it.
_CHUNKS, _CHUNK_BYTES = 10, 24 * 2**20
#: Executors whose workers are not further processes on this machine.
_OTHER_EXECUTORS = ("uni", "ray", "external_launcher")


def api_processes(words: Sequence[str]) -> int:
    """Return how many processes of a server take connections, which it spreads over them.

    vLLM starts as many as it has data-parallel engines where --api-server-count does not say it.
    """
    return _count(words, "--api-server-count", "-asc") or _count(words, "--data-parallel-size", "-dp") or 1


def ring_buffer_bytes(words: Sequence[str]) -> int:
    """Return the bytes that /dev/shm must have free for a server to start, 0 where its workers do not use it."""
    workers = (_count(words, "--tensor-parallel-size", "-tp") or 1) * (
        _count(words, "--pipeline-parallel-size", "-pp") or 1
    )
    if workers == 1 or option_value(words, "--distributed-executor-backend") in _OTHER_EXECUTORS:
        return 0
    return _CHUNKS * _CHUNK_BYTES


def option_value(words: Sequence[str], *names: str) -> str:
    """Return the value of an option, by any of its names, that a command line has; the last counts, as in vLLM."""
    found = ""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if written_in_full(word, names):
            _, equals, value = word.partition("=")
            found = value if equals else after
    return found


def _count(words: Sequence[str], *names: str) -> int:
    value = option_value(words, *names)
    return int(value) if value.isdecimal() else 0

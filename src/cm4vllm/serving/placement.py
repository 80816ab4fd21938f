"""Which cores or GPUs each of several servers on one machine gets, and each of its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cm4vllm.common.errors import UsageError

__all__ = ["core_bindings", "gpu_groups", "own_cores", "visible_gpus"]


def core_bindings(cores: Sequence[int], servers: int, workers: int) -> list[str]:
    """Split `cores` evenly; return for each server its VLLM_CPU_OMP_THREADS_BIND: a group of cores for each worker.

    vLLM's own `auto` gives each worker a NUMA node, and ends where there are fewer nodes than workers. Cores that
    cannot be shared evenly stay free. Raises UsageError when there is not one core for each worker.
    """
    each = len(cores) // (servers * workers)
    if each < 1:
        raise UsageError(f"{_in_words(servers, workers)} need {servers * workers} cores",
                         cause=f"this process may use {len(cores)}", remedy="give fewer replicas or smaller sizes")
    groups = [_range(cores[start : start + each]) for start in range(0, each * servers * workers, each)]
    return ["|".join(groups[first : first + workers]) for first in range(0, len(groups), workers)]


def gpu_groups(gpus: Sequence[str], servers: int, workers: int) -> list[str]:
    """Return for each server its CUDA_VISIBLE_DEVICES: the next `workers` of `gpus`, indices or UUIDs.

    Raises UsageError when there are too few.
    """
    if len(gpus) < servers * workers:
        raise UsageError(f"{_in_words(servers, workers)} need {servers * workers} GPUs",
                         cause=f"{len(gpus)} are visible", remedy="give fewer replicas or smaller sizes")
    return [",".join(gpus[first : first + workers]) for first in range(0, servers * workers, workers)]


def own_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def visible_gpus(env: Mapping[str, str], count: int) -> list[str]:
    """Return the GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, or all `count`."""
    named = env.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(count)] if named is None else [each for each in named.split(",") if each]


def _in_words(servers: int, workers: int) -> str:
    return f"{servers} servers of {workers} workers" if servers > 1 else f"{workers} workers"


def _range(cores: Sequence[int]) -> str:
    """Write cores as vLLM reads them: 0-3 for neighbours, commas otherwise."""
    first, last = cores[0], cores[-1]
    if list(cores) == list(range(first, last + 1)) and last > first:
        return f"{first}-{last}"
    return ",".join(str(core) for core in cores)

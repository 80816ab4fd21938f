"""The whole machine, and the environment keys that the detection recipes give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from cm4vllm.common.progress import say_facts
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.detected_summary import modules
from cm4vllm.hardware.gpu import detect_gpus
from cm4vllm.hardware.host import detect_host
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.network import detect_network
from cm4vllm.hardware.records import CpuFacts, DiskFacts, GpuFacts, HostFacts, MachineFacts, MemoryFacts, NetworkCard
from cm4vllm.hardware.size_texts import disk_size, memory_size
from cm4vllm.hardware.storage import detect_disks, root_bytes

__all__ = [
    "capacity_env",
    "cpu_env",
    "detect_machine",
    "give_facts",
    "gpu_env",
    "memory_env",
    "network_env",
    "storage_env",
]


def detect_machine(root: Path = Path("/")) -> MachineFacts:
    """Return all facts of this machine; `root` holds its /proc, /sys and /etc."""
    return MachineFacts(
        host=detect_host(root),
        cpu=detect_cpu(root),
        memory=detect_memory(root),
        disks=detect_disks(root),
        root_bytes=root_bytes(root),
        network=detect_network(root),
        gpus=detect_gpus(),
    )


def cpu_env(cpu: CpuFacts, host: HostFacts) -> dict[str, str]:
    """Return what the recipe detect-cpu gives, under the public names; what the machine does not show is left out."""
    env = {
        "CM_HOST_CPU_MODEL_NAME": cpu.model_name,
        "CM_HOST_CPU_ARCHITECTURE": host.machine,
        "CM_HOST_CPU_SOCKETS": str(cpu.sockets),
        "CM_HOST_CPU_PHYSICAL_CORES_PER_SOCKET": str(cpu.cores_per_socket),
        "CM_HOST_CPU_THREADS_PER_CORE": str(cpu.threads_per_core),
        "CM_HOST_CPU_TOTAL_PHYSICAL_CORES": str(cpu.sockets * cpu.cores_per_socket),
        # The public recipe calls lscpu's "CPU(s)" so, which counts threads: its readers expect that.
        "CM_HOST_CPU_TOTAL_CORES": str(cpu.logical_cpus),
        "CM_HOST_CPU_TOTAL_LOGICAL_CORES": str(cpu.logical_cpus),
        "CM_HOST_CPU_MAX_MHZ": f"{cpu.max_mhz:g}" if cpu.max_mhz else "",
        "CM_HOST_CPU_NUMA_NODES": str(cpu.numa_nodes or ""),
        "CM_HOST_VIRTUAL": _yes_no(host.virtualised),
    }
    env |= {f"CM_HOST_CPU_{name.upper()}_CACHE_SIZE": size for name, size in cpu.caches.items()}
    return _known(env)


def capacity_env() -> dict[str, str]:
    """Return the sizes of memory and disks, which the public recipe detect-cpu gives too."""
    env = memory_env(detect_memory()) | storage_env(detect_disks(), root_bytes())
    return {key: env[key] for key in ("CM_HOST_MEMORY_CAPACITY", "CM_HOST_DISK_CAPACITY")}


def memory_env(memory: MemoryFacts) -> dict[str, str]:
    """Return what the recipe detect-memory gives."""
    return _known(
        {
            "CM_HOST_MEMORY_CAPACITY": memory_size(memory.total_bytes),
            "CM_HOST_MEMORY_CAPACITY_BYTES": str(memory.total_bytes),
            "CM_HOST_MEMORY_LIMIT": memory_size(memory.limit_bytes) if memory.limit_bytes else "",
            "CM_HOST_MEMORY_MODULES": modules(memory),
            "CM_HOST_MEMORY_ECC": _yes_no(memory.ecc),
        }
    )


def storage_env(disks: list[DiskFacts], root_size: int) -> dict[str, str]:
    """Return what the recipe detect-storage gives; the root file system's size where no disk is shown."""
    total = sum(disk.size_bytes for disk in disks) or root_size
    return _known(
        {
            "CM_HOST_DISK_CAPACITY": disk_size(total),
            "CM_HOST_STORAGE_TYPE": ", ".join(dict.fromkeys(disk.kind for disk in disks)),
            "CM_HOST_STORAGE_COUNT": str(len(disks)),
        }
    )


def network_env(cards: list[NetworkCard]) -> dict[str, str]:
    """Return what the recipe detect-network gives: physical cards and their fastest rate, never an address."""
    physical = [card for card in cards if card.kind != "virtual"]
    rates = [card.megabits for card in physical if card.megabits]
    return _known(
        {
            "CM_HOST_NETWORK_CARD_COUNT": str(len(physical)),
            "CM_HOST_NETWORK_TYPE": ", ".join(dict.fromkeys(card.kind for card in cards)),
            "CM_HOST_NETWORK_MBITS": str(max(rates)) if rates else "",
        }
    )


def gpu_env(gpus: list[GpuFacts]) -> dict[str, str]:
    """Return the exports of the recipe detect-gpu: the number of GPUs, and the facts of the first one, if any."""
    nvidia = sum(1 for gpu in gpus if gpu.vendor == "NVIDIA")
    env = {"CM_HOST_GPU_COUNT": str(len(gpus)), "CM_CUDA_NUM_DEVICES": str(nvidia)}
    if not gpus:
        return env
    first = gpus[0]
    return env | _known(
        {
            "CM_HOST_GPU_VENDOR": first.vendor,
            "CM_HOST_GPU_MODEL_NAME": first.name,
            "CM_HOST_GPU_MEMORY_CAPACITY": memory_size(first.memory_bytes),
            "CM_HOST_GPU_MEMORY_BYTES": str(first.memory_bytes),
            "CM_HOST_GPU_DRIVER_VERSION": first.driver,
            "CM_HOST_GPU_COMPUTE_CAPABILITY": first.compute_capability,
        }
    )


def give_facts(
    i: dict[str, Any], subject: str, lines: Sequence[str], env: Mapping[str, str], **facts: object
) -> dict[str, Any]:
    """Print what a recipe has detected, and put it into the environment and, as `facts`, into the state."""
    say_facts(subject, *lines)
    i["env"].update(env)
    i["state"].update(to_builtins(facts))
    return {"return": 0}


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _known(env: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if value}

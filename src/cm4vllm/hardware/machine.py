"""The whole machine, and the environment keys that the detection recipes give."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.gpu import detect_gpus
from cm4vllm.hardware.host import detect_host
from cm4vllm.hardware.records import CpuFacts, GpuFacts, HostFacts, MachineFacts
from cm4vllm.hardware.units import disk_size, memory_size

__all__ = ["cpu_env", "detect_machine", "gpu_env"]


def detect_machine(root: Path = Path("/")) -> MachineFacts:
    """Return all facts of this machine; `root` holds its /proc, /sys and /etc."""
    return MachineFacts(host=detect_host(root), cpu=detect_cpu(root), gpus=detect_gpus())


def cpu_env(cpu: CpuFacts, host: HostFacts) -> dict[str, str]:
    """Return what the recipe detect-cpu gives, under the public names; what the machine does not show is left out."""
    cores = cpu.sockets * cpu.cores_per_socket
    env = {
        "CM_HOST_CPU_MODEL_NAME": cpu.model_name,
        "CM_HOST_CPU_ARCHITECTURE": host.machine,
        "CM_HOST_CPU_SOCKETS": str(cpu.sockets),
        "CM_HOST_CPU_PHYSICAL_CORES_PER_SOCKET": str(cpu.cores_per_socket),
        "CM_HOST_CPU_THREADS_PER_CORE": str(cpu.threads_per_core),
        "CM_HOST_CPU_TOTAL_PHYSICAL_CORES": str(cores),
        # The public recipe calls lscpu's "CPU(s)" so, which counts threads: its readers expect that.
        "CM_HOST_CPU_TOTAL_CORES": str(cpu.logical_cpus),
        "CM_HOST_CPU_TOTAL_LOGICAL_CORES": str(cpu.logical_cpus),
        "CM_HOST_MEMORY_CAPACITY": memory_size(host.memory_bytes),
        "CM_HOST_DISK_CAPACITY": disk_size(host.disk_bytes),
    }
    if cpu.max_mhz is not None:
        env["CM_HOST_CPU_MAX_MHZ"] = f"{cpu.max_mhz:g}"
    if cpu.numa_nodes is not None:
        env["CM_HOST_CPU_NUMA_NODES"] = str(cpu.numa_nodes)
    if host.virtualised is not None:
        env["CM_HOST_VIRTUAL"] = "yes" if host.virtualised else "no"
    return env | {f"CM_HOST_CPU_{name.upper()}_CACHE_SIZE": size for name, size in cpu.caches.items()}


def gpu_env(gpus: list[GpuFacts]) -> dict[str, str]:
    """Return what the recipe detect-gpu gives: the count always, the rest of the first GPU where there is one."""
    env = {"CM_HOST_GPU_COUNT": str(len(gpus)), "CM_CUDA_NUM_DEVICES": str(len(gpus))}
    if gpus:
        env |= {
            "CM_HOST_GPU_MODEL_NAME": gpus[0].name,
            "CM_HOST_GPU_MEMORY_CAPACITY": memory_size(gpus[0].memory_bytes),
            "CM_HOST_GPU_DRIVER_VERSION": gpus[0].driver,
        }
    return env

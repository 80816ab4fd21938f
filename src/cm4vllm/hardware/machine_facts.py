"""The whole machine, the environment keys that the detection recipes give, and lines for a person.

The lines end with all that was not detected.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.gpus.accelerators import interconnect
from cm4vllm.hardware.gpus.gpu import detect_gpus, vendors
from cm4vllm.hardware.host import detect_disks, detect_host, detect_network, root_bytes
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.size_texts import disk_size, frequency, memory_size
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.machine import (
    MEMORY,
    CpuFacts,
    DiskFacts,
    GpuFacts,
    HostFacts,
    MachineFacts,
    MemoryFacts,
    NetworkCard,
)


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
    """Return the exports of the recipe detect-cpu by the keys of the public recipe, without unknown facts."""
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
        "CM_HOST_CPU_QUOTA": f"{cpu.quota_cpus:g}" if cpu.quota_cpus else "",
        "CM_HOST_VIRTUAL": _yes_no(host.virtualised),
    }
    env |= {f"CM_HOST_CPU_{name.upper()}_CACHE_SIZE": size for name, size in cpu.caches.items()}
    return _known_values(env)


def capacity_env(memory: MemoryFacts, disks: list[DiskFacts], root_size: int) -> dict[str, str]:
    """Return the sizes of memory and disks, which the public recipe detect-cpu exports, too."""
    return {
        "CM_HOST_MEMORY_CAPACITY": memory_size(memory.total_bytes),
        "CM_HOST_DISK_CAPACITY": disks_capacity(disks, root_size),
    }


def memory_env(memory: MemoryFacts) -> dict[str, str]:
    """Return what the recipe detect-memory gives."""
    return _known_values(
        {
            "CM_HOST_MEMORY_CAPACITY": memory_size(memory.total_bytes),
            "CM_HOST_MEMORY_CAPACITY_BYTES": str(memory.total_bytes),
            "CM_HOST_MEMORY_LIMIT": memory_size(memory.limit_bytes) if memory.limit_bytes else "",
            "CM_HOST_MEMORY_MODULES": modules(memory),
            "CM_HOST_MEMORY_ECC": _yes_no(memory.ecc),
        }
    )


def disks_capacity(disks: list[DiskFacts], root_size: int) -> str:
    """Return the size of all disks; the root file system's where no disk is shown."""
    return disk_size(sum(disk.size_bytes for disk in disks) or root_size)


def disk_kinds(disks: list[DiskFacts]) -> str:
    """Return the kinds of the disks, each once."""
    return ", ".join(dict.fromkeys(disk.kind for disk in disks))


def storage_env(disks: list[DiskFacts], root_size: int) -> dict[str, str]:
    """Return what the recipe detect-storage gives; the root file system's size where no disk is shown."""
    return _known_values(
        {
            "CM_HOST_DISK_CAPACITY": disks_capacity(disks, root_size),
            "CM_HOST_STORAGE_TYPE": disk_kinds(disks),
            "CM_HOST_STORAGE_COUNT": str(len(disks)),
        }
    )


def physical_cards(cards: list[NetworkCard]) -> list[NetworkCard]:
    """Return the network cards that are no virtual ones."""
    return [card for card in cards if card.kind != "virtual"]


def network_env(cards: list[NetworkCard]) -> dict[str, str]:
    """Return what the recipe detect-network gives: physical cards and their fastest rate, never an address."""
    physical = physical_cards(cards)
    rates = [card.megabits for card in physical if card.megabits]
    return _known_values(
        {
            "CM_HOST_NETWORK_CARD_COUNT": str(len(physical)),
            "CM_HOST_NETWORK_TYPE": ", ".join(dict.fromkeys(card.kind for card in cards)),
            "CM_HOST_NETWORK_MBITS": str(max(rates)) if rates else "",
        }
    )


def gpu_env(gpus: list[GpuFacts]) -> dict[str, str]:
    """Return the exports of the recipe detect-gpu: the numbers of GPUs, and the facts of the first one, if any."""
    of_vendor = Counter(gpu.vendor for gpu in gpus)
    env = {f"CM_{vendor.device.upper()}_NUM_DEVICES": str(of_vendor[vendor.name]) for vendor in vendors()}
    env["CM_HOST_GPU_COUNT"] = str(len(gpus))
    for first in gpus[:1]:
        env |= _known_values(
            {
                "CM_HOST_GPU_VENDOR": first.vendor,
                "CM_HOST_GPU_MODEL_NAME": first.name,
                "CM_HOST_GPU_MEMORY_CAPACITY": memory_size(first.memory_bytes) if first.memory_bytes else "",
                "CM_HOST_GPU_MEMORY_BYTES": str(first.memory_bytes or ""),
                "CM_HOST_GPU_DRIVER_VERSION": first.driver,
                "CM_HOST_GPU_COMPUTE_CAPABILITY": first.compute_capability,
            }
        )
    return env


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _known_values(exports: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in exports.items() if value}


# --- lines for a person ----------------------------------------------------------------------------------------------


def host_lines(host: HostFacts) -> list[str]:
    """Return the operating system and what it runs on."""
    virtual = f"virtual machine{f' ({host.hypervisor})' if host.hypervisor else ''}"
    kind = "" if host.virtualised is None else virtual if host.virtualised else "physical machine"
    return _lines(
        f"{host.os_name} {host.os_version}, Linux {host.kernel}, {host.machine}",
        _word_list(kind, "in a container" if host.container else "", host.product),
        missing={"whether the machine is virtual": host.virtualised is None, "the machine's make": not host.product},
    )


def cpu_lines(cpu: CpuFacts, host: HostFacts) -> list[str]:
    """Return the processors; those of a virtual machine are called so."""
    # Cores of several kinds may have different numbers of threads.
    alike = cpu.sockets * cpu.cores_per_socket * cpu.threads_per_core == cpu.logical_cpus
    threads = f" x {cpu.threads_per_core} threads = " if alike else ", "
    nodes = f", {cpu.numa_nodes} NUMA node{'s' if cpu.numa_nodes > 1 else ''}" if cpu.numa_nodes else ""
    return _lines(
        cpu.model_name,
        f"{cpu.sockets} x {cpu.cores_per_socket} cores{threads}{cpu.logical_cpus} CPUs{nodes}"
        + (" as given to this virtual machine, not the host's" if host.virtualised else ""),
        _word_list(
            f"base {frequency(cpu.base_mhz)}" if cpu.base_mhz else "",
            f"up to {frequency(cpu.max_mhz)}" if cpu.max_mhz else "",
        ),
        _word_list(*(f"{name} {size}" for name, size in cpu.caches.items())),
        f"this program may use {cpu.quota_cpus:g} of the {cpu.logical_cpus} CPUs (quota of its control group)"
        if cpu.quota_cpus
        else "",
        missing={
            "frequency": not (cpu.base_mhz or cpu.max_mhz),
            "caches": not cpu.caches,
            "NUMA nodes": not cpu.numa_nodes,
            "whether the processors are virtual": host.virtualised is None,
        },
    )


def memory_lines(memory: MemoryFacts) -> list[str]:
    """Return the memory, its modules and its limit."""
    limit, apart = memory.limit_bytes, memory.apart_bytes
    return _lines(
        f"{memory_size(memory.total_bytes)}, by {memory.source}",
        modules(memory),
        f"this program may use {memory_size(limit)} of it (control group)" if limit else "",
        "" if memory.ecc is None else "ECC" if memory.ecc else "without ECC",
        f"not counted: {memory_size(apart)} of NUMA nodes without processors, of a GPU or an expander" if apart else "",
        missing={"modules (DMI: readable by root on physical machines)": not memory.modules, "ECC": memory.ecc is None},
    )


def modules(memory: MemoryFacts) -> str:
    """Return the memory modules, for example '12x 64 GB DDR5-4800'; empty where the firmware does not show them."""
    kinds = Counter((module.size_bytes, module.kind, module.mega_transfers) for module in memory.modules)
    return ", ".join(
        f"{count}x {memory_size(size)} {kind}{f'-{rate}' if rate else ''}".strip()
        for (size, kind, rate), count in kinds.items()
    )


def storage_lines(disks: list[DiskFacts], root_size: int) -> list[str]:
    """Return the disks, or the root file system's size where none is shown."""
    kinds = Counter((disk.size_bytes, disk.kind, disk.model) for disk in disks)
    return _lines(
        *(
            f"{count}x {disk_size(size)} {kind}{f', {model}' if model else ''}"
            for (size, kind, model), count in kinds.items()
        ),
        f"root file system: {disk_size(root_size)}",
        missing={"disks": not disks},
    )


def network_lines(cards: list[NetworkCard]) -> list[str]:
    """Return the network cards, without their addresses and names."""
    return _lines(
        *(
            _word_list(
                f"{card.kind} card{f' ({card.driver})' if card.driver else ''}",
                f"{card.ports} ports" if card.ports > 1 else "",
                f"{card.megabits / 1000:g} Gbit/s" if card.megabits else "",
            )
            for card in cards
        ),
        missing={"network cards": not cards, "their rate": bool(cards) and not any(card.megabits for card in cards)},
    )


def gpu_lines(gpus: list[GpuFacts]) -> list[str]:
    """Return the GPUs, alike ones together, and how they reach each other."""
    if not gpus:
        names = " or ".join(f"{vendor.name} ({vendor.library})" for vendor in vendors())
        return [f"none: no driver of {names} answers"]
    alike: dict[tuple[str, ...], int] = Counter(tuple(_gpu_lines(gpu)) for gpu in gpus)
    lines = [line for (name, *rest), count in alike.items() for line in (f"{count}x {name}", *rest)]
    if len(gpus) > 1:
        between, topology = interconnect(gpus)
        lines.append(f"among them: {between}, {topology}" if between else "among them: not detected")
    return lines


def _gpu_lines(gpu: GpuFacts) -> list[str]:
    row, shared = accelerator(gpu.name), ": shared with the host" if gpu.shares_host_memory else ""
    parts = Counter(part.profile for part in gpu.mig_devices)
    unanswered = (f"{fact} ({why}){shared if fact == MEMORY else ''}" for fact, why in gpu.unanswered.items())
    return _lines(
        gpu.name,
        _word_list(
            f"{row.memory_gb[0]} GB {row.memory_type} as marketed" if row else "",
            f"{gpu.memory_bytes / 2**30:.2f} GiB as reported" if gpu.memory_bytes else "",
        ),
        _word_list(
            f"up to {frequency(gpu.max_sm_mhz)}" if gpu.max_sm_mhz else "",
            f"memory {frequency(gpu.max_memory_mhz)}" if gpu.max_memory_mhz else "",
            gpu.pcie,
        ),
        _word_list(
            f"ECC {'on' if gpu.ecc else 'off'}" if gpu.ecc is not None else "",
            f"MIG {'on' if gpu.mig else 'off'}" if gpu.mig is not None else "",
            f"power limit {gpu.power_limit_w:g} W" if gpu.power_limit_w else "",
            gpu.virtualisation,
        ),
        _word_list(*(f"{count}x {part}" for part, count in parts.items()), title="MIG parts: "),
        _partitions(gpu),
        f"driver {gpu.driver}{f', CUDA up to {gpu.cuda}' if gpu.cuda else ''}" if gpu.driver else "",
        _word_list(*unanswered, title="not detected: "),
    )


def _partitions(gpu: GpuFacts) -> str:
    """Return the partitions of a GPU, for example '8 partitions (CPX/NPS4), each of 24.0 GiB'."""
    if not gpu.partitions:
        return ""
    first = gpu.partitions[0]
    each = f", each of {first.memory_bytes / 2**30:.4g} GiB" if first.memory_bytes else ""
    return f"{len(gpu.partitions)} partitions ({first.profile}){each}"


def _lines(*lines: str, missing: Mapping[str, bool] = MappingProxyType({})) -> list[str]:
    """Return the lines that say something, and one with the parts that are missing."""
    lacking = _word_list(*(name for name, is_missing in missing.items() if is_missing), title="not detected: ")
    return list(filter(None, (*lines, lacking)))


def _word_list(*words: str, title: str = "") -> str:
    """Return the words that are known with commas between, after their title; empty for none."""
    listed = ", ".join(filter(None, words))
    return listed and f"{title}{listed}"

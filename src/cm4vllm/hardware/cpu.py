"""The processors, from /proc/cpuinfo and /sys/devices/system: what the kernel shows, nothing guessed."""

import platform
import re
from collections import ChainMap, Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from cm4vllm.common.kernel_files import exists, fields, matching, number, text
from cm4vllm.common.processors import cpu_quota
from cm4vllm.records.machine import CpuFacts

#: Cores by implementer and part number of MIDR_EL1 (util-linux, sys-utils/lscpu-arm.c); x86 names itself.
_ARM_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd8e"): "Arm Neoverse N3",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
    ("0x41", "0xd83"): "Arm Neoverse V3",
    ("0x41", "0xd84"): "Arm Neoverse V3",
    ("0x41", "0xd44"): "Arm Cortex-X1",
    ("0x41", "0xd48"): "Arm Cortex-X2",
    ("0x41", "0xd4e"): "Arm Cortex-X3",
    ("0x41", "0xd82"): "Arm Cortex-X4",
    ("0x41", "0xd85"): "Arm Cortex-X925",
    ("0x41", "0xd03"): "Arm Cortex-A53",
    ("0x41", "0xd05"): "Arm Cortex-A55",
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0x41", "0xd41"): "Arm Cortex-A78",
    ("0x41", "0xd46"): "Arm Cortex-A510",
    ("0x41", "0xd47"): "Arm Cortex-A710",
    ("0x41", "0xd80"): "Arm Cortex-A520",
    ("0x41", "0xd81"): "Arm Cortex-A720",
    ("0x41", "0xd87"): "Arm Cortex-A725",
    ("0x41", "0xd42"): "Arm Cortex-A78AE",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
    ("0x48", "0xd01"): "HiSilicon TaiShan v110",
}


def detect_cpu(root: Path = Path("/")) -> CpuFacts:
    """Return the facts of the processors whose /proc and /sys are under `root`."""
    blocks = [fields(block) for block in re.split(r"\n\s*\n", text(root / "proc/cpuinfo"))]
    info = ChainMap(*blocks)  # a field that the first processor lacks is taken from a later block
    cpus = [cpu for cpu in matching(root / "sys/devices/system/cpu", "cpu[0-9]*") if exists(cpu / "topology")]
    sockets, cores, logical = _topology(cpus) if cpus else _counts_without_topology(blocks)
    smt = number(root / "sys/devices/system/cpu/smt/active")
    name, quota = _model_name(info, blocks), cpu_quota(root)
    return CpuFacts(
        model_name=name,
        sockets=sockets,
        cores_per_socket=max(1, cores // sockets),
        threads_per_core=max(1, logical // cores),
        logical_cpus=logical,
        base_mhz=_mhz(cpus, "base_frequency") or _mhz_in_name(name),
        max_mhz=_mhz(cpus, "cpuinfo_max_freq"),
        caches=_caches(cpus),
        numa_nodes=len(nodes_with_processors(root)) or None,
        smt=bool(smt) if smt is not None else (logical > cores if cpus else None),
        flags=(info.get("flags") or info.get("Features") or info.get("isa") or "").split(),
        quota_cpus=round(quota.cpus, 3) if quota is not None and quota.cpus < logical else None,
    )


def nodes_with_processors(root: Path = Path("/")) -> list[Path]:
    """Return the folders of the NUMA nodes that have processors.

    The others hold memory alone: of a GPU as in GH200, or of an expander.
    """
    return [
        node
        for node in matching(root / "sys/devices/system/node", "node[0-9]*")
        if text(node / "cpulist") or not exists(node / "cpulist")
    ]


def _model_name(info: Mapping[str, str], blocks: Sequence[Mapping[str, str]]) -> str:
    """Return the name of the processor's model, or those of its kinds of cores on Arm."""
    # A model name of "-" or "unknown" is what some hypervisors make of one that they do not pass on.
    for key in ("model name", "cpu model", "cpu", "Model"):
        if (name := " ".join(info.get(key, "").split())) and name.lower() not in ("-", "unknown", "unknown cpu"):
            return name
    kinds = Counter(
        (block.get("CPU implementer", info.get("CPU implementer", "")), block["CPU part"])
        for block in blocks
        if "CPU part" in block
    )
    if len(kinds) == 1:
        return _arm_core(*next(iter(kinds)))
    counted = (f"{_arm_core(*kind)} ({count} core{'s' if count > 1 else ''})" for kind, count in kinds.items())
    return ", ".join(counted) or info.get("Hardware") or platform.processor() or platform.machine()


def _arm_core(implementer: str, part: str) -> str:
    return _ARM_CORES.get((implementer, part)) or f"Arm processor, implementer {implementer or '?'}, part {part}"


def _topology(cpus: list[Path]) -> tuple[int, int, int]:
    """Return the numbers of sockets, cores and logical CPUs that are online."""
    siblings = {
        text(cpu / "topology/core_cpus_list") or text(cpu / "topology/thread_siblings_list") or cpu.name for cpu in cpus
    }
    return len({text(cpu / "topology/physical_package_id") for cpu in cpus}), len(siblings), len(cpus)


def _counts_without_topology(blocks: list[dict[str, str]]) -> tuple[int, int, int]:
    """Return the same from /proc/cpuinfo, or from psutil, where /sys shows no topology."""
    shown = [block for block in blocks if block.get("processor", "").isdecimal()]
    logical = len(shown) or psutil.cpu_count(logical=True) or 1
    cores = {(block["physical id"], block["core id"]) for block in shown if {"physical id", "core id"} <= block.keys()}
    if cores:
        return len({socket for socket, _ in cores}), len(cores), logical
    return 1, logical if shown else min(psutil.cpu_count(logical=False) or logical, logical), logical


def _mhz(cpus: list[Path], name: str) -> float | None:
    khz = [value for cpu in cpus if (value := number(cpu / "cpufreq" / name))]
    return max(khz) / 1000 if khz else None


def _mhz_in_name(name: str) -> float | None:
    """Return the base frequency that Intel writes into the name: '... CPU @ 2.50GHz'."""
    match = re.search(r"@ *(\d{1,9}(?:\.\d{1,9})?) *GHz", name)
    return round(float(match.group(1)) * 1000, 3) if match else None


def _caches(cpus: list[Path]) -> dict[str, str]:
    """Return each cache's total size and number of instances, as lscpu writes it: '64 KiB (2 instances)'."""
    instances: dict[str, dict[str, int]] = defaultdict(dict)
    for cpu in cpus:
        for index in matching(cpu, "cache/index[0-9]*"):
            size = re.fullmatch(r"(\d+)([KM])", text(index / "size"))
            if not size:
                continue
            name = f"L{text(index / 'level')}" + {"Data": "d", "Instruction": "i"}.get(text(index / "type"), "")
            kib = int(size[1]) * (1024 if size[2] == "M" else 1)
            instances[name][text(index / "shared_cpu_list") or cpu.name] = kib
    return {name: _size(instances[name]) for name in sorted(instances)}


def _size(instances: dict[str, int]) -> str:
    kib, count = sum(instances.values()), len(instances)
    return f"{f'{kib / 1024:g} MiB' if kib >= 1024 else f'{kib} KiB'} ({count} instance{'s' if count > 1 else ''})"

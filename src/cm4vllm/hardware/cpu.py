"""The processors, from /proc/cpuinfo and /sys/devices/system: what the kernel shows, nothing guessed."""

from __future__ import annotations

import platform
from collections import defaultdict
from pathlib import Path

import psutil

from cm4vllm.hardware.records import CpuFacts

__all__ = ["detect_cpu"]

#: Arm's cores by the part number of MIDR_EL1 (util-linux, sys-utils/lscpu-arm.c); x86 names itself in /proc/cpuinfo.
_ARM_CORES = {
    "0xd0c": "Arm Neoverse N1", "0xd49": "Arm Neoverse N2", "0xd8e": "Arm Neoverse N3",
    "0xd40": "Arm Neoverse V1", "0xd4f": "Arm Neoverse V2", "0xd83": "Arm Neoverse V3",
}  # fmt: skip
_ARM_LTD = "0x41"


def detect_cpu(root: Path = Path("/")) -> CpuFacts:
    """Return the facts of the processors whose /proc and /sys are under `root`."""
    info = _cpuinfo(root)
    cpus = [cpu for cpu in (root / "sys/devices/system/cpu").glob("cpu[0-9]*") if (cpu / "topology").is_dir()]
    sockets, cores, logical = _topology(cpus)
    return CpuFacts(
        model_name=_model_name(info),
        sockets=sockets,
        cores_per_socket=cores // sockets,
        threads_per_core=max(1, logical // cores),
        logical_cpus=logical,
        max_mhz=_max_mhz(cpus),
        caches=_caches(cpus),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        flags=(info.get("flags") or info.get("Features") or "").split(),
    )


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the first processor's fields; a field that it lacks is taken from a later one."""
    fields: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _model_name(info: dict[str, str]) -> str:
    if name := info.get("model name") or info.get("cpu") or info.get("Model"):
        return " ".join(name.split())
    if (part := info.get("CPU part")) is not None:
        implementer = info.get("CPU implementer", "")
        known = _ARM_CORES.get(part) if implementer == _ARM_LTD else None
        return known or f"Arm processor, implementer {implementer}, part {part}"
    return platform.processor() or platform.machine()


def _topology(cpus: list[Path]) -> tuple[int, int, int]:
    """Return the numbers of sockets, cores and logical CPUs that are online."""
    if not cpus:
        logical = psutil.cpu_count(logical=True) or 1
        return 1, psutil.cpu_count(logical=False) or logical, logical
    sockets = {_text(cpu / "topology/physical_package_id") for cpu in cpus}
    siblings = {_text(cpu / "topology/thread_siblings_list") or cpu.name for cpu in cpus}
    return len(sockets), len(siblings), len(cpus)


def _max_mhz(cpus: list[Path]) -> float | None:
    khz = [int(text) for cpu in cpus if (text := _text(cpu / "cpufreq/cpuinfo_max_freq")).isdigit()]
    return max(khz) / 1000 if khz else None


def _caches(cpus: list[Path]) -> dict[str, str]:
    """Return each cache's total size and how many there are of it, worded as lscpu does: '64 KiB (2 instances)'."""
    instances: dict[str, dict[str, int]] = defaultdict(dict)
    for cpu in cpus:
        for index in cpu.glob("cache/index[0-9]*"):
            size = _text(index / "size")
            if not size.endswith("K"):
                continue
            kind = {"Data": "d", "Instruction": "i"}.get(_text(index / "type"), "")
            shared = _text(index / "shared_cpu_list") or cpu.name
            instances[f"L{_text(index / 'level')}{kind}"][shared] = int(size[:-1])
    return {name: _size(instances[name]) for name in sorted(instances)}


def _size(instances: dict[str, int]) -> str:
    kib = sum(instances.values())
    size = f"{kib / 1024:g} MiB" if kib >= 1024 else f"{kib} KiB"
    return f"{size} ({len(instances)} instance{'s' if len(instances) > 1 else ''})"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

"""Time in which processors and GPUs were slowed down during a run, by counters of the kernel and of drivers."""

from collections.abc import Mapping
from pathlib import Path

from cm4vllm.common.kernel_files import matching, number
from cm4vllm.common.processors import cpu_quota
from cm4vllm.hardware.gpus.gpu import opened_drivers
from cm4vllm.records.run import QUOTA, TIMES

#: The part that was slowed down and the cause -> seconds, or the number of times.
Throttling = Mapping[str, float]

#: Seconds, and times, below which it is noise.
_LEAST_S, _LEAST_TIMES = 0.5, 1


def throttling(root: Path = Path("/")) -> dict[str, float]:
    """Return the present values of the counters, without those that this machine does not have."""
    counters = _processors(root) | _quota(root)
    with opened_drivers() as drivers:
        for vendor, library in drivers:
            counters |= vendor.throttling(library)
    return counters


def throttled(before: Throttling, after: Throttling) -> dict[str, float]:
    """Return what was slowed down between two readings, and for how many seconds, or how often."""
    grown = {name: after[name] - before[name] for name in after if name in before}
    return {
        name: round(value, 3)
        for name, value in grown.items()
        if value >= (_LEAST_TIMES if name.endswith(TIMES) else _LEAST_S)
    }


def _processors(root: Path) -> dict[str, float]:
    """Return the greatest counter of all processors: Intel's thermal_throttle (the kernel's therm_throt.c)."""
    times_ms, counts = [], []
    for folder in matching(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle"):
        for kind in ("core", "package"):
            if (total := number(folder / f"{kind}_throttle_total_time_ms")) is not None:
                times_ms.append(total)
            elif (count := number(folder / f"{kind}_throttle_count")) is not None:
                counts.append(count)
    if times_ms:
        return {"a processor: its temperature": max(times_ms) / 1000}
    return {f"a processor: its temperature{TIMES}": float(max(counts))} if counts else {}


def _quota(root: Path) -> dict[str, float]:
    """Return how often, and how long, the quota of this program's control group was used up (cpu.stat)."""
    quota = cpu_quota(root)
    if quota is None:
        return {}
    return {
        f"{QUOTA} of {quota.cpus:.4g} CPUs{TIMES}": float(quota.throttled_periods),
        f"{QUOTA} of {quota.cpus:.4g} CPUs": quota.throttled_s,
    }

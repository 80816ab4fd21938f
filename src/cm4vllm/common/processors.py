"""The processors that this program may use: those of its affinity, as far as the quotas of its control groups allow.

A quota holds for a group and all below it, so the smallest of the own group and its parents counts. Kernel:
admin-guide/cgroup-v2.rst (cpu.max, cpu.stat), scheduler/sched-bwc.rst (version 1).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.kernel_files import exists, number, text

_GROUPS = "sys/fs/cgroup"


@dataclass(frozen=True)
class CpuQuota:
    """A control group's quota: the seconds of processor time that it gets in a second.

    `period_s` is the time after which it is renewed. Since the group began, there were `periods` in which it had work,
    in `throttled_periods` of which the quota was used up; its threads then waited for `throttled_s` in all.
    """

    cpus: float
    period_s: float
    group: Path
    periods: int = 0
    throttled_periods: int = 0
    throttled_s: float = 0.0


def usable_processors(root: Path = Path("/")) -> int:
    """Return how many threads of this program can compute at a time: whole processors of its quota, at least 1."""
    shown, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    return shown if quota is None else max(1, min(shown, int(quota.cpus)))


def cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """Return the smallest quota of the own control group and its parents; None where there is none."""
    quotas = (quota for group in control_groups("cpu", root) if (quota := _quota(group)) is not None)
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of this program's control group and its parents, the own one first, in both versions.

    A container may show the path of the host and have its own group mounted as the root: a folder that does not exist
    is left out.
    """
    groups: dict[Path, None] = {}
    paths = dict(_own_groups(text(root / "proc/self/cgroup")))
    for name, base in _hierarchies(controller, root):
        own = base.joinpath(*paths.get(name, ()))
        for folder in (own, *own.parents):
            if folder.is_relative_to(base) and exists(folder):
                groups[folder] = None
    return list(groups)


def _hierarchies(controller: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names in /proc/self/cgroup of hierarchies that may hold a controller, and where they are mounted."""
    yield from (("", root / _GROUPS), ("", root / _GROUPS / "unified"))
    yield controller, root / _GROUPS / controller
    if controller == "cpu":  # mounted together with the accounting; mostly `cpu` is a link to it
        yield from ((controller, root / _GROUPS / name) for name in ("cpu,cpuacct", "cpuacct,cpu"))


def _own_groups(lines: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the parts of the own group's path by controller; version 2 has none (cgroups(7), /proc/pid/cgroup)."""
    for line in lines.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        parts = tuple(part for part in path.split("/") if part)
        for controller in controllers.split(","):
            yield controller, () if ".." in parts else parts


def _quota(group: Path) -> CpuQuota | None:
    """Return the CPU quota of one control group (version 2 or 1), None without one."""
    words = text(group / "cpu.max").split() or ["", ""]
    quota, period = (int(word) if word.isascii() and word.isdigit() else None for word in (*words, "")[:2])
    if quota is None:
        quota, period = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
    if quota is None or not period:
        return None
    pairs = (line.partition(" ") for line in text(group / "cpu.stat").splitlines())
    stat = {name: int(value) for name, _, value in pairs if value.strip().isdecimal()}
    return CpuQuota(
        cpus=quota / period,
        period_s=period / 1e6,
        group=group,
        periods=stat.get("nr_periods", 0),
        throttled_periods=stat.get("nr_throttled", 0),
        throttled_s=stat.get("throttled_usec", 0) / 1e6 or stat.get("throttled_time", 0) / 1e9,
    )

"""Properties of this machine that disturb a measurement, read before it begins, with the command that changes each.

Read from the kernel: proc(5), sysfs, getrlimit(2). What the kernel does not show is not judged.
"""

import os
import resource
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.common.kernel_files import fields, matching, text
from cm4vllm.common.processors import cpu_quota
from cm4vllm.hardware.memory import free_memory

#: Local ports and open files that a run of thousands of requests at a time needs: each has its own connection.
LEAST_PORTS, LEAST_FILES = 16_384, 16_384
#: Swap in use that is worth a word, in bytes: what a machine has put away once and never asks for is less.
LEAST_SWAPPED = 256 * 2**20
#: The part of the processors that others may use before a run, and how long it is measured, in s.
OTHERS, SAMPLE_S = 0.05, 0.5
#: Clock sources whose reading is a system call, or an access to a device: each query reads the clock several times.
_SLOW_CLOCKS = ("hpet", "acpi_pm", "refined-jiffies", "jiffies", "pit")
_CLOCKS = "sys/devices/system/clocksource/clocksource0"


@dataclass(frozen=True)
class LoadSample:
    """The share of the processors in use over a moment, in [0..1], and the process that used the most."""

    busy: float
    name: str = ""
    pid: int = 0
    share: float = 0.0


def unready(root: Path = Path("/"), *, files: int | None = None, load: LoadSample | None = None) -> list[Finding]:
    """Return what should be changed before a measurement on this machine.

    `files` is how many files a process may open at most, None asks the system; `load` is what others use now.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if files is None else files
    return [*_connections(root, hard), *_clock(root), *_governor(root), *_quota(root), *_swap(root), *_load(load)]


def load_sample(seconds: float = SAMPLE_S) -> LoadSample:
    """Measure for a moment who uses the processors; this process does not count."""
    own = psutil.Process().pid
    before = _times()
    psutil.cpu_percent(None)
    began = time.monotonic()
    time.sleep(seconds)
    wall = (time.monotonic() - began) * (psutil.cpu_count() or 1)
    used = {process: after - before.get(process, after) for process, after in _times().items() if process[0] != own}
    (pid, name), most = max(used.items(), key=lambda item: item[1], default=((0, ""), 0.0))
    return LoadSample(psutil.cpu_percent(None) / 100, name, pid, most / wall if wall else 0.0)


def _finding(text: str, why: str, command: str) -> Finding:
    """Return a disturbance of a measurement with its effect, and the command that ends it as its remedy."""
    return Finding(severity=Severity.WARNING, field="this machine", what=f"{text}: {why}", remedy=command)


def _times() -> dict[tuple[int, str], float]:
    """Return the processor time of each process so far, by its number and name."""
    seconds = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            seconds[process.info["pid"], str(process.info["name"])] = times.user + times.system
    return seconds


def _connections(root: Path, hard: int) -> Iterator[Finding]:
    """Yield a finding if the system has few local ports, and if a process may open few files."""
    if (ports := local_ports(root)) is not None and ports < LEAST_PORTS:
        yield _finding(
            f"{ports:,} local ports",
            "each request in flight has its own connection",
            "widen the range: sudo sysctl -w net.ipv4.ip_local_port_range='1024 65535'",
        )
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        yield _finding(
            f"a process may open {hard:,} files",
            "each request in flight has its own connection",
            f"raise the limit of this shell, as root: ulimit -Hn {LEAST_FILES}",
        )


def _clock(root: Path) -> Iterator[Finding]:
    """Yield a finding if the clock source is slow, with the command that changes it."""
    if (source := text(root / _CLOCKS / "current_clocksource")) in _SLOW_CLOCKS:
        clocks = text(root / _CLOCKS / "available_clocksource").split()
        faster = next((shlex.quote(clock) for clock in clocks if clock not in _SLOW_CLOCKS), "")
        yield _finding(
            f"the clock source is {source}",
            "to read it takes about 1 µs, and each token reads it",
            f"echo {faster} | sudo tee /{_CLOCKS}/current_clocksource"
            if faster
            else "no faster one is available: see why with: sudo dmesg | grep -i clocksource",
        )


def _governor(root: Path) -> Iterator[Finding]:
    """Yield a finding if a CPU governor is not `performance`."""
    files = matching(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted(set(filter(None, map(text, files))))
    if governors not in ([], ["performance"]):
        yield _finding(
            f"the CPU governor is {', '.join(governors)}",
            "processors slow down between queries, and a first token waits until they are fast again",
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )


def _quota(root: Path) -> Iterator[Finding]:
    """Yield a finding if a control group has a quota of fewer CPUs than are shown."""
    quota, shown = cpu_quota(root), len(os.sched_getaffinity(0))
    if quota is None or quota.cpus >= shown:
        return
    name = quota.group.name if quota.group != root / "sys/fs/cgroup" else "this container's"
    yield _finding(
        f"a control group ({name}) has a quota of {quota.cpus:.4g} of {shown} CPUs",
        f"when it is used up, server and client wait for the rest of {quota.period_s * 1000:.4g} ms",
        "start without it (docker run without --cpus; Kubernetes without limits.cpu; systemd: CPUQuota=), or give "
        "cores instead: docker run --cpuset-cpus",
    )


def _swap(root: Path) -> Iterator[Finding]:
    """Yield a finding if memory is swapped out."""
    memory = fields(text(root / "proc/meminfo"))
    total, free = (memory.get(name, "").removesuffix(" kB") for name in ("SwapTotal", "SwapFree"))
    used = (int(total) - int(free)) * 1024 if total.isdecimal() and free.isdecimal() else 0
    if used >= LEAST_SWAPPED:
        yield _finding(
            f"{used / 2**30:.1f} GiB are swapped out",
            "memory of server or client may come from disk",
            "take it back, where there is room: sudo swapoff -a",
        )


def _load(load: LoadSample | None) -> Iterator[Finding]:
    """Yield a finding if other programs use the processors."""
    if load is None or load.busy <= OTHERS:
        return
    most = f", {load.share:.0%} by {load.name} (process {load.pid})" if load.share > OTHERS / 2 else ""
    yield _finding(
        f"{load.busy:.0%} of the processors are in use{most}",
        "server and client have to share them with other programs",
        "end those that are not needed; list them with: top -o %CPU",
    )


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """The limits of each process and of the machine; None where there is none, or the kernel does not show it.

    `open_files` is the hard limit (ulimit -Hn), to which a run raises the soft one. `local_ports` bounds the TCP
    connections to one server. The bytes are those that are free: in /dev/shm, and of the memory.
    """

    open_files: int | None = None
    local_ports: int | None = None
    shared_memory_bytes: int | None = None
    memory_bytes: int | None = None


def machine_limits(root: Path = Path("/")) -> MachineLimits:
    """Return the limits of this process, and the machine's limits as read below `root`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineLimits(
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        local_ports=local_ports(root),
        shared_memory_bytes=_free(root / "dev/shm"),
        memory_bytes=free_memory(root),
    )


def local_ports(root: Path = Path("/")) -> int | None:
    """Return how many local ports the system gives to connections; None where the kernel does not show it."""
    words = text(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    if len(words) != 2 or not all(map(str.isdecimal, words)):
        return None
    return max(0, int(words[1]) - int(words[0]) + 1)


def _free(folder: Path) -> int | None:
    """Return the free bytes of the file system of a folder, None where it cannot be asked."""
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return None
    return filesystem.f_bavail * filesystem.f_frsize

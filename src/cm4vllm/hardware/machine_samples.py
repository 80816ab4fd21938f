"""Samples of the machine that this program runs on: work of its processors, its GPUs, and what slows both down.

    python -m cm4vllm.hardware.machine_samples

prints a line of JSON, a `MachineSample`, every 2 s and a last one when its standard input ends. A launcher runs it on
each node of a server over several.

The energy counters of the machine are read through a run: GPU boards' by their drivers, CPU packages' by the kernel's
powercap. A machine without a counter, or one that a user may not read, has no energy, which is no error: why is said.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import psutil

from cm4vllm.common.bounded_documents import lines_of
from cm4vllm.common.kernel_files import exists, matching, number, text
from cm4vllm.common.processors import cpu_quota
from cm4vllm.common.records import Record, write_sample_file
from cm4vllm.common.repetition import repeated
from cm4vllm.hardware.gpus.gpu import Drivers, gpus_of_processes, opened_drivers, vendors
from cm4vllm.hardware.gpus.vendor import Read
from cm4vllm.records.energy import Counter, Reading, RunEnergy, Scope, energy_of_run
from cm4vllm.records.metrics import GpuSample, GpusSample
from cm4vllm.records.run import QUOTA, TIMES

INTERVAL_S = 2.0


class MachineSample(Record, frozen=True, kw_only=True):
    """A machine, `at_s` seconds after the first sample.

    `busy_s` are the seconds that its processors have worked since it started, `stolen_s` those that the hypervisor gave
    to others meanwhile, None where the kernel does not say. `throttled` has the counters of `throttling`.
    """

    at_s: float
    processors: int
    busy_s: float | None = None
    stolen_s: float | None = None
    throttled: dict[str, float] = {}
    gpus: list[GpuSample] = []


def processor_seconds() -> tuple[float, float] | None:
    """Return the seconds that the processors were busy since the machine started, and those that were stolen."""
    try:
        times = psutil.cpu_times()
    except (OSError, ValueError):
        return None
    # Guests are counted in user and nice already (proc(5), /proc/stat).
    return times.user + times.nice + times.system + times.irq + times.softirq, times.steal


def machine_sample(begin: float, gpus: list[GpuSample] | None = None) -> MachineSample:
    """Return a sample of this machine; `begin` is the time of the first one, by the monotonic clock."""
    busy, stolen = processor_seconds() or (None, None)
    return MachineSample(
        at_s=round(time.monotonic() - begin, 3),
        processors=os.cpu_count() or 1,
        busy_s=busy,
        stolen_s=stolen,
        throttled=throttling(),
        gpus=gpus or [],
    )


def read_machine_samples(path: Path) -> list[MachineSample]:
    """Return the samples of a file, oldest first. Other lines, such as those of a login shell, are left out."""
    samples = []
    for line in lines_of(path) if exists(path) else []:
        with contextlib.suppress(ValueError, RecursionError):
            samples.append(msgspec.json.decode(line, type=MachineSample))
    return samples


def main(interval_s: float = INTERVAL_S) -> int:
    """Print samples until standard input ends."""
    begin, ended = time.monotonic(), False
    with opened_drivers() as drivers:
        while True:
            sample = machine_sample(begin, look_at_gpus(drivers))
            try:
                os.write(sys.stdout.fileno(), msgspec.json.encode(sample) + b"\n")
            except OSError:  # the launcher has ended
                return 1
            if ended:
                return 0
            readable, _, _ = select.select([sys.stdin], [], [], interval_s)
            ended = bool(readable) and not os.read(sys.stdin.fileno(), 4096)


def look_at_gpus(drivers: Drivers) -> list[GpuSample]:
    """Return what each GPU does just now; none where the driver has stopped responding."""
    return [sample for vendor, library in drivers for sample in vendor.samples(library)]


@contextmanager
def gpus_sampled(path: Path, *, here: bool = True, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Sample the GPUs through the block, and write all samples to `path`; no file where there is no driver.

    `here` says whether the server runs on this machine: the GPUs of another are not those of the run.
    """
    with opened_drivers() if here else nullcontext(()) as drivers:
        if not look_at_gpus(drivers):
            yield
            return
        samples: list[GpusSample] = []
        begin = time.monotonic()

        def look() -> None:
            """Add a sample of all GPUs, with the time since the beginning."""
            if gpus := look_at_gpus(drivers):
                samples.append(GpusSample(at_s=round(time.monotonic() - begin, 3), gpus=gpus))

        look()
        try:
            with repeated(look, interval_s, "gpu-samples", end_s=5 * interval_s):
                yield
        finally:
            write_sample_file(path, samples)


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


def throttling_between(before: Throttling, after: Throttling) -> dict[str, float]:
    """Return what was slowed down between two readings, and for how many seconds, or how often."""
    return {
        name: round(value - before[name], 3)
        for name, value in after.items()
        if name in before and value - before[name] >= (_LEAST_TIMES if name.endswith(TIMES) else _LEAST_S)
    }


def _processors(root: Path) -> dict[str, float]:
    """Return the greatest counter of all processors: Intel's thermal_throttle (the kernel's therm_throt.c)."""
    cpus = root / "sys/devices/system/cpu"
    times_ms, counts = (
        [
            value
            for file in matching(cpus, f"cpu[0-9]*/thermal_throttle/*_{kind}")
            if (value := number(file)) is not None
        ]
        for kind in ("throttle_total_time_ms", "throttle_count")
    )
    if times_ms:
        return {"a processor: its temperature": max(times_ms) / 1000}
    return {f"a processor: its temperature{TIMES}": float(max(counts))} if counts else {}


def _quota(root: Path) -> dict[str, float]:
    """Return how often, and how long, the quota of this program's control group was used up (cpu.stat)."""
    if (quota := cpu_quota(root)) is None:
        return {}
    name = f"{QUOTA} of {quota.cpus:.4g} CPUs"
    return {f"{name}{TIMES}": float(quota.throttled_periods), name: quota.throttled_s}


#: Seconds between two readings of counters. NVML's itself changes about every 0.1 s.
_READING_S = 0.25
#: The reason why the energy of a run is unknown: its server runs on another machine.
ELSEWHERE = "the server runs on another machine, or is simulated"


class EnergyWatch:
    """The counters of this machine and their readings so far; `missing` says which parts have none, and why."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.counters: list[tuple[Counter, Read]] = []
        self._rows: list[tuple[float, tuple[int | None, ...]]] = []

    def add(self, counters: Sequence[tuple[Counter, Read]], why_none: str) -> None:
        """Add counters, or why there are none."""
        self.counters += counters
        self.missing += [] if counters else [why_none]

    def read(self) -> None:
        """Read all counters once; the time of the reading is the middle between its start and its end."""
        before = time.time()
        values = tuple(read() for _, read in self.counters)
        self._rows.append(((before + time.time()) / 2, values))

    def energy(self, begin: datetime, end: datetime, pids: Collection[int] = ()) -> RunEnergy:
        """Return the energy between two times; the server's processes `pids` show on which GPUs it computes."""
        rows = list(self._rows)
        readings: list[tuple[Counter, list[Reading]]] = [
            (counter, [(at, value) for at, values in rows if (value := values[place]) is not None])
            for place, (counter, _) in enumerate(self.counters)
        ]
        return energy_of_run(readings, begin, end, used=gpus_of_processes(pids), not_measured=self.missing)


@contextmanager
def energy_watched(
    *, here: bool = True, interval_s: float = _READING_S, root: Path = Path("/")
) -> Iterator[EnergyWatch]:
    """Read the counters of this machine through the block; `here` says whether the server runs on it."""
    watch = EnergyWatch()
    with ExitStack() as stack:
        if here:
            drivers = stack.enter_context(opened_drivers())
            why_none = "the driver has no energy counter" if drivers else vendors()[0].why_none() or "no GPU"
            boards = [counter for vendor, library in drivers for counter in vendor.counters(library)]
            watch.add(boards, f"{Scope.GPU}: {why_none}")
            watch.add(list(package_counters(root)), _no_package(root))
        else:
            watch.missing.append(ELSEWHERE)
        if watch.counters:
            watch.read()
            stack.callback(watch.read)
            stack.enter_context(repeated(watch.read, interval_s, "energy-counters"))
        yield watch


def package_counters(root: Path = Path("/")) -> Iterator[tuple[Counter, Read]]:
    """Yield the counters of CPU packages that can be read (kernel: power/powercap/powercap.rst)."""
    for folder in _packages(root):
        largest = number(folder / "max_energy_range_uj")
        if largest is not None and number(folder / "energy_uj") is not None:
            counter = Counter(
                name=text(folder / "name"),
                scope=Scope.CPU,
                method=f"powercap, {folder.name}/energy_uj",
                unit_j=1e-6,
                wraps_at=largest,
            )
            yield counter, partial(number, folder / "energy_uj")


def _packages(root: Path) -> list[Path]:
    """Return the zones of whole packages; those of intel-rapl-mmio state the same energy again."""
    zones = matching(root / "sys/class/powercap", "*:*")
    return [zone for zone in zones if text(zone / "name").startswith("package") and "mmio" not in zone.name]


def _no_package(root: Path) -> str:
    if zones := _packages(root):
        return f"{Scope.CPU}: /sys/class/powercap/{zones[0].name}/energy_uj cannot be read; mostly root alone may"
    return f"{Scope.CPU}: the kernel shows no counter of one in /sys/class/powercap"


if __name__ == "__main__":
    sys.exit(main())

"""Samples of the machine that this program runs on: work of its processors, its GPUs, and what slows both down.

    python -m cm4vllm.hardware.machine_samples

prints a line of JSON, a `MachineSample`, every 2 s and a last one when its standard input ends. A launcher runs it on
each node of a server over several.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
import psutil

from cm4vllm.common.bounded_documents import lines_of
from cm4vllm.common.kernel_files import exists, matching, number
from cm4vllm.common.processors import cpu_quota
from cm4vllm.common.records import Record, write_sample_file
from cm4vllm.common.repetition import repeated
from cm4vllm.hardware.gpus.gpu import Drivers, opened_drivers
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


def throttled(before: Throttling, after: Throttling) -> dict[str, float]:
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


if __name__ == "__main__":
    sys.exit(main())

"""Samples of the machine that this program runs on: work of its processors, and its GPUs.

    python -m cm4vllm.hardware.machine_samples

prints a line of JSON, a `MachineSample`, every 2 s and a last one when its standard input ends. A launcher runs it on
each node of a server over several.
"""

import contextlib
import os
import select
import sys
import time
from pathlib import Path

import msgspec
import psutil

from cm4vllm.common.bounded_documents import lines_of
from cm4vllm.common.kernel_files import exists
from cm4vllm.common.records import Record
from cm4vllm.hardware.gpus.gpu import opened_drivers
from cm4vllm.hardware.gpus.gpu_samples import INTERVAL_S, look_at_gpus
from cm4vllm.hardware.gpus.throttling import throttling
from cm4vllm.records.metrics import GpuSample


class MachineSample(Record, frozen=True, kw_only=True):
    """A machine, `at_s` seconds after the first sample.

    `busy_s` are the seconds that its processors have worked since it started, `stolen_s` those that the hypervisor gave
    to others meanwhile, None where the kernel does not say. `throttled` has the counters of
    hardware/gpus/throttling.py.
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


if __name__ == "__main__":
    sys.exit(main())

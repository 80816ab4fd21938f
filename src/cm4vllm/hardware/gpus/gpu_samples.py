"""Samples of this machine's GPUs during a run: utilisation, power, memory, temperature and clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cm4vllm.common.records import write_sample_file
from cm4vllm.common.repetition import repeated
from cm4vllm.hardware.gpus.gpu import Drivers, opened_drivers
from cm4vllm.records.metrics import GpuSample, GpusSample

INTERVAL_S = 2.0


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

"""Samples of this machine's NVIDIA GPUs during a run: utilisation, power, memory, temperature, clock, by NVML."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cm4vllm.common.records import write_sample_file
from cm4vllm.common.repetition import repeated
from cm4vllm.hardware.gpus import nvml
from cm4vllm.hardware.gpus.drivers import constant
from cm4vllm.records.metrics import GpuSample, GpusSample

INTERVAL_S = 2.0


def look_at_gpus(library: Any) -> list[GpuSample]:
    """Return what each GPU does just now; none where the driver has stopped responding."""
    return [_sample(library, device) for device in nvml.devices(library)]


def _sample(library: Any, device: nvml.Device) -> GpuSample:
    load, memory = device.ask("nvmlDeviceGetUtilizationRates"), device.ask("nvmlDeviceGetMemoryInfo")
    power = device.ask("nvmlDeviceGetPowerUsage")
    return GpuSample(
        index=device.place,
        name=device.name,
        utilisation=None if load is None else load.gpu / 100,
        power_w=None if power is None else power / 1000,
        memory_used_bytes=None if memory is None else int(memory.used),
        temperature_c=device.ask("nvmlDeviceGetTemperature", constant(library, "NVML_TEMPERATURE_GPU")),
        sm_mhz=device.ask("nvmlDeviceGetClockInfo", constant(library, "NVML_CLOCK_SM")),
    )


@contextmanager
def gpus_sampled(path: Path, *, here: bool = True, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Sample the GPUs through the block, and write all samples to `path`; no file where there is no driver.

    `here` says whether the server runs on this machine: the GPUs of another are not those of the run.
    """
    with nvml.opened() if here else nullcontext() as library:
        if library is None or not look_at_gpus(library):
            yield
            return
        samples: list[GpusSample] = []
        begin = time.monotonic()

        def look() -> None:
            if gpus := look_at_gpus(library):
                samples.append(GpusSample(at_s=round(time.monotonic() - begin, 3), gpus=gpus))

        look()
        try:
            with repeated(look, interval_s, "gpu-samples", end_s=5 * interval_s):
                yield
        finally:
            write_sample_file(path, samples)

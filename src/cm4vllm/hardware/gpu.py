"""NVIDIA GPUs, from the driver's NVML. A machine without the driver has none, which is no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cm4vllm.hardware.records import GpuFacts

__all__ = ["detect_gpus"]

T = TypeVar("T")


def detect_gpus() -> list[GpuFacts]:
    """Return the GPUs that the driver shows, in its order; none where there is no driver or it does not answer."""
    try:
        import pynvml as nvml
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return [_facts(nvml, nvml.nvmlDeviceGetHandleByIndex(i), driver) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _facts(nvml: Any, handle: Any, driver: str) -> GpuFacts:
    def asked(question: Callable[[], T]) -> T | None:
        try:
            return question()
        except nvml.NVMLError:  # a GPU that does not know an answer says so with an error
            return None

    return GpuFacts(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        max_sm_mhz=asked(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        pcie_generation=asked(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        pcie_width=asked(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
        driver=driver,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

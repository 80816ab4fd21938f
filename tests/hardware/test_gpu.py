from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.hardware.gpu import detect_gpus


class NVMLError(Exception):
    pass


def unknown(*_):
    raise NVMLError


def driver(**changes):
    """A driver of one H200, with NVML's own function names."""
    answers = {
        "NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "nvmlInit": lambda: None, "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.86.15", "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index, "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda _: "GPU-1", "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=150754820096),
        "nvmlDeviceGetMaxClockInfo": lambda *_: 1980, "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
    }
    return SimpleNamespace(**{**answers, **changes})


def test_a_gpu_is_described_as_its_driver_does(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    (gpu,) = detect_gpus()
    assert (gpu.name, gpu.memory_bytes, gpu.max_sm_mhz) == ("NVIDIA H200", 150754820096, 1980)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.driver) == (5, 16, "570.86.15")


def test_what_a_gpu_does_not_tell_is_none(monkeypatch):
    quiet = driver(nvmlDeviceGetMaxClockInfo=unknown, nvmlDeviceGetMaxPcieLinkGeneration=unknown)
    monkeypatch.setitem(sys.modules, "pynvml", quiet)
    (gpu,) = detect_gpus()
    assert (gpu.max_sm_mhz, gpu.pcie_generation, gpu.pcie_width) == (None, None, 16)


def test_no_driver_is_no_gpu_and_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlInit=unknown))
    assert detect_gpus() == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_this_machine_without_a_driver_has_no_gpus():
    assert detect_gpus() == []


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="this machine has no NVIDIA driver")
def test_this_machines_gpus_are_found():
    assert all(gpu.memory_bytes > 2**30 and gpu.driver for gpu in detect_gpus())

"""GPUs sampled through a run: by NVML's answers, written as lines, and nothing where there is no driver."""

import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.common.records import read_sample_file
from cm4vllm.hardware.gpus.gpu_samples import gpus_sampled, look_at_gpus
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, GpusSample
from gpu_replay import Replay

RECORDING = json.loads((Path(__file__).parent / "recordings" / "h100-sxm-x4.json").read_text())


class Load(Replay):
    """The recorded machine, with answers of NVML's calls about load: their fields are those of nvidia-ml-py."""

    def __init__(self) -> None:
        answers = dict(RECORDING["answers"])
        for place in range(4):
            answers[f"nvmlDeviceGetPowerUsage(gpu{place})"] = 650_500 + place
            answers[f"nvmlDeviceGetClockInfo(gpu{place}, 1)"] = 1755
        super().__init__({"answers": answers})
        self.looks = 0

    def __getattr__(self, name: str):
        if name == "nvmlDeviceGetCount":
            self.looks += 1
        if name == "nvmlDeviceGetUtilizationRates":
            return lambda handle: SimpleNamespace(gpu=97, memory=40)
        return super().__getattr__(name)


def test_each_gpu_is_read_and_what_it_does_not_report_stays_open() -> None:
    samples = look_at_gpus([(nvml.VENDOR, Load())])
    assert [(gpu.index, gpu.utilisation, gpu.power_w, gpu.sm_mhz) for gpu in samples] == [
        (place, 0.97, (650_500 + place) / 1000, 1755) for place in range(4)
    ]
    assert "H100" in samples[0].name and samples[0].temperature_c is None  # not in the recording
    silent = look_at_gpus([(nvml.VENDOR, Replay(RECORDING))])
    assert len(silent) == 4 and silent[0].utilisation is None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Load:
    load = Load()

    @contextlib.contextmanager
    def opened():
        yield load

    monkeypatch.setattr(nvml, "opened", opened)
    return load


def test_the_samples_of_a_run_are_read_back(driver, tmp_path: Path) -> None:
    begin = time.monotonic()
    with gpus_sampled(tmp_path / GPU_SAMPLES_FILE, interval_s=0.02):
        while driver.looks < 6 and time.monotonic() < begin + 30:
            time.sleep(0.02)
    elapsed_s = time.monotonic() - begin
    samples = read_sample_file(tmp_path / GPU_SAMPLES_FILE, GpusSample)
    assert len(samples) >= 3 and [len(sample.gpus) for sample in samples] == [4] * len(samples)
    assert 0 <= samples[0].at_s < samples[1].at_s < samples[-1].at_s < elapsed_s


def test_the_gpus_of_another_machine_are_not_those_of_the_run(driver, tmp_path: Path) -> None:
    with gpus_sampled(tmp_path / GPU_SAMPLES_FILE, here=False):
        pass
    assert read_sample_file(tmp_path / GPU_SAMPLES_FILE, GpusSample) == [] and not list(tmp_path.iterdir())

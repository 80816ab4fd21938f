import contextlib
import ctypes
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.common.records import read_sample_file
from cm4vllm.hardware.gpus.accelerators import accelerator_keys
from cm4vllm.hardware.gpus.gpu import Recorder, UsedGpu, detect_gpus, gpus_of_processes, least_memory, record_gpus
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.hardware.machine_facts import gpu_lines
from cm4vllm.hardware.machine_samples import gpus_sampled, look_at_gpus
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, GpusSample
from gpu_replay import Replay

RECORDINGS = Path(__file__).with_name("recordings")
has_driver = Path("/dev/nvidiactl").exists()


def replayed(name, **answers):
    recording = json.loads((RECORDINGS / f"{name}.json").read_text())
    recording["answers"].update(answers)
    return Replay(recording)


def test_gpus_are_described_as_their_drivers_do():
    gpus = nvml.VENDOR.gpus(replayed("l40s-x4"))
    assert len(gpus) == 4
    first = gpus[0]
    assert (first.name, first.memory_bytes, first.memory_bus_bits) == ("NVIDIA L40S", 46068 * 2**20, 384)
    assert (first.max_sm_mhz, first.max_memory_mhz, first.pcie_generation, first.pcie_width) == (2520, 9001, 4, 16)
    assert (first.driver, first.cuda, first.compute_capability) == ("550.163.01", "12.4", "8.9")
    assert (first.ecc, first.mig, first.power_limit_w, first.links) == (True, None, 350, {})
    assert first.paths == {gpus[1].uuid: "PHB", gpus[2].uuid: "SYS", gpus[3].uuid: "SYS"}
    (passed,) = nvml.VENDOR.gpus(replayed("h200-passthrough"))
    assert (passed.name, passed.memory_bytes, passed.memory_bus_bits) == ("NVIDIA H200", 150754820096, 6016)
    assert (passed.mig, passed.virtualisation) == (False, "passthrough")
    (split,) = nvml.VENDOR.gpus(replayed("h100-mig-3g40gb-x2"))
    assert split.mig is True
    assert [part.profile for part in split.mig_devices] == ["3g.40gb", "3g.40gb"]
    assert split.mig_devices[0].memory_bytes == 40448 * 2**20
    assert len({part.uuid for part in split.mig_devices} | {split.uuid}) == 3


def test_a_driver_that_answers_nothing_has_no_gpus():
    assert nvml.VENDOR.gpus(Replay({"answers": {}})) == []
    unnamed = nvml.VENDOR.gpus(replayed("l40s-x4", **{"nvmlSystemGetDriverVersion()": {"error": 9}}))
    assert [gpu.driver for gpu in unnamed] == [""] * 4


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.json")))
def test_every_single_answer_may_be_missing(name):
    recording = json.loads((RECORDINGS / f"{name}.json").read_text())
    whole = len(nvml.VENDOR.gpus(replayed(name)))
    for key in recording["answers"]:
        left = nvml.VENDOR.gpus(replayed(name, **{key: {"error": 999}}))
        lost = whole if key == "nvmlDeviceGetCount()" else int(key.startswith("nvmlDeviceGetHandleByIndex"))
        assert len(left) == len({gpu.uuid for gpu in left}) == whole - lost, key
        assert all(gpu.name for gpu in left)


@pytest.mark.parametrize("name", ["NVIDIA Thor", "Orin (nvgpu)", "NVIDIA GB10", "NVIDIA-GB10"])
@pytest.mark.parametrize("answer", [{"error": pynvml.NVML_ERROR_NOT_SUPPORTED}, {"total": 0, "free": 0, "used": 0}])
def test_a_gpu_without_memory_of_its_own_shares_the_hosts(name, answer):
    integrated = {"nvmlDeviceGetName(gpu0)": name, "nvmlDeviceGetMemoryInfo(gpu0)": answer}
    (gpu,) = nvml.VENDOR.gpus(replayed("h200-passthrough", **integrated))
    assert (gpu.memory_bytes, gpu.shares_host_memory) == (None, True)
    assert [line for line in gpu_lines([gpu]) if "not detected: memory" in line and "shared with the host" in line]
    assert least_memory([UsedGpu(gpu)]) == (detect_memory().usable_bytes, "the host's, which it shares")


@pytest.mark.parametrize("name", ["GRID A100D-8C", "NVIDIA L40S-48Q"])
@pytest.mark.parametrize("answer", [{"error": pynvml.NVML_ERROR_NOT_SUPPORTED}, {"total": 0, "free": 0, "used": 0}])
def test_of_a_gpu_that_is_not_known_nothing_is_said_but_what_its_driver_answers(name, answer):
    answers = {"nvmlDeviceGetName(gpu0)": name, "nvmlDeviceGetMemoryInfo(gpu0)": answer}
    (gpu,) = nvml.VENDOR.gpus(replayed("h200-passthrough", **answers))
    assert (gpu.memory_bytes, gpu.shares_host_memory) == (None, False)
    assert "shared" not in " ".join([*gpu_lines([gpu]), *accelerator_keys([UsedGpu(gpu)]).values()])
    assert least_memory([UsedGpu(gpu)]) == (0.0, f"not detected ({gpu.unanswered['memory']})")


def test_the_memory_of_a_gpu_that_is_known_is_as_it_is_sold_where_the_driver_does_not_state_it():
    key = "nvmlDeviceGetMemoryInfo(gpu0)"
    gpu = nvml.VENDOR.gpus(replayed("l40s-x4", **{key: {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}}))[0]
    assert (gpu.memory_bytes, gpu.shares_host_memory) == (None, False)
    memory, whose = least_memory([UsedGpu(gpu)])
    assert 40e9 < memory < 48e9 and whose == "as the NVIDIA L40S is sold"


def test_a_gpu_that_is_lost_is_named_and_the_others_keep_their_places():
    key = "nvmlDeviceGetHandleByIndex(1)"
    left = replayed("l40s-x4", **{key: {"error": pynvml.NVML_ERROR_GPU_IS_LOST}})
    assert [device.place for device in nvml.devices(left)] == [0, 2, 3]
    assert nvml.VENDOR.silent(left) == ["GPU 1 does not respond: GPU is lost"]


def test_every_recording_says_where_it_comes_from():
    for path in RECORDINGS.glob("*.json"):
        source = json.loads(path.read_text())["source"]
        assert source.startswith(("composed, not recorded: ", "recorded by ")), path


def test_the_gpus_of_a_process_are_found(monkeypatch):
    key = "nvmlDeviceGetComputeRunningProcesses(gpu2)"
    busy = replayed("l40s-x4", **{key: [{"pid": 4711, "usedGpuMemory": 1}]})
    monkeypatch.setattr(nvml.VENDOR, "opened", lambda: contextlib.nullcontext(busy))
    assert gpus_of_processes({4711, 12}) == [nvml.VENDOR.gpus(busy)[2].uuid]
    assert gpus_of_processes({12}) == []
    gone = replayed("l40s-x4", **{"nvmlDeviceGetCount()": {"error": 999}})
    monkeypatch.setattr(nvml.VENDOR, "opened", lambda: contextlib.nullcontext(gone))
    assert gpus_of_processes({4711}) == []


class Driver:
    """Two devices as nvidia-ml-py gives them: handles are pointers, structures are ctypes'."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_NVLINK_MAX_LINKS = 1, 2, 18
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    devices = [ctypes.pointer(pynvml.struct_c_nvmlDevice_t()) for _ in range(2)]
    uuids = ["GPU-4039dfe4-0c97-4b1e-683e-eb7d42699053", "GPU-dd3b269a-8f3a-d2d5-1518-2713ba03fcf7"]

    def __getattr__(self, name):
        def unknown(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        if not name.startswith("nvml"):
            raise AttributeError(name)
        return unknown

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.devices[index]

    def nvmlSystemGetDriverVersion(self):
        return b"570.86.15"

    def index(self, handle):
        at = ctypes.addressof(handle.contents)
        return [ctypes.addressof(device.contents) for device in self.devices].index(at)

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[self.index(handle)]

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return pynvml.c_nvmlMemory_t(total=150754820096, free=1, used=2)

    def nvmlDeviceGetPciInfo(self, handle):
        return pynvml.nvmlPciInfo_t(busId=f"00000000:0{self.index(handle)}:00.0".encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, device, other):
        return 30


def test_a_recording_is_replayed_to_the_same_facts_with_counted_uuids():
    recorder = Recorder(Driver())
    seen = nvml.VENDOR.gpus(recorder)
    text = json.dumps(recorder.recording("test"))
    again = nvml.VENDOR.gpus(Replay(json.loads(text)))
    assert [gpu.uuid for gpu in again] == [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(2)]
    assert not any(uuid in text for uuid in Driver.uuids)
    for before, other in zip(seen, again, strict=True):
        assert (before.name, before.memory_bytes, before.pci_bus_id) == (
            other.name,
            other.memory_bytes,
            other.pci_bus_id,
        )
        assert list(before.paths.values()) == list(other.paths.values()) == ["PHB"]
    assert "Serial" not in text


@pytest.mark.skipif(has_driver, reason="this machine has an NVIDIA driver")
def test_this_machine_without_a_driver_has_no_gpus_and_nothing_to_record(tmp_path):
    assert detect_gpus() == []
    with pytest.raises(CmError, match="no GPU to record"):
        record_gpus(tmp_path / "gpus.json")


@pytest.mark.skipif(not has_driver, reason="this machine has no NVIDIA driver")
def test_this_machines_gpus_are_found_and_recorded(tmp_path):
    gpus = detect_gpus()
    assert all(gpu.memory_bytes > 2**30 and gpu.driver and gpu.pcie_width for gpu in gpus)
    record_gpus(tmp_path / "gpus.json")
    again = nvml.VENDOR.gpus(Replay(json.loads((tmp_path / "gpus.json").read_text())))
    assert [(gpu.name, gpu.memory_bytes, gpu.power_limit_w, gpu.ecc) for gpu in again] == [
        (gpu.name, gpu.memory_bytes, gpu.power_limit_w, gpu.ecc) for gpu in gpus
    ]
    assert gpus_of_processes(set()) == []


# --- GPUs sampled through a run: by NVML's answers, written as lines, and nothing where there is no driver


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
    monkeypatch.setattr(nvml.VENDOR, "opened", lambda: contextlib.nullcontext(load))
    return load


def test_the_samples_of_a_run_are_read_back_and_of_another_machine_none_taken(driver, tmp_path: Path) -> None:
    with gpus_sampled(tmp_path / GPU_SAMPLES_FILE, here=False):
        pass
    assert read_sample_file(tmp_path / GPU_SAMPLES_FILE, GpusSample) == [] and not list(tmp_path.iterdir())
    begin = time.monotonic()
    with gpus_sampled(tmp_path / GPU_SAMPLES_FILE, interval_s=0.02):
        while driver.looks < 6 and time.monotonic() < begin + 30:
            time.sleep(0.02)
    elapsed_s = time.monotonic() - begin
    samples = read_sample_file(tmp_path / GPU_SAMPLES_FILE, GpusSample)
    assert len(samples) >= 3 and [len(sample.gpus) for sample in samples] == [4] * len(samples)
    assert 0 <= samples[0].at_s < samples[1].at_s < samples[-1].at_s < elapsed_s

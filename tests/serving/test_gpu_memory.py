"""The wait for a server's GPU memory to be freed, with readings in NVML's form; no GPU is needed."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from cm4vllm.hardware.gpus.vendor import GpuUse
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.serving.gpu_memory import gpu_memory, wait_until_freed
from gpu_replay import Replay

GIB = 2**30


def reading(used_gib: float, *processes: int) -> dict[str, GpuUse]:
    return {"GPU-1": GpuUse("NVIDIA H100 80GB HBM3", int(used_gib * GIB), frozenset(processes))}


def test_memory_that_is_freed_in_time_is_waited_for(capsys):
    readings = iter([reading(70, 12), reading(70, 12), reading(1.1)])
    assert wait_until_freed(reading(1), lambda: next(readings), timeout_s=30)
    assert capsys.readouterr().out == ""


def test_memory_that_stays_is_told_with_its_holder(capsys):
    assert not wait_until_freed(reading(1, 1), lambda: reading(71, 1, os.getpid()), timeout_s=0.1)
    said = capsys.readouterr().out
    assert "70.0 GiB more" in said
    assert f"({os.getpid()})" in said
    assert "(1)" not in said


def test_without_a_gpu_there_is_nothing_to_wait_for():
    assert wait_until_freed({}, lambda: pytest.fail("nobody needs to look"), timeout_s=30)


def test_the_memory_in_use_is_read_with_the_processes_that_hold_it(monkeypatch):
    recording = json.loads((Path(__file__).parents[1] / "hardware/recordings/l40s-x4.json").read_text())
    answers = {f"nvmlDeviceGetMemoryInfo(gpu{place})": {"total": 48 * GIB, "used": place * GIB} for place in range(4)}
    answers["nvmlDeviceGetComputeRunningProcesses(gpu2)"] = [{"pid": 4711}, {"pid": 12}]
    driver = Replay({"answers": {**recording["answers"], **answers}})
    monkeypatch.setattr(nvml, "opened", lambda: contextlib.nullcontext(driver))
    memory = list(gpu_memory().values())
    assert [gpu.used_bytes for gpu in memory] == [0, GIB, 2 * GIB, 3 * GIB]
    assert [gpu.processes for gpu in memory] == [set(), set(), {12, 4711}, set()] and memory[0].name == "NVIDIA L40S"
    driver = Replay({"answers": {}})
    assert gpu_memory() == {}


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
def test_a_machine_without_a_driver_has_no_gpu_memory():
    assert gpu_memory() == {}

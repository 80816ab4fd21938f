"""The wait for a server's GPU memory to be freed, with readings in NVML's form; no GPU is needed."""

import os
import shutil
import sys

import pytest

from cm4vllm.serving.gpu_memory import GpuMemory, gpu_memory, wait_until_freed

GIB = 2**30


def reading(used_gib: float, *processes: int) -> dict[str, GpuMemory]:
    return {"GPU-1": GpuMemory("NVIDIA H100 80GB HBM3", int(used_gib * GIB), processes)}


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


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
def test_a_machine_without_a_driver_has_no_gpu_memory(monkeypatch):
    assert gpu_memory() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_memory() == {}

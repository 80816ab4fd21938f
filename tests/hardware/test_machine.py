from __future__ import annotations

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.host import detect_host
from cm4vllm.hardware.machine import cpu_env, gpu_env
from cm4vllm.hardware.records import GpuFacts


def test_the_processors_are_given_under_the_public_names(server):
    env = cpu_env(detect_cpu(server), detect_host(server))
    assert env["CM_HOST_CPU_SOCKETS"] == "2"
    assert env["CM_HOST_CPU_PHYSICAL_CORES_PER_SOCKET"] == "4"
    assert env["CM_HOST_CPU_TOTAL_CORES"] == env["CM_HOST_CPU_TOTAL_LOGICAL_CORES"] == "16"
    assert env["CM_HOST_CPU_TOTAL_PHYSICAL_CORES"] == "8"
    assert env["CM_HOST_CPU_L1D_CACHE_SIZE"] == "384 KiB (8 instances)"
    assert env["CM_HOST_CPU_MAX_MHZ"] == "3800"
    assert env["CM_HOST_MEMORY_CAPACITY"] == "64 GB"
    assert env["CM_HOST_VIRTUAL"] == "no"


def test_what_is_not_shown_is_left_out(tmp_path):
    env = cpu_env(detect_cpu(tmp_path), detect_host(tmp_path))
    assert "CM_HOST_CPU_MAX_MHZ" not in env
    assert "CM_HOST_VIRTUAL" not in env


def test_no_gpu_is_a_count_of_0():
    assert gpu_env([]) == {"CM_HOST_GPU_COUNT": "0", "CM_CUDA_NUM_DEVICES": "0"}


def test_the_first_gpu_is_described():
    gpu = GpuFacts(name="NVIDIA L4", uuid="u", memory_bytes=24 * 2**30, max_sm_mhz=None, pcie_generation=None,
                   pcie_width=None, driver="570.1")
    env = gpu_env([gpu, gpu])
    assert env["CM_HOST_GPU_COUNT"] == "2"
    assert env["CM_HOST_GPU_MODEL_NAME"] == "NVIDIA L4"
    assert env["CM_HOST_GPU_MEMORY_CAPACITY"] == "24 GB"

from msgspec.structs import replace

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.host import detect_host
from cm4vllm.hardware.machine_facts import cpu_env, gpu_env, memory_env, network_env, storage_env
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.storage import detect_disks
from cm4vllm.records.machine import GpuFacts, MemoryModule, NetworkCard


def test_the_processors_are_given_under_the_public_names(server):
    env = cpu_env(detect_cpu(server), detect_host(server))
    assert env["CM_HOST_CPU_SOCKETS"] == "2"
    assert env["CM_HOST_CPU_PHYSICAL_CORES_PER_SOCKET"] == "4"
    assert env["CM_HOST_CPU_TOTAL_CORES"] == env["CM_HOST_CPU_TOTAL_LOGICAL_CORES"] == "16"
    assert env["CM_HOST_CPU_TOTAL_PHYSICAL_CORES"] == "8"
    assert env["CM_HOST_CPU_L1D_CACHE_SIZE"] == "384 KiB (8 instances)"
    assert env["CM_HOST_CPU_MAX_MHZ"] == "3800"
    assert env["CM_HOST_VIRTUAL"] == "no"


def test_what_is_not_shown_is_left_out(tmp_path):
    env = cpu_env(detect_cpu(tmp_path), detect_host(tmp_path))
    assert "CM_HOST_CPU_MAX_MHZ" not in env
    assert "CM_HOST_VIRTUAL" not in env


def test_no_gpu_is_a_count_of_0():
    assert gpu_env([]) == {"CM_HOST_GPU_COUNT": "0", "CM_CUDA_NUM_DEVICES": "0", "CM_ROCM_NUM_DEVICES": "0"}


def test_the_first_gpu_is_described():
    gpu = GpuFacts(
        name="NVIDIA L4",
        uuid="u",
        memory_bytes=24 * 2**30,
        max_sm_mhz=None,
        pcie_generation=None,
        pcie_width=None,
        driver="570.1",
    )
    env = gpu_env([gpu, gpu])
    assert env["CM_HOST_GPU_COUNT"] == "2"
    assert env["CM_HOST_GPU_MODEL_NAME"] == "NVIDIA L4"
    assert env["CM_HOST_GPU_MEMORY_CAPACITY"] == "24 GB"


def test_memory_disks_and_network_are_given(server):
    memory = detect_memory(server)
    assert memory_env(memory) == {"CM_HOST_MEMORY_CAPACITY": "64 GB", "CM_HOST_MEMORY_CAPACITY_BYTES": str(64 * 2**30)}
    modules = [MemoryModule(size_bytes=2**35, kind="DDR5", mega_transfers=4800)] * 2
    assert memory_env(replace(memory, modules=modules))["CM_HOST_MEMORY_MODULES"] == "2x 32 GB DDR5-4800"
    disks = storage_env(detect_disks(server), 1)
    assert disks == {
        "CM_HOST_DISK_CAPACITY": "2.92 TB",
        "CM_HOST_STORAGE_TYPE": "NVMe SSD, HDD",
        "CM_HOST_STORAGE_COUNT": "2",
    }
    cards = [NetworkCard(kind="Ethernet", megabits=25000), NetworkCard(kind="virtual", megabits=10)]
    assert network_env(cards) == {
        "CM_HOST_NETWORK_CARD_COUNT": "1",
        "CM_HOST_NETWORK_TYPE": "Ethernet, virtual",
        "CM_HOST_NETWORK_MBITS": "25000",
    }


def test_the_root_file_system_counts_where_no_disk_is_shown():
    assert storage_env([], 5 * 10**12) == {"CM_HOST_DISK_CAPACITY": "5 TB", "CM_HOST_STORAGE_COUNT": "0"}

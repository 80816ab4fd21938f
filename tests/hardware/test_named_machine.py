"""Machines that are named: a count with a row of the table, a file, a published description."""

import json

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import write_record
from cm4vllm.hardware.named_machine import described_machine, named_machine, published_machine
from cm4vllm.records.known_hardware import known_accelerators
from cm4vllm.records.machine import CpuFacts, GpuFacts, HostFacts, MachineFacts, MemoryFacts

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "words", "device", "nodes"),
    [
        ("8xH100-SXM-80GB", "8 x NVIDIA H100-SXM-80GB with 80 GiB each", "cuda", 1),
        ("2x8xH200", "2 nodes of 8 x NVIDIA H200-SXM-141GB with 141 GiB each", "cuda", 2),
        ("4xRTX4090", "4 x NVIDIA GeForce RTX 4090 with 24 GiB each", "cuda", 1),
        ("3x NVIDIA L40S", "3 x NVIDIA L40S with 48 GiB each", "cuda", 1),
        ("8xmi300x", "8 x AMD Instinct MI300X with 192 GiB each", "rocm", 1),
        ("8xL4", "8 x NVIDIA L4 with 24 GiB each", "cuda", 1),
        ("T4", "1 x Tesla T4 with 16 GiB each", "cuda", 1),
    ],
)
def test_a_count_with_a_product_is_a_machine(name, words, device, nodes):
    machine = named_machine(name)
    assert (machine.words, machine.device, machine.nodes) == (words, device, nodes)
    assert len({gpu.uuid for gpu in machine.gpus}) == len(machine.gpus), "each GPU is one of its own"


def test_every_accelerator_of_the_table_can_be_named_as_it_is_shown():
    for row in known_accelerators():
        machine = named_machine(f"2x{row.title}")
        assert machine.gpus[0].name == row.title and machine.gpu_memory_bytes == row.memory_gb[0] * GIB


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("8xH100", "H100-SXM-80GB, NVIDIA H100-PCIe-80GB, NVIDIA H100-NVL-94GB"),
        ("4xA100-80GB", "NVIDIA A100-SXM-80GB, NVIDIA A100-PCIe-80GB"),
        ("8xH20", "--gpu_memory=<GiB>"),
        ("8xB999", "--gpu_memory=<GiB>"),
        ("0xL40S", "from 1 to 4,096 GPUs"),
        ("99999x999xL40S", "from 1 to 4,096 GPUs"),
        ("nowhere/machine.json", "No such file"),
        ("", "names no machine"),
    ],
)
def test_a_name_that_stands_for_no_machine_or_several_is_refused(name, says):
    with pytest.raises(UsageError) as caught:
        named_machine(name)
    assert says in str(caught.value)


def test_an_accelerator_that_the_table_lacks_needs_its_memory_and_its_maker():
    assert named_machine("8xB999", gpu_memory_gib=288, device="cuda").words == "8 x B999 with 288 GiB each"
    assert named_machine("8xAMD MI999", gpu_memory_gib=300).device == "rocm"
    with pytest.raises(UsageError, match="who makes"):
        named_machine("8xB999", gpu_memory_gib=288)
    assert named_machine("2xH200", gpu_memory_gib=100).gpu_memory_bytes == 100 * GIB, "what is given goes first"


def facts(*gpus):
    return MachineFacts(
        host=HostFacts(os_name="", os_version="", kernel="", machine="", python="", virtualised=None),
        cpu=CpuFacts(
            model_name="EPYC",
            sockets=2,
            cores_per_socket=16,
            threads_per_core=2,
            logical_cpus=64,
            max_mhz=None,
            caches={},
            numa_nodes=2,
            flags=[],
        ),
        memory=MemoryFacts(total_bytes=512 * GIB, source="", usable_bytes=500 * GIB),
        disks=[],
        root_bytes=1,
        network=[],
        gpus=list(gpus),
    )


def gpu(number, name="NVIDIA L40S", driver="550.54.15"):
    return GpuFacts(
        name=name,
        uuid=f"GPU-{number}",
        memory_bytes=45 * GIB,
        max_sm_mhz=None,
        pcie_generation=4,
        pcie_width=16,
        driver=driver,
    )


def test_the_file_that_a_description_leaves_is_the_machine_with_its_driver(tmp_path):
    path = tmp_path / "machine.json"
    write_record(path, facts(gpu(0), gpu(1)))
    machine = named_machine(str(path))
    assert machine.words == "2 x NVIDIA L40S with 45 GiB each", "what its driver reports, not what was sold"
    assert (machine.driver, machine.cores, machine.device) == ("550.54.15", 32, "cuda")
    write_record(path, facts())
    machine = named_machine(str(path))
    assert (machine.title, machine.device, machine.memory_bytes) == ("2 x EPYC", "cpu", 500 * GIB)


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"gpus": 3}', '{"accelerators_per_node": "1e9"}'])
def test_a_file_that_describes_no_machine_is_refused(tmp_path, text):
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="describes no machine"):
        named_machine(str(path))


def test_a_published_description_is_a_machine(tmp_path):
    said = {"accelerators_per_node": "8", "number_of_nodes": "2", "accelerator_model_name": "NVIDIA L40S"}
    assert described_machine(said).words == "2 nodes of 8 x NVIDIA L40S with 48 GiB each"
    cpu = {
        "accelerators_per_node": "0",
        "host_processors_per_node": "2",
        "host_processor_core_count": "64",
        "host_processor_model_name": "X",
    }
    machine = described_machine(cpu)
    assert (machine.title, machine.cores, machine.device) == ("2 x X", 128, "cpu")
    path = tmp_path / "system.json"
    path.write_text(json.dumps(said))
    assert named_machine(str(path)).nodes == 2
    assert published_machine("2 x Intel Xeon 6980P", 0).device == "cpu"

from __future__ import annotations

import os

import pytest
from machines import put

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.host import detect_host, is_virtual
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.storage import detect_disks


def test_sockets_cores_and_threads_are_counted_from_the_topology(server):
    cpu = detect_cpu(server)
    assert (cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.logical_cpus) == (2, 4, 2, 16)
    assert cpu.model_name == "Intel(R) Xeon(R) Platinum 8480+"
    assert cpu.max_mhz == 3800
    assert cpu.smt is True
    assert cpu.numa_nodes == 2
    assert "amx_bf16" in cpu.flags


def test_caches_are_summed_over_their_instances(server):
    assert detect_cpu(server).caches == {"L1d": "384 KiB (8 instances)", "L3": "210 MiB (2 instances)"}


def test_what_is_not_shown_is_none(tmp_path):
    cpu = detect_cpu(tmp_path)
    assert cpu.max_mhz is None
    assert cpu.numa_nodes is None
    assert cpu.caches == {}
    assert cpu.logical_cpus >= 1


def test_an_arm_processor_is_named_by_its_part(tmp_path):
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc/cpuinfo"
    info.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
    assert detect_cpu(tmp_path).model_name == "Arm Neoverse V2"
    assert "bf16" in detect_cpu(tmp_path).flags
    info.write_text("CPU implementer\t: 0x61\nCPU part\t: 0x022\n")
    assert detect_cpu(tmp_path).model_name == "Arm processor, implementer 0x61, part 0x022"


SHAPES = {
    # of a Xeon Platinum 8480+ with two sockets, cut to one thread of each
    "intel": (
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Intel(R) Xeon(R) Platinum 8480+\nphysical id\t: 0\nsiblings\t: 112\ncore id\t\t: 0\n"
        "cpu cores\t: 56\nflags\t\t: fpu vme amx_bf16\n\n"
        "processor\t: 1\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\nphysical id\t: 1\ncore id\t\t: 0\n\n",
        "Intel(R) Xeon(R) Platinum 8480+",
        (2, 1, 1, 2),
    ),
    # of an EC2 guest: the base frequency is in the name, siblings share a core
    "guest": (
        "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz\nphysical id\t: 0\n"
        "core id\t\t: 0\nflags\t\t: fpu hypervisor\n\nprocessor\t: 1\nphysical id\t: 0\ncore id\t\t: 0\n",
        "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz",
        (1, 1, 2, 2),
    ),
    "amd": (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9254 24-Core Processor\n"
        "physical id\t: 0\ncore id\t\t: 0\nflags\t\t: fpu avx512f\n",
        "AMD EPYC 9254 24-Core Processor",
        (1, 1, 1, 1),
    ),
    # of a Grace: no model name, no topology in the file
    "grace": (
        "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve2 bf16\nCPU implementer\t: 0x41\n"
        "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n\n"
        "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n",
        "Arm Neoverse V2",
        (1, 2, 1, 2),
    ),
    "ampere": ("processor\t: 0\nCPU implementer\t: 0xc0\nCPU part\t: 0xac3\n", "Ampere-1", (1, 1, 1, 1)),
    # of a guest whose hypervisor hides the name and the topology
    "hidden": (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: unknown\nflags\t\t: fpu hypervisor\n\n"
        "processor\t: 1\nmodel name\t: unknown\n",
        None,
        (1, 2, 1, 2),
    ),
    "power": (
        "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3800.000000MHz\n\n"
        "timebase\t: 512000000\nplatform\t: PowerNV\n",
        "POWER9, altivec supported",
        (1, 1, 1, 1),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_processors_are_counted_without_sys(tmp_path, shape):
    text, name, counts = SHAPES[shape]
    put(tmp_path, {"proc/cpuinfo": text})
    cpu = detect_cpu(tmp_path)
    assert (cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.logical_cpus) == counts
    assert cpu.model_name == (name or cpu.model_name) != "unknown"


def test_the_base_frequency_is_read_from_the_name(tmp_path):
    put(tmp_path, {"proc/cpuinfo": SHAPES["guest"][0]})
    assert detect_cpu(tmp_path).base_mhz == 2500


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cpuinfo_cut_anywhere_is_still_read(tmp_path, shape):
    text = SHAPES[shape][0]
    for end in range(0, len(text), 7):
        put(tmp_path, {"proc/cpuinfo": text[:end]})
        cpu = detect_cpu(tmp_path)
        assert cpu.model_name
        assert cpu.sockets >= 1 <= cpu.cores_per_socket
        assert 1 <= cpu.threads_per_core <= cpu.logical_cpus
        is_virtual(tmp_path)


def test_garbage_in_proc_and_sys_is_no_error(server):
    noise = "\x00\x01: \n:::\n=\nprocessor\t: x\nphysical id\t: 0\n\ufffd"
    for path in server.rglob("*"):
        if path.is_file():
            path.write_text(noise)
    cpu = detect_cpu(server)
    assert cpu.sockets == 1
    assert cpu.caches == {}
    assert cpu.max_mhz is None
    assert detect_memory(server).total_bytes > 0
    assert detect_disks(server) == []
    assert detect_host(server).virtualised is None or detect_host(server).virtualised is True


def test_this_machine_has_as_many_logical_cpus_as_the_kernel_says():
    assert detect_cpu().logical_cpus == os.cpu_count()

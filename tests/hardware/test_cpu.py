from __future__ import annotations

import os

from cm4vllm.hardware.cpu import detect_cpu


def test_sockets_cores_and_threads_are_counted_from_the_topology(server):
    cpu = detect_cpu(server)
    assert (cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.logical_cpus) == (2, 4, 2, 16)
    assert cpu.model_name == "Intel(R) Xeon(R) Platinum 8480+"
    assert cpu.max_mhz == 3800
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


def test_this_machine_has_as_many_logical_cpus_as_the_kernel_says():
    assert detect_cpu().logical_cpus == os.cpu_count()

import pytest
from machines import put
from msgspec.structs import replace

from cm4vllm.hardware.machine_facts import (
    cpu_env,
    cpu_lines,
    detect_machine,
    gpu_lines,
    host_lines,
    memory_lines,
    network_lines,
    storage_lines,
)
from cm4vllm.hardware.readiness import unready
from cm4vllm.records.machine import MemoryModule, NetworkCard


def test_a_server_is_told_in_a_few_lines(server):
    machine = detect_machine(server)
    assert cpu_lines(machine.cpu, machine.host) == [
        "Intel(R) Xeon(R) Platinum 8480+",
        "2 x 4 cores x 2 threads = 16 CPUs, 2 NUMA nodes",
        "up to 3.8 GHz",
        "L1d 384 KiB (8 instances), L3 210 MiB (2 instances)",
    ]
    assert memory_lines(machine.memory)[0] == "64 GB, by memory blocks (/sys)"
    assert storage_lines(machine.disks, 10**12) == ["1x 1.92 TB NVMe SSD", "1x 1 TB HDD", "root file system: 1 TB"]
    assert host_lines(machine.host)[1:] == ["physical machine", "not detected: the machine's make"]


def test_a_virtual_machines_processors_are_not_called_the_hosts(server):
    machine = detect_machine(server)
    told = cpu_lines(machine.cpu, replace(machine.host, virtualised=True))
    assert told[1].endswith("as given to this virtual machine, not the host's")


@pytest.mark.parametrize(
    ("quota", "cpus"), [("50000 100000", "0.5"), ("150000 100000", "1.5"), ("30000 200000", "0.15")]
)
def test_a_quota_is_in_the_lines_of_the_processors_and_in_what_to_change(server, monkeypatch, quota, cpus):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    put(server, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota}\n"})
    machine = detect_machine(server)
    line = f"this program may use {cpus} of the 16 CPUs (quota of its control group)"
    assert line in cpu_lines(machine.cpu, machine.host)
    assert cpu_env(machine.cpu, machine.host)["CM_HOST_CPU_QUOTA"] == cpus
    (advised,) = [finding for finding in unready(server, files=10**6) if "quota" in finding.words]
    assert f"a control group (this container's) has a quota of {cpus} of 16 CPUs" in advised.words


def test_modules_and_cards_are_summed_up(server):
    modules = [MemoryModule(size_bytes=2**36, kind="DDR5", mega_transfers=4800)] * 12
    memory = replace(detect_machine(server).memory, modules=modules, ecc=True, limit_bytes=2**30)
    assert memory_lines(memory)[1:] == ["12x 64 GB DDR5-4800", "this program may use 1 GB of it (control group)", "ECC"]
    assert network_lines([NetworkCard(kind="Ethernet", driver="ice", ports=2, megabits=25000)]) == [
        "Ethernet card (ice), 2 ports, 25 Gbit/s"
    ]


@pytest.mark.parametrize("part", ["proc", "sys", "etc", "proc/cpuinfo", "sys/devices", "sys/block", "sys/class"])
def test_what_is_missing_is_said_to_be(server, part):
    gone = server / part
    if gone.exists():
        gone.rename(server / "gone")
    machine = detect_machine(server)
    for lines in (
        host_lines(machine.host),
        cpu_lines(machine.cpu, machine.host),
        memory_lines(machine.memory),
        storage_lines(machine.disks, machine.root_bytes),
        network_lines(machine.network),
    ):
        assert lines
        assert all(line.strip() for line in lines)


def test_an_empty_container_says_of_each_part_that_it_is_not_detected(tmp_path):
    machine = detect_machine(tmp_path)
    for lines in (
        host_lines(machine.host),
        cpu_lines(machine.cpu, machine.host),
        memory_lines(machine.memory),
        storage_lines(machine.disks, machine.root_bytes),
        network_lines(machine.network),
    ):
        assert lines[-1].startswith("not detected: "), lines


def test_no_gpu_is_said_with_what_was_asked():
    assert gpu_lines([]) == ["none: no driver of NVIDIA (NVML) or AMD (amdsmi) answers"]

import platform
import resource
import socket

import psutil
import pytest
from machines import put
from msgspec.structs import replace

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.host import (
    VIRTUAL_DISK,
    detect_disks,
    detect_host,
    detect_network,
    is_virtual,
    os_env,
    os_line,
    root_bytes,
)
from cm4vllm.hardware.machine_facts import (
    cpu_env,
    cpu_lines,
    detect_machine,
    gpu_env,
    gpu_lines,
    host_lines,
    memory_env,
    memory_lines,
    network_env,
    network_lines,
    storage_env,
    storage_lines,
)
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.readiness import local_ports, machine_limits, unready
from cm4vllm.hardware.size_texts import disk_size, frequency, memory_size
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


def test_the_first_gpu_is_described_and_none_counted():
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
    assert gpu_env([]) == {"CM_HOST_GPU_COUNT": "0", "CM_CUDA_NUM_DEVICES": "0", "CM_ROCM_NUM_DEVICES": "0"}
    assert gpu_lines([]) == ["none: no driver of NVIDIA (NVML) or AMD (amdsmi) answers"]


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


def test_the_root_file_system_counts_where_no_disk_is_shown(tmp_path):
    assert storage_env([], 5 * 10**12) == {"CM_HOST_DISK_CAPACITY": "5 TB", "CM_HOST_STORAGE_COUNT": "0"}
    assert detect_disks(tmp_path) == []
    assert root_bytes(tmp_path) > 0


# --- detected_lines


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
    (advised,) = [finding for finding in unready(server, files=10**6) if "quota" in finding.what]
    assert f"a control group (this container's) has a quota of {cpus} of 16 CPUs" in advised.what


def test_modules_and_cards_are_summed_up(server):
    modules = [MemoryModule(size_bytes=2**36, kind="DDR5", mega_transfers=4800)] * 12
    memory = replace(detect_machine(server).memory, modules=modules, ecc=True, limit_bytes=2**30)
    assert memory_lines(memory)[1:] == ["12x 64 GB DDR5-4800", "this program may use 1 GB of it (control group)", "ECC"]
    assert network_lines([NetworkCard(kind="Ethernet", driver="ice", ports=2, megabits=25000)]) == [
        "Ethernet card (ice), 2 ports, 25 Gbit/s"
    ]


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


# --- the limits of the machine: of this process, and as the kernel's files show them


def test_the_limits_of_this_machine_are_found(tmp_path):
    limits = machine_limits()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits.open_files == (None if hard == resource.RLIM_INFINITY else hard)
    assert limits.local_ports and limits.memory_bytes
    assert (local_ports(tmp_path), machine_limits(tmp_path).shared_memory_bytes) == (None, None)
    put(tmp_path, {"proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n"})
    assert local_ports(tmp_path) == 28_232


# --- os_release


def test_the_system_is_named_as_the_public_recipe_names_it_and_the_machine_not_at_all(server, tmp_path):
    env = os_env(server)
    named = {"FLAVOR": "ubuntu", "FLAVOR_LIKE": "debian", "VERSION": "24.04", "PACKAGE_MANAGER": "apt"}
    named["MACHINE"] = platform.machine()
    assert {name: env[f"CM_HOST_OS_{name}"] for name in named} == named
    assert "CM_HOST_SYSTEM_NAME" not in env
    assert platform.node() not in env.values()
    assert os_line(server).startswith("Ubuntu 24.04.1 LTS (Noble Numbat), Linux ")
    assert os_line(tmp_path / "none").startswith(f"{platform.system()}, ")


# --- size_texts


@pytest.mark.parametrize(
    ("told", "size", "text"),
    [
        (memory_size, 25276502016, "24 GB"),
        (memory_size, 64 * 2**30, "64 GB"),
        (memory_size, int(7.6 * 2**30), "7.6 GB"),
        (disk_size, 256 * 2**30, "256 GiB"),
        (disk_size, 1920383410176, "1.92 TB"),
        (disk_size, 1000204886016, "1 TB"),
        (disk_size, 500107862016, "500 GB"),
        (frequency, 2600.0, "2.6 GHz"),
        (frequency, 1980.0, "1.98 GHz"),
        (frequency, 800.0, "800 MHz"),
        (frequency, None, ""),
    ],
)
def test_sizes_are_written_as_people_write_them(told, size, text):
    assert told(size) == text


# --- storage


def test_fixed_disks_are_listed_with_their_kinds(server):
    put(server, {"sys/block/nvme0n1/device/model": "SAMSUNG MZQL21T9HCJR-00A07  \n"})
    assert [(disk.size_bytes, disk.kind, disk.model) for disk in detect_disks(server)] == [
        (3750748848 * 512, "NVMe SSD", "SAMSUNG MZQL21T9HCJR-00A07"),
        (1953525168 * 512, "HDD", ""),
    ]
    put(server, {"proc/cpuinfo": "flags : fpu hypervisor lahf_lm\n"})
    assert [disk.kind for disk in detect_disks(server)] == [f"NVMe {VIRTUAL_DISK}", VIRTUAL_DISK]


# --- host


def test_a_physical_server_is_described_in_exact_units(server):
    host = detect_host(server)
    assert (host.os_name, host.os_version) == ("Ubuntu", "24.04.1 LTS (Noble Numbat)")
    assert host.virtualised is False
    assert host.container is False
    assert host.product == ""


def test_a_virtual_machine_names_its_hypervisor_where_the_firmware_does(server):
    def named(vendor, product):
        put(server, {"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product})
        return detect_host(server)

    assert named("Supermicro", "To Be Filled By O.E.M.").product == "Supermicro"
    put(server, {"proc/cpuinfo": "flags : fpu hypervisor lahf_lm\n"})
    host = named("Amazon EC2", "g6e.48xlarge")
    assert (host.virtualised, host.hypervisor, host.product) == (True, "Amazon EC2", "Amazon EC2 g6e.48xlarge")


def test_nothing_of_proc_and_sys_is_needed_and_a_container_is_told_by_its_marks(tmp_path):
    host = detect_host(tmp_path)
    assert host.virtualised is None
    assert host.kernel
    put(tmp_path, {"proc/1/cgroup": "12:memory:/kubepods/burstable/pod1\n"})
    assert detect_host(tmp_path).container is True


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("QEMU", "Standard PC", True),
        ("Amazon EC2", "c7g.16xlarge", True),
        ("Amazon EC2", "c7g.metal", False),
        ("Supermicro", "ARS-221GL", False),
        ("", "", None),
    ],
)
def test_where_the_cpu_has_no_hypervisor_flag_the_firmware_tells(tmp_path, vendor, product, virtual):
    names = tmp_path / "sys/class/dmi/id"
    names.mkdir(parents=True)
    (names / "sys_vendor").write_text(vendor)
    (names / "product_name").write_text(product)
    assert is_virtual(tmp_path) is virtual


# --- network


def card(root, name, device, *, driver="", speed="", kind="1", rates=(), function_of=""):
    home = root / "sys/devices" / device
    put(
        root,
        {
            f"sys/class/net/{name}/type": kind,
            f"sys/class/net/{name}/speed": speed,
            f"sys/class/net/{name}/address": "02:42:ac:11:00:02",
            f"sys/devices/{device}/vendor": "0x15b3",
        },
    )
    for number, rate in enumerate(rates):
        put(root, {f"sys/devices/{device}/infiniband/mlx5_{number}/ports/1/rate": rate})
    (root / f"sys/class/net/{name}/device").symlink_to(home)
    if driver:
        put(root, {f"sys/bus/pci/drivers/{driver}/bind": ""})
        (home / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    if function_of:
        (home / "physfn").symlink_to(root / "sys/devices" / function_of)


def test_ports_of_one_card_count_once_and_only_cards_count(server):
    card(server, "eno1", "pci0/0000:17:00.0", driver="ice", speed="25000")
    card(server, "eno2", "pci0/0000:17:00.1", driver="ice", speed="-1")
    card(server, "ib0", "pci0/0000:98:00.0", driver="mlx5_core", kind="32", rates=["400 Gb/sec (4X NDR)"])
    put(server, {"sys/class/net/lo/type": "772", "sys/class/net/docker0/type": "1"})
    cards = detect_network(server)
    assert [(card.kind, card.driver, card.ports, card.megabits) for card in cards] == [
        ("Ethernet", "ice", 2, 25000),
        ("InfiniBand", "mlx5_core", 1, 400000),
    ]


def test_virtual_functions_are_parts_of_a_card(server):
    card(server, "eno1", "pci0/0000:17:00.0", driver="ice")
    card(server, "eno1v0", "pci0/0000:17:01.0", driver="iavf", function_of="pci0/0000:17:00.0")
    assert len(detect_network(server)) == 1


def test_a_virtual_machines_cards_are_virtual(server):
    card(server, "eth0", "virtio2", driver="virtio_net")
    assert detect_network(server)[0].kind == "virtual"
    (server / "proc/cpuinfo").write_text("flags : fpu hypervisor\n")
    card(server, "eth1", "pci0/0000:00:05.0", driver="mlx5_core")
    assert {card.kind for card in detect_network(server)} == {"virtual"}


def test_no_address_and_no_interface_of_this_machine_is_told():
    told = f"{detect_network()} {network_lines(detect_network())}"
    for name, addresses in psutil.net_if_addrs().items():
        assert f"'{name}'" not in told
        for address in addresses:
            assert address.family in (socket.AF_INET, socket.AF_INET6, psutil.AF_LINK)
            assert address.address not in told

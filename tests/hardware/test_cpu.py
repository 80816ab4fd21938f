import os
import struct

import pytest
from machines import put

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.host import detect_disks, detect_host, is_virtual
from cm4vllm.hardware.machine_facts import cpu_lines, memory_lines
from cm4vllm.hardware.memory import detect_memory, free_memory
from cm4vllm.records.machine import MemoryModule


def test_sockets_cores_and_threads_are_counted_from_the_topology(server):
    cpu = detect_cpu(server)
    assert (cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.logical_cpus) == (2, 4, 2, 16)
    assert (cpu.model_name, cpu.max_mhz, cpu.smt) == ("Intel(R) Xeon(R) Platinum 8480+", 3800, True)
    assert cpu.numa_nodes == 2
    assert "amx_bf16" in cpu.flags
    assert cpu.caches == {"L1d": "384 KiB (8 instances)", "L3": "210 MiB (2 instances)"}


def test_the_base_frequency_is_read_from_the_name_and_the_flags_of_arm(tmp_path):
    put(tmp_path, {"proc/cpuinfo": SHAPES["guest"][0]})
    assert detect_cpu(tmp_path).base_mhz == 2500
    put(tmp_path, {"proc/cpuinfo": SHAPES["grace"][0]})
    assert "bf16" in detect_cpu(tmp_path).flags
    assert detect_cpu().logical_cpus == os.cpu_count()


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


def nodes(root, *lists, memory=()):
    """Put NUMA nodes with these lists of CPUs into a machine, and memory blocks of 32 GiB into each."""
    first = 0
    put(root, {"sys/devices/system/memory/block_size_bytes": hex(32 * 2**30)[2:]})
    for node, (cpus, blocks) in enumerate(zip(lists, memory or [0] * len(lists), strict=True)):
        put(root, {f"sys/devices/system/node/node{node}/cpulist": f"{cpus}\n"})
        for block in range(first, first + blocks):
            put(root, {f"sys/devices/system/memory/memory{block}/state": "online"})
            (root / f"sys/devices/system/node/node{node}/memory{block}").mkdir()
        first += blocks


@pytest.mark.parametrize(
    ("lists", "memory", "count", "gib", "apart"),
    [
        (["0-71", *[""] * 8], [15, 3, *[0] * 7], 1, 480, 96),
        (["0-31", "32-63", ""], [4, 4, 8], 2, 256, 256),
        (["", "0-3"], [1, 2], 1, 64, 32),
        (["", ""], [1, 1], 0, 64, 0),
    ],
)
def test_nodes_without_processors_are_no_nodes_and_their_memory_does_not_count(
    tmp_path, lists, memory, count, gib, apart
):
    put(tmp_path, {"proc/meminfo": "MemTotal: 603979776 kB\nMemAvailable: 104857600 kB\n"})
    nodes(tmp_path, *lists, memory=memory)
    facts = detect_memory(tmp_path)
    assert detect_cpu(tmp_path).numa_nodes == (count or None)
    assert (facts.total_bytes / 2**30, facts.apart_bytes / 2**30) == (gib, apart)
    assert any("not counted" in line for line in memory_lines(facts)) is bool(apart)


@pytest.mark.parametrize(
    ("lists", "of_nodes", "gib"),
    [
        (["0-71", *[""] * 8], [480, 96, *[0] * 7], 480),
        (["0-71", "72-143", "", ""], [480, 480, 96, 96], 960),
        (["", "0-3"], [32, 64], 64),
        (["", ""], [32, 64], 96),
    ],
)
def test_without_blocks_and_firmware_the_memory_is_that_of_nodes_with_processors(tmp_path, lists, of_nodes, gib):
    """As in a container that does not show /sys/devices/system/memory: the GPU's memory is part of MemTotal."""
    put(tmp_path, {"proc/meminfo": f"MemTotal: {sum(of_nodes) * 2**20} kB\nMemAvailable: 104857600 kB\n"})
    for node, (cpus, size) in enumerate(zip(lists, of_nodes, strict=True)):
        folder = f"sys/devices/system/node/node{node}"
        lines = f"Node {node} MemTotal: {size * 2**20} kB\nNode {node} MemFree: 9 kB\n"
        put(tmp_path, {f"{folder}/cpulist": f"{cpus}\n", f"{folder}/meminfo": lines})
    facts = detect_memory(tmp_path)
    apart = sum(of_nodes) - gib
    assert [size / 2**30 for size in (facts.total_bytes, facts.usable_bytes, facts.apart_bytes)] == [gib, gib, apart]
    assert any("not counted" in line for line in memory_lines(facts)) is bool(apart)


def test_free_memory_of_nodes_without_processors_is_not_the_programs(tmp_path):
    put(tmp_path, {"proc/meminfo": "MemAvailable: 104857600 kB\n"})
    nodes(tmp_path, "0-71", "")
    put(tmp_path, {"sys/devices/system/node/node1/meminfo": "Node 1 MemTotal: 9 kB\nNode 1 MemFree: 4857600 kB\n"})
    assert free_memory(tmp_path) == 100_000_000 * 1024


def arm(*parts):
    return "\n".join(f"processor\t: {n}\nCPU implementer\t: 0x41\nCPU part\t: {part}\n" for n, part in enumerate(parts))


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["0xd85"] * 10 + ["0xd87"] * 10, "Arm Cortex-X925 (10 cores), Arm Cortex-A725 (10 cores)"),
        (["0xd87"] * 5 + ["0xd85"] * 10 + ["0xd87"] * 5, "Arm Cortex-A725 (10 cores), Arm Cortex-X925 (10 cores)"),
        (
            ["0xd05"] * 4 + ["0xd0b"] * 3 + ["0xd44"],
            "Arm Cortex-A55 (4 cores), Arm Cortex-A76 (3 cores), Arm Cortex-X1 (1 core)",
        ),
        (["0xd4f", "0xfff"], "Arm Neoverse V2 (1 core), Arm processor, implementer 0x41, part 0xfff (1 core)"),
        (["0xd4f"] * 72, "Arm Neoverse V2"),
    ],
)
def test_each_kind_of_arm_core_is_named_with_its_number(tmp_path, parts, name):
    put(tmp_path, {"proc/cpuinfo": arm(*parts)})
    cpu = detect_cpu(tmp_path)
    assert (cpu.model_name, cpu.logical_cpus) == (name, len(parts))


def test_threads_that_differ_between_cores_are_not_multiplied(tmp_path):
    put(tmp_path, {"proc/cpuinfo": "model name\t: 13th Gen Intel(R) Core(TM) i9-13900K\n"})
    for cpu in range(6):  # two cores with two threads, two with one
        at = f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = ("0-1", "0-1", "2-3", "2-3", "4", "5")[cpu]
        put(tmp_path, {f"{at}/physical_package_id": "0", f"{at}/core_cpus_list": siblings})
    assert cpu_lines(detect_cpu(tmp_path), detect_host(tmp_path))[1].startswith("1 x 4 cores, 6 CPUs")


# --- memory


def module(megabytes, *, kind=0x22, speed=4800, total=80, width=64, strings=b"DIMM_A1\0SERIAL-0815\0"):
    """One structure of type 17 as DSP0134 lays it out, with the extended size where the short one is too small."""
    data = bytearray(0x54)
    struct.pack_into("<BBH", data, 0, 17, len(data), 0x1100)
    struct.pack_into("<HH", data, 0x08, total, width)
    struct.pack_into("<H", data, 0x0C, megabytes if megabytes < 0x7FFF else 0x7FFF)
    data[0x12] = kind
    struct.pack_into("<H", data, 0x15, speed)
    struct.pack_into("<I", data, 0x1C, megabytes)
    struct.pack_into("<H", data, 0x20, speed)
    return bytes(data) + strings + b"\0"


def table(*structures):
    end = struct.pack("<BBH", 127, 4, 0xFEFF) + b"\0\0"
    return struct.pack("<BBH", 16, 4, 0x1000) + b"\0\0" + b"".join(structures) + end


def write(root, content):
    path = root / "sys/firmware/dmi/tables/DMI"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_memory_is_that_of_the_kernels_blocks_or_what_the_kernel_can_use(server):
    memory = detect_memory(server)
    assert (memory.total_bytes, memory.source) == (64 * 2**30, "memory blocks (/sys)")
    assert memory.usable_bytes == 65000000 * 1024
    assert (memory.modules, memory.ecc, memory.limit_bytes) == ([], None, None)
    put(server, {"sys/devices/system/memory/memory31/state": "offline"})
    assert detect_memory(server).total_bytes == 62 * 2**30
    (server / "sys/devices/system/memory/block_size_bytes").unlink()
    memory = detect_memory(server)
    assert memory.total_bytes == 65000000 * 1024
    assert memory.source.startswith("MemTotal")


def test_the_firmwares_modules_count_first(server):
    unknown = bytearray(module(16384))
    struct.pack_into("<H", unknown, 0x0C, 0xFFFF)
    write(server, table(module(65536), module(65536), module(0), bytes(unknown)))
    memory = detect_memory(server)
    assert memory.modules == [MemoryModule(size_bytes=64 * 2**30, kind="DDR5", mega_transfers=4800)] * 2
    assert (memory.total_bytes, memory.source) == (128 * 2**30, "memory modules (DMI)")
    assert memory.ecc is True
    assert "SERIAL" not in str(memory)
    write(server, table(module(16384, kind=0x1A, speed=3200, total=64)))  # no wider than the data: no ECC
    assert (detect_memory(server).ecc, detect_memory(server).modules[0].kind) == (False, "DDR4")


def test_a_table_cut_anywhere_is_still_read(server):
    whole = table(module(65536), module(65536))
    for end in range(len(whole)):
        write(server, whole[:end])
        assert len(detect_memory(server).modules) <= 2


def test_a_memory_controller_that_corrects_means_ecc_and_a_containers_limit_is_told(server):
    put(server, {"sys/devices/system/edac/mc/mc0/ce_count": "0", "sys/fs/cgroup/memory.max": str(8 * 2**30)})
    assert (detect_memory(server).ecc, detect_memory(server).limit_bytes) == (True, 8 * 2**30)
    put(server, {"sys/fs/cgroup/memory.max": "max"})
    assert detect_memory(server).limit_bytes is None


@pytest.mark.parametrize(
    ("folder", "names", "reclaimable"),
    [
        ("", ("memory.max", "memory.current"), "inactive_file"),
        ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"),
    ],
)
def test_what_a_containers_limit_leaves_is_free(tmp_path, folder, names, reclaimable):
    put(tmp_path, {"proc/meminfo": "MemAvailable: 8000000 kB\n"})
    available = free_memory(tmp_path)
    assert available == 8_192_000_000
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    limit, used = names
    (group / limit).write_text("1000000\n")
    assert free_memory(tmp_path) == 1_000_000
    (group / used).write_text("700000\n")
    (group / "memory.stat").write_text(f"anon 1\n{reclaimable} 200000\n")
    assert free_memory(tmp_path) == 500_000
    (group / used).write_text("2000000\n")
    assert free_memory(tmp_path) == 0
    (group / limit).write_text("max\n")
    assert free_memory(tmp_path) == available

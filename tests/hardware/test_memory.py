import struct

import pytest
from machines import put

from cm4vllm.hardware.memory import detect_memory, free_memory
from cm4vllm.records.machine import MemoryModule


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


def test_memory_is_that_of_the_kernels_blocks(server):
    memory = detect_memory(server)
    assert (memory.total_bytes, memory.source) == (64 * 2**30, "memory blocks (/sys)")
    assert memory.usable_bytes == 65000000 * 1024
    assert (memory.modules, memory.ecc, memory.limit_bytes) == ([], None, None)


def test_memory_is_what_the_kernel_can_use_where_it_shows_no_blocks(server):
    (server / "sys/devices/system/memory/block_size_bytes").unlink()
    memory = detect_memory(server)
    assert memory.total_bytes == 65000000 * 1024
    assert memory.source.startswith("MemTotal")


def test_memory_that_is_offline_is_not_counted(server):
    (server / "sys/devices/system/memory/memory31/state").write_text("offline")
    assert detect_memory(server).total_bytes == 62 * 2**30


def test_the_firmwares_modules_count_first(server):
    write(server, table(module(65536), module(65536), module(0)))
    memory = detect_memory(server)
    assert memory.modules == [MemoryModule(size_bytes=64 * 2**30, kind="DDR5", mega_transfers=4800)] * 2
    assert (memory.total_bytes, memory.source) == (128 * 2**30, "memory modules (DMI)")
    assert memory.ecc is True
    assert "SERIAL" not in str(memory)


def test_modules_no_wider_than_their_data_have_no_ecc(server):
    write(server, table(module(16384, kind=0x1A, speed=3200, total=64)))
    assert detect_memory(server).ecc is False
    assert detect_memory(server).modules[0].kind == "DDR4"


def test_empty_slots_and_modules_of_unknown_size_do_not_count(server):
    unknown = bytearray(module(16384))
    struct.pack_into("<H", unknown, 0x0C, 0xFFFF)
    write(server, table(module(0), bytes(unknown), module(16384)))
    assert [module.size_bytes for module in detect_memory(server).modules] == [2**34]


def test_a_table_cut_anywhere_is_still_read(server):
    whole = table(module(65536), module(65536))
    for end in range(len(whole)):
        write(server, whole[:end])
        assert len(detect_memory(server).modules) <= 2


def test_a_memory_controller_that_corrects_means_ecc(server):
    put(server, {"sys/devices/system/edac/mc/mc0/ce_count": "0"})
    assert detect_memory(server).ecc is True


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


def test_a_containers_limit_is_told(server):
    put(server, {"sys/fs/cgroup/memory.max": str(8 * 2**30)})
    assert detect_memory(server).limit_bytes == 8 * 2**30
    put(server, {"sys/fs/cgroup/memory.max": "max"})
    assert detect_memory(server).limit_bytes is None


def test_this_machine_has_memory():
    memory = detect_memory()
    assert memory.total_bytes >= memory.usable_bytes > 2**28

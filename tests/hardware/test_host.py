from __future__ import annotations

import pytest

from cm4vllm.hardware.host import VIRTUAL_DISK, detect_host, is_virtual


def test_a_physical_server_is_described_in_exact_units(server):
    host = detect_host(server)
    assert (host.os_name, host.os_version) == ("Ubuntu", "24.04.1 LTS (Noble Numbat)")
    assert host.virtualised is False
    assert host.memory_bytes == 64 * 2**30
    assert host.disk_bytes == (3750748848 + 1953525168) * 512
    assert host.disk_type == "NVMe SSD, HDD"


def test_memory_is_what_the_kernel_can_use_where_it_shows_no_blocks(server):
    (server / "sys/devices/system/memory/block_size_bytes").unlink()
    assert detect_host(server).memory_bytes == 65000000 * 1024


def test_memory_that_is_offline_is_not_counted(server):
    (server / "sys/devices/system/memory/memory31/state").write_text("offline")
    assert detect_host(server).memory_bytes == 62 * 2**30


def test_a_virtual_machines_disks_are_called_virtual(server):
    (server / "proc/cpuinfo").write_text("flags : fpu hypervisor lahf_lm\n")
    host = detect_host(server)
    assert host.virtualised is True
    assert host.disk_type == VIRTUAL_DISK


def test_without_shown_disks_the_file_system_counts_and_its_kind_is_unknown(tmp_path):
    host = detect_host(tmp_path)
    assert host.disk_bytes > 0
    assert host.disk_type == ""


@pytest.mark.parametrize(("vendor", "product", "virtual"), [
    ("QEMU", "Standard PC", True),
    ("Amazon EC2", "c7g.16xlarge", True),
    ("Amazon EC2", "c7g.metal", False),
    ("Supermicro", "ARS-221GL", False),
    ("", "", None),
])  # fmt: skip
def test_where_the_cpu_has_no_hypervisor_flag_the_firmware_tells(tmp_path, vendor, product, virtual):
    names = tmp_path / "sys/class/dmi/id"
    names.mkdir(parents=True)
    (names / "sys_vendor").write_text(vendor)
    (names / "product_name").write_text(product)
    assert is_virtual(tmp_path) is virtual


def test_this_machine_has_facts():
    host = detect_host()
    assert host.memory_bytes > 2**28
    assert host.disk_bytes > 2**30
    assert host.os_name

from cm4vllm.hardware.storage import VIRTUAL_DISK, detect_disks, root_bytes


def test_fixed_disks_are_listed_with_their_kinds(server):
    (server / "sys/block/nvme0n1/device").mkdir()
    (server / "sys/block/nvme0n1/device/model").write_text("SAMSUNG MZQL21T9HCJR-00A07  \n")
    assert [(disk.size_bytes, disk.kind, disk.model) for disk in detect_disks(server)] == [
        (3750748848 * 512, "NVMe SSD", "SAMSUNG MZQL21T9HCJR-00A07"),
        (1953525168 * 512, "HDD", ""),
    ]


def test_a_virtual_machines_disks_are_called_virtual(server):
    (server / "proc/cpuinfo").write_text("flags : fpu hypervisor lahf_lm\n")
    assert [disk.kind for disk in detect_disks(server)] == [f"NVMe {VIRTUAL_DISK}", VIRTUAL_DISK]


def test_a_container_without_disks_has_a_root_file_system(tmp_path):
    assert detect_disks(tmp_path) == []
    assert root_bytes(tmp_path) > 0

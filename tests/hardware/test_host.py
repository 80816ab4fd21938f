import pytest
from machines import put

from cm4vllm.hardware.host import detect_host, is_virtual


def test_a_physical_server_is_described_in_exact_units(server):
    host = detect_host(server)
    assert (host.os_name, host.os_version) == ("Ubuntu", "24.04.1 LTS (Noble Numbat)")
    assert host.virtualised is False
    assert host.container is False
    assert host.product == ""


def test_a_virtual_machine_names_its_hypervisor_where_the_firmware_does(server):
    (server / "proc/cpuinfo").write_text("flags : fpu hypervisor lahf_lm\n")
    assert detect_host(server).virtualised is True
    assert detect_host(server).hypervisor == ""
    put(server, {"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "g6e.48xlarge"})
    host = detect_host(server)
    assert (host.hypervisor, host.product) == ("Amazon EC2", "Amazon EC2 g6e.48xlarge")


def test_names_that_nobody_wrote_into_the_firmware_are_none(server):
    put(
        server, {"sys/class/dmi/id/sys_vendor": "Supermicro", "sys/class/dmi/id/product_name": "To Be Filled By O.E.M."}
    )
    assert detect_host(server).product == "Supermicro"


def test_a_container_is_told_by_its_marks(tmp_path):
    put(tmp_path, {"proc/1/cgroup": "12:memory:/kubepods/burstable/pod1\n"})
    assert detect_host(tmp_path).container is True


def test_nothing_of_proc_and_sys_is_needed(tmp_path):
    host = detect_host(tmp_path)
    assert host.virtualised is None
    assert host.kernel


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


def test_this_machine_has_facts():
    host = detect_host()
    assert host.os_name
    assert host.kernel

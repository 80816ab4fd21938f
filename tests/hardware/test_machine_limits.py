"""The limits of the machine: of this process, and as the kernel's files show them."""

import resource

from cm4vllm.hardware.machine_limits import local_ports, machine_limits


def test_the_limits_of_this_machine_are_found():
    limits = machine_limits()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits.open_files == (None if hard == resource.RLIM_INFINITY else hard)
    assert limits.local_ports and limits.memory_bytes


def test_ports_are_counted_with_both_ends_and_unknown_without_the_kernels_file(tmp_path):
    folder = tmp_path / "proc/sys/net/ipv4"
    assert local_ports(tmp_path) is None
    assert machine_limits(tmp_path).shared_memory_bytes is None
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("32768\t60999\n")
    assert local_ports(tmp_path) == 28_232

import socket

import psutil
from machines import put

from cm4vllm.hardware.machine_facts import network_lines
from cm4vllm.hardware.network import detect_network


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


def test_a_machine_that_shows_no_network_has_no_cards(tmp_path):
    assert detect_network(tmp_path) == []
    assert network_lines([]) == ["not detected: network cards"]


def test_no_address_and_no_interface_of_this_machine_is_told():
    told = f"{detect_network()} {network_lines(detect_network())}"
    for name, addresses in psutil.net_if_addrs().items():
        assert f"'{name}'" not in told
        for address in addresses:
            assert address.family in (socket.AF_INET, socket.AF_INET6, psutil.AF_LINK)
            assert address.address not in told

"""The network cards, from /sys/class/net.

No addresses, and no names of interfaces: some are made of MAC addresses (enx001122334455).
"""

import re
from collections import defaultdict
from pathlib import Path

from cm4vllm.common.kernel_files import exists, matching, number, target, text
from cm4vllm.hardware.host import is_virtual
from cm4vllm.records.machine import NetworkCard

#: ARPHRD_INFINIBAND of linux/if_arp.h.
_INFINIBAND = "32"
_VIRTUAL_DRIVERS = ("virtio", "vmxnet", "xen", "hv_netvsc", "ena", "gve", "mana", "vif")


def detect_network(root: Path = Path("/")) -> list[NetworkCard]:
    """Return the network cards under `root`: what has a device behind it, ports of one card taken together.

    Virtual functions of a physical card are its parts and do not count; in a virtual machine every card is virtual.
    """
    virtual = bool(is_virtual(root))
    ports: dict[str, list[Path]] = defaultdict(list)
    for port in matching(root / "sys/class/net", "*"):
        device = port / "device"
        if exists(device) and (virtual or not exists(device / "physfn")):
            ports[re.sub(r"\.\d$", "", target(device).as_posix())].append(port)
    return [_card(group, virtual=virtual) for group in ports.values()]


def _card(ports: list[Path], *, virtual: bool) -> NetworkCard:
    """Return the network card of these ports: kind, driver, rate in Mbit/s."""
    driver = target(ports[0] / "device/driver").name if exists(ports[0] / "device/driver") else ""
    infiniband = any(text(port / "type") == _INFINIBAND for port in ports)
    kind = "virtual" if virtual or driver.startswith(_VIRTUAL_DRIVERS) else "InfiniBand" if infiniband else "Ethernet"
    rates = [rate for port in ports for rate in (number(port / "speed"), *_infiniband_rates(port)) if rate]
    return NetworkCard(kind=kind, driver=driver, ports=len(ports), megabits=max(rates) if rates else None)


def _infiniband_rates(port: Path) -> list[int]:
    """Return the rates of the port's InfiniBand device in Mbit/s; the kernel writes '400 Gb/sec (4X NDR)'."""
    rates = [
        re.match(r"(\d+(?:\.\d+)?) Gb/sec", text(rate))
        for rate in matching(port / "device/infiniband", "*/ports/*/rate")
    ]
    return [round(float(rate.group(1)) * 1000) for rate in rates if rate]

"""The system file: what a machine cannot tell of itself, stated once by its owner (YAML, MLPerf's keys)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cm4vllm.common.bounded_documents import read_yaml
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.records.described_system import KEYS, NETWORK_KEYS, NOT_STATED, keys_of

STATUSES = ("available", "preview", "rdi")

#: Keys that the command line gives, and by which input.
_FROM_FLAGS = {
    "submitter": "--submitter",
    "division": "--division",
    "system_type": "--category",
    "is_network": "--division",
}
_ANY = KEYS + NETWORK_KEYS
_COUNTS = frozenset(
    {
        "number_of_nodes",
        "host_processors_per_node",
        "host_processor_core_count",
        "host_network_card_count",
        "accelerators_per_node",
        "number_nic_loadgen",
        "number_nic_sut",
        "number_connections",
    }
)

#: The meaning of each key, for the template.
_MEANINGS = {
    "status": "can others have this system? available, preview, or rdi (research, development, internal)",
    "system_name": "the name under which results are published",
    "system_type_detail": "a remark on the kind of system, for example: rack server",
    "number_of_nodes": "how many machines serve together",
    "host_processor_frequency": "for example: 2.6 GHz",
    "host_processor_interconnect": "between the processors, for example: UPI",
    "host_memory_configuration": "modules and their speed, for example: 12x 64 GB DDR5-4800",
    "host_networking": "what joins the machines: 8x InfiniBand NDR 400 Gbit/s a node, or: none, client and "
    "server are one machine",
    "host_networking_topology": "for example: all nodes at one switch, or: N/A",
    "host_network_card_count": "a whole number",
    "accelerator_memory_configuration": "the kind of memory, for example: HBM3e",
    "accelerator_host_interconnect": "for example: PCIe Gen5 x16",
    "accelerator_interconnect": "between the accelerators, for example: NVLink 900 GB/s",
    "accelerator_interconnect_topology": "for example: NVSwitch, fully connected",
    "accelerator_on-chip_memories": "for example: L2 50 MB",
    "cooling": "for example: air, liquid",
    "network_type": "Ethernet, IEEE 802.11, InfiniBand or 3GPP",
    "network_media": "for example: copper, optical fibre",
    "network_rate": "for example: 100 Gbit/s",
    "nic_loadgen": "the network card of LoadGen's machine",
    "number_nic_loadgen": "a whole number",
    "net_software_stack_loadgen": "its driver and network stack, for example: mlx5, Linux 6.12",
    "network_protocol": "layers two to four and above, for example: Ethernet II, IPv4, TCP, HTTP/1.1",
    "number_connections": "cables between LoadGen's machine and the nodes; a whole number",
    "nic_sut": "the network card of each node",
    "number_nic_sut": "a whole number",
    "net_software_stack_sut": "as of LoadGen's machine",
    "network_topology": "what lies between LoadGen's machine and the nodes, for example: one switch",
    "hw_notes": "remarks on the hardware; what was detected is added to them",
    "sw_notes": "remarks on the software",
}
_HEAD = """\
# What cannot be detected on this machine. Fill in what you know, leave the rest empty, and give the file with
#   --system_file=<this file>
# It is published with the results: no user names, host names, addresses or serial numbers.
# What is left empty is published as "not stated"; nothing is filled in for you.
# A statement that contradicts what is known of the hardware is refused, unless you confirm it: confirmed: [key, key]
"""
_DETECTED = "\n# Detected. Remove the # to state another value.\n"

#: The texts of published files where no answer was given.
_NO_ANSWERS = frozenset({"", "undefined", "unknown", "tbd", "todo", "fixme", "xxx", "none", "null", "not stated"})

_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)


@dataclass(frozen=True)
class SystemFile:
    """The statements of a system file, and those among them that contradict the table of known hardware."""

    stated: Mapping[str, str]
    confirmed: tuple[str, ...] = ()


def read_system_file(path: Path) -> SystemFile:
    """Return what a system file says; keys left empty are left out.

    Raises UsageError for an unreadable file, an unknown key (naming the nearest), a key that an input gives, and a
    value of the wrong kind.
    """
    try:
        content = read_yaml(path)
    except OSError as error:
        raise UsageError(
            f"cannot read the system file {path}",
            cause=str(error.strerror),
            remedy="the template beside the results, system/system.template.yaml, is a start",
        ) from error
    except ValueError as error:
        raise UsageError(f"the system file {path} is not YAML", cause=str(error)) from error
    if not isinstance(content, dict | None):
        raise UsageError(f"the system file {path} is not a list of `key: value` lines")
    content = content or {}
    confirmed = _confirmed_keys(path, content.pop("confirmed", None) or [])
    values = {str(key): _value(path, str(key), value) for key, value in content.items()}
    return SystemFile({key: value for key, value in values.items() if value}, confirmed)


def _confirmed_keys(path: Path, value: Any) -> tuple[str, ...]:
    """Return the keys that the submitter confirms against the table of known hardware. Raises UsageError."""
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise UsageError(
            f"confirmed in the system file {path} is {value!r}",
            remedy="it lists keys: confirmed: [host_processor_core_count]",
        )
    if other := next((key for key in value if key not in _ANY), ""):
        raise UsageError(
            f"confirmed in the system file {path} names an unknown key {other}", remedy=nearest(other, _ANY)
        )
    return tuple(value)


def _value(path: Path, key: str, value: Any) -> str:
    """Return a value of the system file as text. Raises UsageError for a key or a value that is not allowed."""
    where = f"{key} in the system file {path}"
    if key in _FROM_FLAGS:
        raise UsageError(f"{where} is given by {_FROM_FLAGS[key]}", remedy="remove it from the file")
    if key not in _ANY:
        raise UsageError(f"unknown key {where}", remedy=nearest(key, set(_ANY) - set(_FROM_FLAGS)))
    if value is None or value == "":
        return ""
    if key in _COUNTS:
        if not re.fullmatch(r"\d+", str(value)):
            raise UsageError(f"{where} is {value!r}", remedy="it is a whole number")
        return str(value)
    if not isinstance(value, str):
        raise UsageError(f"{where} is {value!r}", remedy='it is text; a number needs its unit: "1980 MHz"')
    text = " ".join(value.replace('"', "'").split())  # the checkers write CSV without escaping quotation marks
    if key == "status" and text.lower() not in STATUSES:
        raise UsageError(
            f"{where} is {value!r}", remedy=f"{nearest(text.lower(), STATUSES)} It is one of {', '.join(STATUSES)}"
        )
    if text.lower().strip(".?") in _NO_ANSWERS:
        raise UsageError(
            f"{where} is {value!r}", remedy="leave it empty where it is not known; N/A means that the system has none"
        )
    if _IPV4.search(text) or _MAC.search(text):
        raise UsageError(
            f"{where} names an address",
            cause="the description is published with the results",
            remedy="leave addresses out",
        )
    return text.lower() if key == "status" else text


def template(description: Mapping[str, str]) -> str:
    """Return a system file to fill in: first what `description` does not state, then what it does, commented out."""
    asked, known = [], []
    for key in keys_of(description["division"]):
        if key in _FROM_FLAGS:
            continue
        meaning = f"  # {_MEANINGS[key]}" if key in _MEANINGS else ""
        if description[key] in ("", NOT_STATED) or key in ("status", "hw_notes", "sw_notes"):
            asked.append(f"{key}: {meaning}")
        else:
            value = yaml.safe_dump(description[key], width=1000, default_flow_style=True)
            known.append(f"#{key}: {value.splitlines()[0].strip()}")
    return _HEAD + "\n".join(asked) + "\n" + _DETECTED + "\n".join(known) + "\n"

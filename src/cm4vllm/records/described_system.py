"""The description of a system that a submission has: its keys, and what one states.

The keys are those that the official checker asks for (tools/submission, constants SYSTEM_DESC_REQUIRED_FIELDS).
"""

import re
from collections.abc import Mapping

from cm4vllm.records.known_hardware import contradictions
from cm4vllm.rules import Division, over_network

NOT_STATED = "not stated"
#: Said where the submitter states no availability: the checker wants one of three words.
STATUS_NOT_STATED = "Availability is not stated: status rdi stands only for the checker."
#: The remark on nodes of one system that are not alike begins so; the key and the value of each node follow.
NODES_DIFFER = "The nodes differ in"

#: The 35 keys, in the order in which they are written.
KEYS = (
    "division",
    "submitter",
    "status",
    "system_type",
    "system_type_detail",
    "system_name",
    "number_of_nodes",
    "host_processor_model_name",
    "host_processors_per_node",
    "host_processor_core_count",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "host_memory_capacity",
    "host_memory_configuration",
    "host_storage_capacity",
    "host_storage_type",
    "host_networking",
    "host_networking_topology",
    "host_network_card_count",
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_memory_capacity",
    "accelerator_memory_configuration",
    "accelerator_frequency",
    "accelerator_host_interconnect",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
    "accelerator_on-chip_memories",
    "cooling",
    "hw_notes",
    "framework",
    "operating_system",
    "other_software_stack",
    "sw_notes",
)

#: The keys of a system on other machines than LoadGen's, in the network division (constants
#: SYSTEM_DESC_REQUIRED_FIELDS_NETWORK_MODE): the first says so, the others are for its owner to state.
NETWORK_KEYS = (
    "is_network",
    "network_type",
    "network_media",
    "network_rate",
    "nic_loadgen",
    "number_nic_loadgen",
    "net_software_stack_loadgen",
    "network_protocol",
    "number_connections",
    "nic_sut",
    "number_nic_sut",
    "net_software_stack_sut",
    "network_topology",
)

#: The titles of the keys, in groups, as pages show them.
TITLES: dict[str, dict[str, str]] = {
    "System": {
        "system_name": "System",
        "submitter": "Submitter",
        "division": "Division",
        "status": "Status",
        "system_type": "Category",
        "system_type_detail": "Category, in detail",
        "number_of_nodes": "Nodes",
    },
    "Accelerators": {
        "accelerators_per_node": "Accelerators a node",
        "accelerator_model_name": "Accelerator",
        "accelerator_memory_capacity": "Accelerator memory",
        "accelerator_memory_configuration": "Accelerator memory type",
        "accelerator_frequency": "Accelerator frequency",
        "accelerator_on-chip_memories": "Accelerator on-chip memories",
        "accelerator_host_interconnect": "Accelerator to host",
        "accelerator_interconnect": "Accelerator to accelerator",
        "accelerator_interconnect_topology": "Accelerator topology",
    },
    "Processor and memory": {
        "host_processor_model_name": "Processor",
        "host_processors_per_node": "Processors a node",
        "host_processor_core_count": "Cores a processor",
        "host_processor_frequency": "Processor frequency",
        "host_processor_caches": "Processor caches",
        "host_processor_interconnect": "Processor interconnect",
        "host_memory_capacity": "Memory",
        "host_memory_configuration": "Memory configuration",
    },
    "Other hardware": {
        "host_storage_capacity": "Storage",
        "host_storage_type": "Storage type",
        "cooling": "Cooling",
        "hw_notes": "Hardware notes",
    },
    "Network": {
        "host_networking": "Network",
        "host_networking_topology": "Network topology",
        "host_network_card_count": "Network cards",
    },
    "Software": {
        "framework": "Framework",
        "operating_system": "Operating system",
        "other_software_stack": "Other software",
        "sw_notes": "Software notes",
    },
}

LABELS = {key: name for rows in TITLES.values() for key, name in rows.items()}

#: Remarks: empty where there is nothing to remark.
FREE_TEXT = frozenset({"hw_notes", "sw_notes", "system_type_detail"})

_MAY_BE_EMPTY = FREE_TEXT | {
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "accelerator_frequency",
    "accelerator_interconnect_topology",
    "accelerator_on-chip_memories",
}


def keys_of(division: str) -> tuple[str, ...]:
    """Return the keys of a description in a division, which may be one that the rules do not know."""
    return KEYS + (NETWORK_KEYS if division in list(Division) and over_network(Division(division)) else ())


def stated_system(stated: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of the division with what is stated, and nothing else."""
    keys = keys_of(stated.get("division", ""))
    description = {key: stated.get(key) or ("" if key in _MAY_BE_EMPTY else NOT_STATED) for key in keys}
    return description | ({"is_network": "true"} if "is_network" in keys else {})


def hints(description: Mapping[str, str]) -> list[str]:
    """Return the differences of a description from unconfirmed rows of the table, for its owner to check."""
    return [str(wrong) for wrong in contradictions(description) if wrong.is_hint]


def not_stated(description: Mapping[str, str]) -> list[str]:
    """Return the keys that the description does not state, in its order; remarks are optional."""
    open_status = {"status"} if STATUS_NOT_STATED in description.get("sw_notes", "") else set()
    return [
        key
        for key in keys_of(description.get("division", ""))
        if key in open_status or (description.get(key, "") in ("", NOT_STATED) and key not in FREE_TEXT)
    ]


def folder_name(description: Mapping[str, str]) -> str:
    """Return the system's name as the name of its folder and file: letters, digits, `.`, `_` and `-` only."""
    return safe_name(description["system_name"])


def safe_name(name: str) -> str:
    """Return a name as the name of a folder and a file: letters, digits, `.`, `_` and `-` only."""
    # The older checker refuses names with spaces and dot files (submission_checker_old.py, "git unfriendly name").
    return re.sub(r"-+(?=[-_])", "", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("-.") or "system"


def label(key: str) -> str:
    """Return the title of a key of the description; the key itself if it has no title."""
    return LABELS.get(key, key)

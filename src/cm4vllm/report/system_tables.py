"""The system description as tables: the groups of its keys, and their titles."""

from collections.abc import Mapping
from dataclasses import dataclass

from cm4vllm.records.described_system import LABELS, TITLES, label
from cm4vllm.records.machine import MachineFacts


@dataclass(frozen=True)
class Group:
    """A titled table of the description: label, value, and whether anybody stated it."""

    title: str
    rows: tuple[tuple[str, str, bool], ...]
    note: str = ""


#: The text where nothing was stated: none, the words themselves, or the submitter's name in folders.
_NOT_STATED = ("", "not stated", "not-stated")

#: Remarks: optional, and not listed as missing.
_REMARKS = ("hw_notes", "sw_notes", "system_type_detail")


def groups(description: Mapping[str, str]) -> tuple[Group, ...]:
    """Return the description as tables; keys without a title here are in the last table."""
    tables = [_group(title, list(rows), description) for title, rows in TITLES.items()]
    others = [key for key in description if key not in LABELS]
    if others:
        tables.append(_group("Further keys", others, description))
    return tuple(group for group in tables if group.rows or group.note)


def machine_group(machine: MachineFacts) -> Group:
    """Return the facts of the machine that ran LoadGen; the server may run elsewhere."""
    host, cpu = machine.host, machine.cpu
    rows = [
        (
            "Logical CPUs",
            f"{cpu.logical_cpus}: {cpu.sockets} x {cpu.cores_per_socket} cores x {cpu.threads_per_core} threads",
        ),
        ("NUMA nodes", "unknown" if cpu.numa_nodes is None else str(cpu.numa_nodes)),
        ("Virtual machine", "unknown" if host.virtualised is None else "yes" if host.virtualised else "no"),
        ("Memory", f"{machine.memory.total_bytes / 2**30:.1f} GiB"),
        ("Kernel", f"{host.kernel}, {host.machine}"),
        ("Python", host.python),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or "none"),
    ]
    return Group("The machine that ran LoadGen", tuple((name, value, value != "unknown") for name, value in rows))


def _group(title: str, keys: list[str], description: Mapping[str, str]) -> Group:
    """Return a table of the system's description: its keys with their values, `not stated` for empty ones."""
    if title == "Accelerators" and description.get("accelerators_per_node") == "0":
        row = label("accelerators_per_node"), "0", True
        return Group(title, (row,), "None: the model is served by the processor.")
    shown = {key: description[key] for key in keys if key in description and (description[key] or key not in _REMARKS)}
    return Group(
        title,
        tuple(
            (label(key), "not stated", False) if value in _NOT_STATED else (label(key), value, True)
            for key, value in shown.items()
        ),
    )

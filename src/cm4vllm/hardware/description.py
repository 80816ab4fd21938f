"""The system description of a submission: 35 keys of MLPerf, from detected facts and from what the user states.

Keys and which of them must say something: mlcommons/inference tools/submission/submission_checker/constants.py,
SYSTEM_DESC_REQUIRED_FIELDS and SYSTEM_DESC_MEANINGFUL_RESPONSE_REQUIRED_FIELDS. Every value is text: the checker
takes the number 0 for an empty answer and reads accelerators_per_node and number_of_nodes back as whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.records import CpuFacts, GpuFacts, HostFacts, MachineFacts
from cm4vllm.hardware.units import disk_size, frequency, memory_size

__all__ = ["FREE_TEXT", "KEYS", "NOT_STATED", "SystemAsked", "describe_system", "folder_name", "not_stated"]

NOT_STATED = "not stated"
_NONE = "N/A"

#: The 35 keys, in the order in which they are written.
KEYS = (
    "division", "submitter", "status", "system_type", "system_type_detail", "system_name", "number_of_nodes",
    "host_processor_model_name", "host_processors_per_node", "host_processor_core_count", "host_processor_frequency",
    "host_processor_caches", "host_processor_interconnect", "host_memory_capacity", "host_memory_configuration",
    "host_storage_capacity", "host_storage_type", "host_networking", "host_networking_topology",
    "host_network_card_count", "accelerators_per_node", "accelerator_model_name", "accelerator_memory_capacity",
    "accelerator_memory_configuration", "accelerator_frequency", "accelerator_host_interconnect",
    "accelerator_interconnect", "accelerator_interconnect_topology", "accelerator_on-chip_memories", "cooling",
    "hw_notes", "framework", "operating_system", "other_software_stack", "sw_notes",
)  # fmt: skip

#: Remarks: empty where there is nothing to remark.
FREE_TEXT = frozenset({"hw_notes", "sw_notes", "system_type_detail"})

_MAY_BE_EMPTY = FREE_TEXT | {
    "host_processor_frequency", "host_processor_caches", "host_processor_interconnect", "accelerator_frequency",
    "accelerator_interconnect_topology", "accelerator_on-chip_memories",
}  # fmt: skip

#: The packages named in other_software_stack, where the server has them.
_STACK = ("torch", "transformers", "triton", "flashinfer-python", "flash-attn", "xformers", "compressed-tensors", "ray")


@dataclass(frozen=True, kw_only=True)
class SystemAsked:
    """What the description is for.

    `vllm` is the server's version, empty where there is no server, and `packages` its others. `accelerators` is how
    many GPUs the server uses, None for all that are there; 0 is the CPU backend. `here` is false when the server
    runs on another machine than this one: then nothing that is detected belongs to it. `stated` is what the user's
    system file says.
    """

    submitter: str
    division: str
    system_type: str
    vllm: str
    packages: Mapping[str, str] = field(default_factory=dict)
    accelerators: int | None = None
    here: bool = True
    rehearsal: bool = False
    stated: Mapping[str, str] = field(default_factory=dict)


def describe_system(facts: MachineFacts, asked: SystemAsked) -> dict[str, str]:
    """Return the description of the system that serves.

    What is neither detected nor stated is `not stated` where the checker wants an answer and empty elsewhere. Raises
    UsageError when the server runs elsewhere and a result is to be made of a machine of which nothing is known.
    """
    detected = _detected(facts, asked) if asked.here else _elsewhere(asked)
    detected |= {
        "division": asked.division,
        "submitter": asked.submitter,
        "status": "rdi",
        "system_type": asked.system_type,
        "framework": f"vLLM {asked.vllm}" if asked.vllm else "",
    }
    merged = detected | dict(asked.stated)
    for key in FREE_TEXT & set(asked.stated):
        merged[key] = _joined(asked.stated[key], detected.get(key, ""))
    if asked.rehearsal:
        for key in ("hw_notes", "sw_notes"):
            merged[key] = _joined(REHEARSAL_NOTICE, merged.get(key, ""))
    merged.setdefault("system_name", _system_name(merged, asked))
    return {key: merged.get(key) or ("" if key in _MAY_BE_EMPTY else NOT_STATED) for key in KEYS}


def not_stated(description: Mapping[str, str]) -> list[str]:
    """Return the keys of which the description says nothing, in its order; remarks are not missed."""
    return [key for key in KEYS if description.get(key, "") in ("", NOT_STATED) and key not in FREE_TEXT]


def folder_name(description: Mapping[str, str]) -> str:
    """Return the system's name as the name of its folder and file: letters, digits, `.`, `_` and `-` only."""
    return _safe(description["system_name"])


def _detected(facts: MachineFacts, asked: SystemAsked) -> dict[str, str]:
    host, cpu = facts.host, facts.cpu
    gpus = facts.gpus[: asked.accelerators] if asked.accelerators is not None else facts.gpus
    return {
        "number_of_nodes": "1",
        "host_processor_model_name": cpu.model_name,
        "host_processors_per_node": str(cpu.sockets),
        "host_processor_core_count": str(cpu.cores_per_socket),
        "host_processor_frequency": frequency(cpu.max_mhz),
        "host_processor_caches": "; ".join(f"{name}: {size}" for name, size in cpu.caches.items()),
        "host_processor_interconnect": _NONE if cpu.sockets == 1 else "",
        "host_memory_capacity": memory_size(host.memory_bytes),
        "host_storage_capacity": disk_size(host.disk_bytes),
        "host_storage_type": host.disk_type,
        "operating_system": f"{host.os_name} {host.os_version}".strip(),
        "other_software_stack": _software(asked.packages, host, gpus),
        "hw_notes": _joined(*_notes(host, cpu, gpus, len(facts.gpus))),
        **_accelerators(gpus),
    }


def _accelerators(gpus: list[GpuFacts]) -> dict[str, str]:
    if not gpus:
        no_accelerator = {key: _NONE for key in KEYS if key.startswith("accelerator_")}
        return no_accelerator | {"accelerators_per_node": "0"}
    first = gpus[0]
    pcie = f"PCIe Gen{first.pcie_generation} x{first.pcie_width}" if first.pcie_generation and first.pcie_width else ""
    alone = dict.fromkeys(("accelerator_interconnect", "accelerator_interconnect_topology"), _NONE)
    return {
        "accelerators_per_node": str(len(gpus)),
        "accelerator_model_name": ", ".join(dict.fromkeys(gpu.name for gpu in gpus)),
        "accelerator_memory_capacity": memory_size(first.memory_bytes),
        "accelerator_frequency": frequency(first.max_sm_mhz),
        "accelerator_host_interconnect": pcie,
        **(alone if len(gpus) == 1 else {}),
    }


def _elsewhere(asked: SystemAsked) -> dict[str, str]:
    """Return what is known of a server on another machine: nothing but what has to be a number for the checker."""
    missing = [key for key in ("number_of_nodes", "accelerators_per_node") if key not in asked.stated]
    if missing and not asked.rehearsal:
        raise UsageError(
            f"the system file does not state {' and '.join(missing)}",
            cause="the server runs on another machine, so that nothing of its hardware can be detected here",
            remedy="state that machine's hardware in a system file and give it with --system_file=system.yaml",
        )
    note = "The server runs on another machine than this description was made on; nothing of it was detected."
    if missing:
        note += f" The value of {' and '.join(missing)} is not stated and stands only for the checker."
    return {"number_of_nodes": "1", "accelerators_per_node": "0", "hw_notes": note,
            "other_software_stack": _software(asked.packages, None, [])}


def _software(packages: Mapping[str, str], host: HostFacts | None, gpus: list[GpuFacts]) -> str:
    parts = [f"Python {packages['python']}"] if "python" in packages else []
    parts += [f"{name} {packages[name]}" for name in _STACK if name in packages]
    parts += [f"NVIDIA driver {gpus[0].driver}"] if gpus else []
    parts += [f"Linux {host.kernel}"] if host else []
    return ", ".join(parts)


def _notes(host: HostFacts, cpu: CpuFacts, gpus: list[GpuFacts], there: int) -> list[str]:
    notes = []
    if host.virtualised:
        notes.append(f"Virtual machine: processor, caches, memory and storage are what it is given "
                     f"({cpu.logical_cpus} virtual CPUs), not those of the physical host.")
    if gpus and len(gpus) < there:
        notes.append(f"The machine has {there} GPUs, of which the server uses {len(gpus)}.")
    if there and not gpus:
        notes.append(f"The machine's GPUs ({there}) are not used: the model is served by the CPU.")
    if len({gpu.memory_bytes for gpu in gpus}) > 1:
        notes.append("GPU memory: " + ", ".join(memory_size(gpu.memory_bytes) for gpu in gpus) + ".")
    return notes


def _system_name(merged: Mapping[str, str], asked: SystemAsked) -> str:
    count, model = merged.get("accelerators_per_node", "0"), merged.get("accelerator_model_name", "")
    if count == "0" or not model:
        count, model = merged.get("host_processors_per_node", ""), merged.get("host_processor_model_name", "")
    machine = f"{count}x{_model(model)}" if count and model else "unknown-machine"
    return _safe(f"{machine}_vLLM-{asked.vllm}" if asked.vllm else machine)


def _model(name: str) -> str:
    """Shorten a processor's name to what tells it from others."""
    name = re.sub(r"\((R|TM|C)\)|\bCPU\b|\bProcessor\b|\d+-Core\b|@.*", " ", name, flags=re.IGNORECASE)
    return re.sub(r"\s+", "-", name.strip())


def _safe(name: str) -> str:
    # The older checker refuses names with spaces and dot files (submission_checker_old.py, "git unfriendly name").
    return re.sub(r"-+(?=[-_])", "", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("-.") or "system"


def _joined(*texts: str) -> str:
    return " ".join(text.strip() for text in texts if text.strip())

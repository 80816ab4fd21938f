"""The system description of a submission: 35 keys of MLPerf, from detected facts and from what the user states.

Keys and which of them must say something: mlcommons/inference tools/submission/submission_checker/constants.py,
SYSTEM_DESC_REQUIRED_FIELDS and SYSTEM_DESC_MEANINGFUL_RESPONSE_REQUIRED_FIELDS. Every value is text: the checker
takes the number 0 for an empty answer and reads accelerators_per_node and number_of_nodes back as whole numbers.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.gpus.accelerators import accelerator_keys, accelerator_notes, serving
from cm4vllm.hardware.gpus.gpu import UsedGpu
from cm4vllm.hardware.machine_facts import disk_kinds, disks_capacity, modules, network_lines, physical_cards
from cm4vllm.hardware.size_texts import frequency, memory_size
from cm4vllm.records.described_system import NODES_DIFFER, NOT_STATED, STATUS_NOT_STATED, safe_name, stated_system
from cm4vllm.records.known_hardware import Processor, contradictions, processor
from cm4vllm.records.machine import CpuFacts, HostFacts, MachineFacts

_NONE = "N/A"

#: The packages named in other_software_stack, where the server has them.
_STACK = ("torch", "transformers", "triton", "flashinfer-python", "flash-attn", "xformers", "compressed-tensors", "ray")


@dataclass(frozen=True, kw_only=True)
class SystemAsked:
    """The subject of a system description.

    `vllm` is the version of a server that is vLLM, `software` the name of one that may be another, both empty where
    there is none, and `packages` has the versions of its others. `container` names the image that it runs from and the
    engine, empty where it runs from none. `used` names the GPUs or
    MIG parts that the server uses by their UUIDs, None where that is not known; empty is the CPU backend. `here` is
    false when the server runs on another machine than this one: then nothing that is detected belongs to it. `stated`
    is what the user's system file says, `confirmed` the keys of it that stand against the table of known hardware.
    `others` are the second and further nodes of a server over several.
    """

    submitter: str
    division: str
    system_type: str
    vllm: str
    software: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    used: Sequence[str] | None = None
    here: bool = True
    rehearsal: bool = False
    stated: Mapping[str, str] = field(default_factory=dict)
    confirmed: Collection[str] = ()
    others: Sequence[MachineFacts] = ()


def describe_system(facts: MachineFacts, asked: SystemAsked) -> dict[str, str]:
    """Return the description of the system that serves.

    What is neither detected, nor known of such hardware, nor stated is `not stated` where the checker wants an answer
    and empty elsewhere. Raises UsageError when the server runs elsewhere and a result is to be made of a machine of
    which nothing is known, and when a statement contradicts the table of known hardware.
    """
    detected = _detected_fields(facts, asked) if asked.here else _elsewhere(asked)
    detected |= {
        "division": asked.division,
        "submitter": asked.submitter,
        "status": "rdi",
        "sw_notes": _join(
            f"vLLM was run from {asked.container}." if asked.container else "",
            "" if "status" in asked.stated else STATUS_NOT_STATED,
        ),
        "system_type": asked.system_type,
        "framework": f"vLLM {asked.vllm}" if asked.vllm else asked.software,
    }
    merged = detected | dict(asked.stated)
    for key, more in (("hw_notes", _against_the_table(merged, asked)), ("sw_notes", [])):
        notice = REHEARSAL_NOTICE if asked.rehearsal else ""
        merged[key] = _join(notice, asked.stated.get(key, ""), detected.get(key, ""), *more)
    merged.setdefault("system_name", _system_name(merged, asked))
    return stated_system(merged)


def _detected_fields(facts: MachineFacts, asked: SystemAsked) -> dict[str, str]:
    """Return what was detected of the server's nodes: what each has, and in the remarks what they do not share."""
    notes = _join(*_notes(facts, asked, serving(facts.gpus, asked.used)), *_of_several(facts, asked))
    return {"number_of_nodes": str(1 + len(asked.others)), **_of_node(facts, asked), "hw_notes": notes}


def _of_several(facts: MachineFacts, asked: SystemAsked) -> list[str]:
    """Return the remarks on several nodes: their network cards, and each key in which the nodes differ."""
    machines = [facts, *asked.others]
    if len(machines) == 1:
        return []
    keys = [_of_node(machine, asked) for machine in machines]
    cards = "; ".join(dict.fromkeys(", ".join(network_lines(machine.network)) for machine in machines))
    differing = [key for key in keys[0] if len({node[key] for node in keys}) > 1]
    return [
        f"Network cards of a node: {cards}.",
        *(f"{NODES_DIFFER} {key}: {'; '.join(node[key] or NOT_STATED for node in keys)}." for key in differing),
    ]


def _of_node(facts: MachineFacts, asked: SystemAsked) -> dict[str, str]:
    """Return the keys of one node."""
    cpu = facts.cpu
    row = processor(cpu.model_name)
    parts, cards = serving(facts.gpus, asked.used), len(physical_cards(facts.network))
    return {
        "host_processor_model_name": cpu.model_name,
        "host_processors_per_node": str(cpu.sockets),
        "host_processor_core_count": _cores(facts, row),
        "host_processor_frequency": _frequencies(cpu, row),
        "host_processor_caches": "; ".join(f"{name}: {size}" for name, size in cpu.caches.items()),
        "host_processor_interconnect": _interconnect(facts, row),
        "host_memory_capacity": memory_size(facts.memory.total_bytes),
        "host_memory_configuration": modules(facts.memory),
        "host_storage_capacity": disks_capacity(facts.disks, facts.root_bytes),
        "host_storage_type": disk_kinds(facts.disks),
        # Virtual cards are no installed ones, and where none is shown there may yet be some.
        "host_network_card_count": str(cards) if cards and not facts.host.virtualised else "",
        "operating_system": f"{facts.host.os_name} {facts.host.os_version}".strip(),
        "other_software_stack": _software(asked.packages, facts.host, parts),
        **accelerator_keys(parts),
    }


def _cores(facts: MachineFacts, row: Processor | None) -> str:
    """Return the cores of one processor; those of a virtual machine are called so where the processor is not known."""
    cpu = facts.cpu
    if not facts.host.virtualised:
        return str(cpu.cores_per_socket)
    return (
        row.known_cores
        if row and len(row.cores) == 1
        else f"{cpu.cores_per_socket} virtual cores ({cpu.logical_cpus} virtual CPUs in all)"
    )


def _frequencies(cpu: CpuFacts, row: Processor | None) -> str:
    base, top = cpu.base_mhz, cpu.max_mhz
    if row and row.ghz and not top:
        base, top = row.ghz[0] * 1000, row.ghz[1] * 1000
    return f"{frequency(base)}, up to {frequency(top)}" if base and top and base < top else frequency(top or base)


def _interconnect(facts: MachineFacts, row: Processor | None) -> str:
    """Return what joins the processors; a virtual machine cannot see how many its host has."""
    known = _NONE if facts.cpu.sockets == 1 else row.interconnect if row else ""
    return "" if facts.host.virtualised else known


def _against_the_table(merged: Mapping[str, str], asked: SystemAsked) -> list[str]:
    """Return a remark for what is detected, or confirmed by its owner, against the table; raise for what is neither."""
    notes = []
    for wrong in contradictions(merged):
        if wrong.is_hint:
            continue
        if wrong.key not in asked.stated:  # as in a virtual machine that shows ten sockets
            notes.append(f"Detected against the table of known hardware: {wrong}.")
            continue
        if wrong.key not in asked.confirmed:
            raise UsageError(
                f"the system file contradicts what is known of the hardware: {wrong}",
                remedy=f"correct it; if the machine really differs, add `confirmed: [{wrong.key}]` to the "
                "file, and the description will say so",
            )
        notes.append(f"Stated by the submitter against the table of known hardware: {wrong}.")
    return notes


def _elsewhere(asked: SystemAsked) -> dict[str, str]:
    """Return what is known of a server on another machine: only what has to be a number for the checker."""
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
    return {
        "number_of_nodes": "1",
        "accelerators_per_node": "0",
        "hw_notes": note,
        "other_software_stack": _software(asked.packages, None, ()),
    }


def _software(packages: Mapping[str, str], host: HostFacts | None, parts: Sequence[UsedGpu]) -> str:
    """Return the versions of the software stack in one line."""
    words = [f"Python {packages['python']}"] if "python" in packages else []
    words += [f"{name} {packages[name]}" for name in _STACK if name in packages]
    words += [f"{part.gpu.vendor} driver {part.gpu.driver}" for part in parts[:1] if part.gpu.driver]
    return ", ".join([*words, *([f"Linux {host.kernel}"] if host else [])])


def _notes(facts: MachineFacts, asked: SystemAsked, parts: Sequence[UsedGpu]) -> list[str]:
    """Return the remarks on the hardware that the description publishes."""
    host, cpu, there = facts.host, facts.cpu, len(facts.gpus)
    notes = [f"Machine: {host.product}."] if host.product else []
    if host.virtualised:
        notes.append(
            f"Virtual machine: it is given {cpu.logical_cpus} virtual CPUs, shown as {cpu.sockets} x "
            f"{cpu.cores_per_socket} cores x {cpu.threads_per_core} threads; number of processors, caches, "
            "memory and storage are what it is given too, not those of the physical host."
        )
    if cpu.quota_cpus:
        notes.append(f"The program's control group may use {cpu.quota_cpus:g} of the {cpu.logical_cpus} CPUs.")
    if facts.memory.limit_bytes:
        notes.append(f"The program's control group may use {memory_size(facts.memory.limit_bytes)} of the memory.")
    used = len({part.gpu.uuid for part in parts})
    if asked.used is None and asked.vllm and there > 1:
        notes.append("Which of the GPUs serve is not known: all are described.")
    if parts and used < there:
        notes.append(f"The machine has {there} GPUs, of which the server uses {used}.")
    if there and not parts:
        notes.append(f"The machine's GPUs ({there}) are not used: the model is served by the CPU.")
    return notes + _unconfirmed_remarks(facts) + accelerator_notes(parts)


def _unconfirmed_remarks(facts: MachineFacts) -> list[str]:
    """Return a remark on facts of the processor that are only known from an unconfirmed row of the table."""
    row = processor(facts.cpu.model_name)
    if row is None:
        return []
    return row.remarks(
        row.name,
        cores=facts.host.virtualised and len(row.cores) == 1,
        ghz=row.ghz and not facts.cpu.max_mhz,
        interconnect=_interconnect(facts, row) not in ("", _NONE),
    )


def _system_name(merged: Mapping[str, str], asked: SystemAsked) -> str:
    """Return a name for the system made of its accelerators, or of its processors."""
    count, model = merged.get("accelerators_per_node", "0"), merged.get("accelerator_model_name", "")
    if count == "0" or not model:
        count, model = merged.get("host_processors_per_node", ""), merged.get("host_processor_model_name", "")
    machine = f"{count}x{_model(model)}" if count and model else "unknown-machine"
    if merged.get("number_of_nodes", "1") != "1":
        machine = f"{merged['number_of_nodes']}-nodes-of-{machine}"
    return safe_name(f"{machine}_vLLM-{asked.vllm}" if asked.vllm else machine)


def _model(name: str) -> str:
    """Shorten a processor's name to the part that identifies it."""
    name = re.sub(r"\((R|TM|C)\)|\bCPU\b|\bProcessor\b|\d{1,9}-Core\b|@.*", " ", name, flags=re.IGNORECASE)
    return re.sub(r"\s+", "-", name.strip())


def _join(*texts: str) -> str:
    return " ".join(text.strip() for text in texts if text.strip())

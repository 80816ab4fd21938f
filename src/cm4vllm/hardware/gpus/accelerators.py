"""The accelerator_ keys of a system description, from the GPUs that serve and the table of known hardware."""

import math
from collections import Counter
from collections.abc import Sequence

from cm4vllm.hardware.gpus.gpu import UsedGpu
from cm4vllm.hardware.size_texts import frequency, memory_size
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.machine import GpuFacts

_KEYS = (
    "model_name",
    "memory_capacity",
    "memory_configuration",
    "frequency",
    "host_interconnect",
    "interconnect",
    "interconnect_topology",
    "on-chip_memories",
)
#: A driver keeps up to some 9 % of the memory for itself where ECC is on (T4: 14.6 of 16 GB); less is another product.
_LEAST_SHARE = 0.88


def serving(gpus: Sequence[GpuFacts], used: Sequence[str] | None) -> list[UsedGpu]:
    """Return the GPUs, or MIG parts of them, whose UUIDs are among `used`; all GPUs where it is None."""
    if used is None:
        return [UsedGpu(gpu) for gpu in gpus]
    wholes, parts = serving(gpus, None), [UsedGpu(gpu, p) for gpu in gpus for p in (*gpu.mig_devices, *gpu.partitions)]
    return [accelerator for accelerator in (*wholes, *parts) if accelerator.uuid in used]


def accelerator_keys(parts: Sequence[UsedGpu]) -> dict[str, str]:
    """Return all accelerator_ keys and accelerators_per_node; "N/A" and "0" where no accelerator serves."""
    gpus = list({part.gpu.uuid: part.gpu for part in parts}.values())
    if not gpus:
        return {f"accelerator_{key}": "N/A" for key in _KEYS} | {"accelerators_per_node": "0"}
    first, row = gpus[0], accelerator(gpus[0].name)
    between, topology = interconnect(gpus)
    return {
        "accelerators_per_node": str(len(gpus)),
        "accelerator_model_name": ", ".join(dict.fromkeys(_model(gpu, parts) for gpu in gpus)),
        "accelerator_memory_capacity": _capacity(UsedGpu(first) if _is_whole(first, parts) else parts[0]),
        "accelerator_memory_configuration": (row.memory_type if row else "") or first.memory_type,
        "accelerator_frequency": frequency(first.max_sm_mhz),
        "accelerator_host_interconnect": first.pcie,
        "accelerator_interconnect": between,
        "accelerator_interconnect_topology": topology,
    }


def accelerator_notes(parts: Sequence[UsedGpu]) -> list[str]:
    """Return the remarks on the GPUs that serve: what the keys have no place for, and what does not fit together."""
    gpus = list({part.gpu.uuid: part.gpu for part in parts}.values())
    notes = []
    for words in (
        [f"ECC {'on' if gpu.ecc else 'off'}" for gpu in gpus if gpu.ecc is not None],
        [
            f"power limit {gpu.power_limit_w:g} W"
            + (
                f" (default {gpu.power_default_w:g} W)"
                if gpu.power_default_w and gpu.power_default_w != gpu.power_limit_w
                else ""
            )
            for gpu in gpus
            if gpu.power_limit_w
        ],
        [_form_factor(gpu) for gpu in gpus if _form_factor(gpu)],
        [f"given to the virtual machine by {gpu.virtualisation}" for gpu in gpus if gpu.virtualisation],
    ):
        if words:
            notes.append(", ".join(dict.fromkeys(words)))
    remarks = [f"GPU: {'; '.join(notes)}."] if notes else []
    remarks += [
        f"Memory of the {gpu.name}: not detected{', shared with the host' if gpu.shares_host_memory else ''}."
        for gpu in {gpu.name: gpu for gpu in gpus if gpu.memory_bytes is None}.values()
    ]
    if len({gpu.memory_bytes for gpu in gpus}) > 1:
        remarks.append("GPU memory: " + ", ".join(_capacity(UsedGpu(gpu)) or "not detected" for gpu in gpus) + ".")
    remarks += [
        f"The driver reports {(gpu.memory_bytes or 0) / 2**30:.1f} GiB of the {row.memory_gb[0]} GB that the "
        f"{gpu.name} "
        f"is sold with ({row.source})."
        for gpu in gpus[:1]
        if (row := accelerator(gpu.name)) and not _fits(gpu)
    ]
    return remarks + _unconfirmed_remarks(gpus)


def _unconfirmed_remarks(gpus: Sequence[GpuFacts]) -> list[str]:
    """Return a remark on facts of the first GPU that are only known from an unconfirmed row of the table."""
    row = accelerator(gpus[0].name) if gpus else None
    if row is None:
        return []
    linked = len(gpus) > 1 and all(gpu.links for gpu in gpus)
    return row.remarks(
        gpus[0].name,
        memory_type=row.memory_type,
        memory_gb=_fits(gpus[0]),
        links=linked and row.links,
        links_gb_per_s=linked and row.links_gb_per_s,
        form_factor=row.form_factor,
    )


def _model(gpu: GpuFacts, parts: Sequence[UsedGpu]) -> str:
    profiles = Counter(part.part.profile for part in parts if part.part and part.gpu.uuid == gpu.uuid)
    named = ", ".join(f"{count}x {profile}" for profile, count in sorted(profiles.items()))
    return f"{gpu.name} ({'partitions' if gpu.partitions else 'MIG'} {named})" if named else gpu.name


def _is_whole(gpu: GpuFacts, parts: Sequence[UsedGpu]) -> bool:
    """Return True if all partitions of a GPU serve."""
    return bool(gpu.partitions) and all(any(used.part == each for used in parts) for each in gpu.partitions)


def _capacity(used: UsedGpu) -> str:
    """Return the memory as it is sold where the table knows the product, else as reported."""
    row, reported = accelerator(used.gpu.name), used.memory_bytes
    if used.part or row is None or not _fits(used.gpu):
        return memory_size(reported) if reported else ""
    gib = (reported or row.memory_gb[0] * 2**30) / 2**30
    return f"{min(row.memory_gb, key=lambda size: abs(size - gib))} GB"


def _fits(gpu: GpuFacts) -> bool:
    """Return True if the memory reported, if any, is that of the product in the table: 10^9 or 2^30 bytes a GB."""
    row, reported = accelerator(gpu.name), gpu.memory_bytes
    if row is None or reported is None:
        return True
    return any(size * 1e9 * _LEAST_SHARE <= reported <= size * 2**30 for size in row.memory_gb)


def _form_factor(gpu: GpuFacts) -> str:
    row = accelerator(gpu.name)
    return f"form factor {row.form_factor}" if row and row.form_factor else ""


_NONE = "N/A"
#: The farthest way that two GPUs take over PCIe, the nearest first (`nvidia-smi topo -m`).
_PATHS = {
    "same board": "PCIe: on one board",
    "PIX": "PCIe: behind one switch",
    "PXB": "PCIe: behind several switches",
    "PHB": "PCIe: through one host bridge",
    "NODE": "PCIe: within one NUMA node",
    "SYS": "PCIe: across NUMA nodes, through the processors' interconnect",
}


def interconnect(gpus: Sequence[GpuFacts]) -> tuple[str, str]:
    """Return accelerator_interconnect and its topology for GPUs that serve together; empty where it is not known."""
    if len(gpus) == 1:
        return _NONE, _NONE
    if all(gpu.links for gpu in gpus):
        return _links(gpus[0]), _link_topology(gpus)
    ways = [path for gpu in gpus for other in gpus if (path := gpu.paths.get(other.uuid))]
    if any(gpu.links for gpu in gpus) or not ways:
        return "", ""
    return gpus[0].pcie or "PCIe", _PATHS[max(ways, key=list(_PATHS).index)]


def _links(gpu: GpuFacts) -> str:
    """Return for example '18x NVLink 4, 900 GB/s': the count as detected, generation and rate from the table."""
    count, row = sum(gpu.links.values()), accelerator(gpu.name)
    name = row.links if row and row.links.startswith(gpu.link_name) else gpu.link_name
    whole = f"{count}x {name}" if gpu.link_name == "NVLink" else name
    return f"{whole}, {row.links_gb_per_s} GB/s" if row and row.links_gb_per_s and name == row.links else whole


def _link_topology(gpus: Sequence[GpuFacts]) -> str:
    """Return in words how the GPUs are linked, empty where it is not known."""
    if all("switch" in gpu.links for gpu in gpus):
        return "NVSwitch: every GPU reaches every other"
    if any("unknown" in gpu.links for gpu in gpus):
        return ""
    own = {gpu.uuid for gpu in gpus}
    if all(own - {gpu.uuid} <= gpu.links.keys() for gpu in gpus):
        return "direct links between all GPUs"
    pairs = {frozenset((gpu.uuid, other)) for gpu in gpus for other in gpu.links if other in own}
    if not pairs:
        return "no direct links among the GPUs that serve"
    return f"direct links between {len(pairs)} of {math.comb(len(gpus), 2)} pairs of GPUs, the others over PCIe"

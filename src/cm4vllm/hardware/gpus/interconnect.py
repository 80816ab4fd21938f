"""Links between GPUs: the driver's report in the words of a system description."""

from collections.abc import Sequence

from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.machine import GpuFacts

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
    farthest = max(ways, key=list(_PATHS).index, default="")
    if any(gpu.links for gpu in gpus):
        return "", ""
    return (gpus[0].pcie or "PCIe") if ways else "", _PATHS.get(farthest, "")


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
    own = {gpu.uuid for gpu in gpus}
    if any("unknown" in gpu.links for gpu in gpus):
        return ""
    if all(own - {gpu.uuid} <= gpu.links.keys() for gpu in gpus):
        return "direct links between all GPUs"
    pairs = {frozenset((gpu.uuid, other)) for gpu in gpus for other in gpu.links if other in own}
    if not pairs:
        return "no direct links among the GPUs that serve"
    of_all = len(gpus) * (len(gpus) - 1) // 2
    return f"direct links between {len(pairs)} of {of_all} pairs of GPUs, the others over PCIe"

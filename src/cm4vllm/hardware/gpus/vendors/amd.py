"""AMD GPUs, as the driver reports them through amdsmi, which comes with ROCm and is not required."""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cm4vllm.common.kernel_files import exists
from cm4vllm.hardware.gpus.vendor import Filter, Questions, Read, Vendor, answer_of, answer_or_error, constant, entry
from cm4vllm.records.energy import Counter, Scope
from cm4vllm.records.machine import MEMORY, GpuFacts, MigFacts

#: amdsmi_vram_type_t; AMDSMI_VRAM_TYPE_HBM3 is also what it says of HBM3E.
_MEMORY_TYPES = {1: "HBM", 2: "HBM2", 3: "HBM2e", 4: "HBM3", 22: "GDDR6", 23: "GDDR7"}
_XGMI = 2  # AMDSMI_LINK_TYPE_XGMI
#: The device of ROCm's kernel driver; amdsmi, which reports more, is not always installed.
KFD = Path("/dev/kfd")


class Card(NamedTuple):
    """A GPU as it is built in: `parts` are its partitions, which amdsmi lists as GPUs; one where it is not parted.

    Only the first answers questions about the whole.
    """

    uuid: str
    bus: str
    parts: list[Questions]

    @property
    def ask(self) -> Questions:
        """Return what asks the driver about the whole card."""
        return self.parts[0]


def _library() -> Any:
    """Return the amdsmi module, initialised; None where ROCm's driver or the module is missing."""
    if not exists(KFD):
        return None
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did not find, then fails in many ways
            import amdsmi
    except Exception:
        return None
    _, error = answer_or_error(amdsmi, "amdsmi_init", constant(amdsmi, "AmdSmiInitFlags.INIT_AMD_GPUS"))
    return amdsmi if error is None else None


def cards(amdsmi: Any) -> list[Card]:
    """Return the GPUs that are built in, in the driver's order, each with the partitions that are listed as GPUs."""
    listed: list[Card] = []
    for place, handle in enumerate(answer_of(amdsmi, "amdsmi_get_processor_handles") or ()):
        ask = Questions(amdsmi, handle)
        bus = str(ask("amdsmi_get_gpu_device_bdf") or "")
        uuid = str(ask("amdsmi_get_gpu_device_uuid", fact="UUID") or f"place {place}")
        whole = next((card for card in listed if _is_part(card, bus, uuid, ask)), None)
        if whole is None:
            listed.append(Card(uuid, bus, [ask]))
        else:
            whole.parts.append(ask)
    return listed


def _is_part(card: Card, bus: str, uuid: str, ask: Questions) -> bool:
    """Return True if a handle is another partition of a card: another function of its PCI device, or without a name."""
    device, _, function = bus.rpartition(".")
    same = device and device == card.bus.rpartition(".")[0]
    return bool(same) and (function != "0" or uuid == card.uuid or not _name(ask))


def _name(ask: Questions) -> str:
    return str(entry(ask("amdsmi_get_gpu_asic_info", fact="name"), "market_name") or "")


def _gpu(card: Card, others: Sequence[Card]) -> GpuFacts:
    """Return the facts of one card as amdsmi states them."""
    of_it = card.ask
    vram, cap = of_it("amdsmi_get_gpu_vram_info", fact=MEMORY), of_it("amdsmi_get_power_cap_info", fact="power limit")
    pcie = entry(of_it("amdsmi_get_pcie_info", fact="PCIe"), "pcie_static")
    clocks = [
        entry(of_it("amdsmi_get_clock_info", constant(of_it.library, f"AmdSmiClkType.{kind}"), fact=fact), "max_clk")
        for kind, fact in (("GFX", "frequency"), ("MEM", "frequency of the memory"))
    ]
    links = {other.uuid: entry(of_it("amdsmi_topo_get_link_type", other.ask.device), "type") for other in others}
    memory = _memory(card)
    if memory is None:
        of_it.unanswered.setdefault(MEMORY, "the driver states none")
    return GpuFacts(
        name=_name(of_it) or "AMD GPU",
        uuid=card.uuid,
        vendor="AMD",
        memory_bytes=memory,
        memory_type=_MEMORY_TYPES.get(entry(vram, "vram_type") or 0, ""),
        memory_bus_bits=entry(vram, "vram_bit_width"),
        max_sm_mhz=_number_or_none(clocks[0]),
        max_memory_mhz=_number_or_none(clocks[1]),
        pcie_generation=entry(pcie, "pcie_interface_version"),
        pcie_width=entry(pcie, "max_pcie_width"),
        pci_bus_id=card.bus,
        driver=str(entry(of_it("amdsmi_get_gpu_driver_info", fact="driver"), "driver_version") or ""),
        power_limit_w=_number_or_none(entry(cap, "power_cap"), 1e6),
        power_default_w=_number_or_none(entry(cap, "default_power_cap"), 1e6),
        link_name="XGMI" if _XGMI in links.values() else "",
        links={other: 1 for other, kind in links.items() if kind == _XGMI},
        partitions=_partitions(card, memory),
        unanswered=of_it.unanswered,
    )


def _memory(card: Card) -> int | None:
    """Return the memory of the whole GPU in bytes.

    The first partition states the whole, and the others nothing or their own part; where all state the same, it is the
    part of each.
    """
    sizes = [_mib(entry(part("amdsmi_get_gpu_vram_info"), "vram_size")) for part in card.parts]
    known = [size for size in sizes if size]
    alike = len(known) == len(sizes) > 1 and len(set(sizes)) == 1
    return (sum(known) if alike else max(known, default=0)) * 2**20 or None


def _partitions(card: Card, memory: int | None) -> list[MigFacts]:
    """Return the partitions, each with its part of the memory (kernel: amdgpu_amdkfd.c, the memory of a partition)."""
    if len(card.parts) == 1:
        return []
    questions = ("amdsmi_get_gpu_compute_partition", "amdsmi_get_gpu_memory_partition")
    modes = [str(card.ask(question) or "").strip().removeprefix("N/A") for question in questions]
    return [
        MigFacts(
            uuid=f"{card.uuid}/{place}",
            profile="/".join(filter(None, modes)) or "not stated",
            memory_bytes=memory // len(card.parts) if memory else None,
        )
        for place in range(len(card.parts))
    ]


def _mib(value: Any) -> int | None:
    """Return a size; later releases of amdsmi give some as {"value": 1, "unit": "MB"}."""
    value = value.get("value") if isinstance(value, Mapping) else value
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _number_or_none(value: Any, of_one: float = 1) -> float | None:
    return value / of_one if isinstance(value, int | float) and value else None


class _Amd(Vendor):
    """AMD. The variables: ROCr's amd_filter_device.h, then HIP's rocdevice.cpp. vLLM ends where those of HIP differ."""

    name = "AMD"
    order = 2
    device = "rocm"
    library = "amdsmi"
    filters = (
        Filter(("ROCR_VISIBLE_DEVICES",)),
        Filter(("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), empty_hides=False),
    )

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Yield the amdsmi module, initialised; None where the driver or the module is missing."""
        amdsmi = _library()
        try:
            yield amdsmi
        finally:
            if amdsmi is not None:
                answer_of(amdsmi, "amdsmi_shut_down")

    def gpus(self, library: Any) -> list[GpuFacts]:
        """Return the GPUs that the driver shows, in its order."""
        shown = cards(library)
        return [_gpu(card, [other for other in shown if other is not card]) for card in shown]

    def is_loaded(self) -> bool:
        """Return True if the kernel driver is loaded."""
        return exists(KFD)

    def why_none(self) -> str:
        """Return why no AMD GPU can be used, empty if nothing prevents it."""
        return "" if self.is_loaded() else f"the kernel driver amdgpu with ROCm is not loaded: {KFD} does not exist"

    def counters(self, library: Any) -> Iterator[tuple[Counter, Read]]:
        """Yield the counters of boards: amdsmi states a count and its unit in uJ."""
        for place, card in enumerate(cards(library)):
            if (first := _energy(card.ask)) is not None:
                counter = Counter(
                    name=f"GPU {place} of AMD",
                    scope=Scope.GPU,
                    method="amdsmi, amdsmi_get_energy_count",
                    unit_j=first[1] / 1e6,
                    wraps_at=2**64,
                )
                yield counter, partial(_energy_count, card.ask)


def _energy(ask: Questions) -> tuple[int, float] | None:
    """Return the energy that a board counted and the unit of its count in uJ; None where it states none."""
    said = ask("amdsmi_get_energy_count")
    value, unit = entry(said, "energy_accumulator"), entry(said, "counter_resolution")
    value = entry(said, "power") if value is None else value
    return (int(value), float(unit)) if isinstance(value, int | float) and isinstance(unit, int | float) else None


def _energy_count(ask: Questions) -> int | None:
    now = _energy(ask)
    return now[0] if now else None


VENDOR = _Amd()

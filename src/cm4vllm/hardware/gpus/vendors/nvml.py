"""NVIDIA GPUs, asked of the driver through NVML (nvidia-ml-py)."""

from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from cm4vllm.hardware.gpus.vendor import (
    Filter,
    GpuUse,
    Questions,
    Read,
    Vendor,
    answer_of,
    answer_or_error,
    constant,
    reason,
)
from cm4vllm.records.energy import Counter, Scope
from cm4vllm.records.known_hardware import is_integrated
from cm4vllm.records.machine import MEMORY, GpuFacts, MigFacts
from cm4vllm.records.metrics import GpuSample

#: nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo -m`.
_PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: nvmlGpuVirtualizationMode_t, from the guest's side.
_VIRTUAL = {1: "passthrough", 2: "vGPU"}

#: What the driver answers of the memory of a GPU that has none of its own, as the GB10: an error, or no bytes.
_NO_BYTES = "the driver states 0 bytes"
_NO_MEMORY_OF_ITS_OWN = ("Not Supported", _NO_BYTES)
#: nvmlPerfPolicyType_t: the reasons for lower clocks that say something about the machine.
_POLICIES = {
    "NVML_PERF_POLICY_POWER": "its power limit",
    "NVML_PERF_POLICY_THERMAL": "its temperature",
    "NVML_PERF_POLICY_BOARD_LIMIT": "its board's limit",
    "NVML_PERF_POLICY_RELIABILITY": "its reliability limit",
}
_ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


class Device(NamedTuple):
    """A GPU that the driver shows: its place in the driver's order, its UUID, and what NVML calls it.

    `name` is "NVIDIA GPU" where the driver does not state it, and the place stands for a UUID that it does not state.
    `ask` asks the driver about it.
    """

    place: int
    uuid: str
    name: str
    ask: Questions


def devices(nvml: Any) -> list[Device]:
    """Return the GPUs that respond, in the driver's order, which is that of the PCI bus."""
    shown = [(place, Questions(nvml, handle)) for place, handle, error in _handles(nvml) if error is None]
    return [
        Device(
            place,
            _word(ask("nvmlDeviceGetUUID", fact="UUID")) or f"place {place}",
            _word(ask("nvmlDeviceGetName", fact="name")) or "NVIDIA GPU",
            ask,
        )
        for place, ask in shown
    ]


def _handles(nvml: Any) -> list[tuple[int, Any, Exception | None]]:
    count = answer_of(nvml, "nvmlDeviceGetCount") or 0
    return [(place, *answer_or_error(nvml, "nvmlDeviceGetHandleByIndex", place)) for place in range(count)]


def _gpu(device: Device, versions: tuple[str, str], buses: dict[str, str], shown: Sequence[Device]) -> GpuFacts:
    """Return the facts of one GPU as NVML states them."""
    of_it = device.ask
    capability = of_it("nvmlDeviceGetCudaComputeCapability", fact="compute capability")
    ecc, mig = of_it("nvmlDeviceGetEccMode"), of_it("nvmlDeviceGetMigMode")
    links = _links(of_it, buses)
    paths = {
        other.uuid: of_it("nvmlDeviceGetTopologyCommonAncestor", other.ask.device)
        for other in shown
        if other.uuid != device.uuid
    }
    clocks = [
        of_it("nvmlDeviceGetMaxClockInfo", constant(of_it.library, f"NVML_CLOCK_{kind}"), fact=fact)
        for kind, fact in (("SM", "frequency"), ("MEM", "frequency of the memory"))
    ]
    return GpuFacts(
        name=device.name,
        uuid=device.uuid,
        memory_bytes=_memory(of_it),
        max_sm_mhz=clocks[0] or None,
        max_memory_mhz=clocks[1] or None,
        memory_bus_bits=of_it("nvmlDeviceGetMemoryBusWidth") or None,
        pcie_generation=of_it("nvmlDeviceGetMaxPcieLinkGeneration", fact="PCIe") or None,
        pcie_width=of_it("nvmlDeviceGetMaxPcieLinkWidth", fact="PCIe") or None,
        pci_bus_id=buses[device.uuid],
        driver=versions[0],
        cuda=versions[1],
        compute_capability=".".join(str(part) for part in capability) if capability else "",
        ecc=bool(ecc[0]) if ecc is not None else None,
        mig=bool(mig[0]) if mig is not None else None,
        mig_devices=_mig_devices(of_it) if mig and mig[0] else [],
        power_limit_w=_watts(of_it("nvmlDeviceGetEnforcedPowerLimit", fact="power limit")),
        power_default_w=_watts(of_it("nvmlDeviceGetPowerManagementDefaultLimit")),
        virtualisation=_VIRTUAL.get(of_it("nvmlDeviceGetVirtualizationMode"), ""),
        link_name="NVLink" if links else "",
        links=links,
        paths={other: _PATHS[level] for other, level in paths.items() if level in _PATHS},
        shares_host_memory=of_it.unanswered.get(MEMORY) in _NO_MEMORY_OF_ITS_OWN and is_integrated(device.name),
        unanswered=of_it.unanswered,
    )


def _memory(of_it: Questions) -> int | None:
    """Return the memory of a GPU in bytes; None where it has none of its own or the driver does not state it."""
    info = of_it("nvmlDeviceGetMemoryInfo", fact=MEMORY)
    if info is not None and not info.total:
        of_it.unanswered[MEMORY] = _NO_BYTES
    return int(info.total) or None if info is not None else None


def _links(of_it: Questions, buses: dict[str, str]) -> dict[str, int]:
    """Return the numbers of active NVLinks by what is at their other end."""
    links: Counts[str] = Counts()
    for link in range(constant(of_it.library, "NVML_NVLINK_MAX_LINKS") or 0):
        active = of_it("nvmlDeviceGetNvLinkState", link)
        if active is None:  # past the last link, or a GPU without any
            break
        if active:
            links[_other_end(of_it, link, buses)] += 1
    return dict(links)


def _other_end(of_it: Questions, link: int, buses: dict[str, str]) -> str:
    """Return what an NVLink leads to: `switch`, the UUID of a GPU, or `unknown`."""
    kind = of_it("nvmlDeviceGetNvLinkRemoteDeviceType", link)
    if kind is not None and kind == constant(of_it.library, "NVML_NVLINK_DEVICE_TYPE_SWITCH"):
        return "switch"
    bus = _bus(of_it("nvmlDeviceGetNvLinkRemotePciInfo", link))
    return next((uuid for uuid, own in buses.items() if own and own == bus), "unknown")


def _mig_devices(of_it: Questions) -> list[MigFacts]:
    """Return the parts of a GPU with MIG."""
    places = range(of_it("nvmlDeviceGetMaxMigDeviceCount") or 0)
    handles = (of_it("nvmlDeviceGetMigDeviceHandleByIndex", place) for place in places)
    parts = [Questions(of_it.library, handle) for handle in handles if handle is not None]
    return [
        MigFacts(
            uuid=_word(part("nvmlDeviceGetUUID")) or f"part {place}",
            profile=_word(part("nvmlDeviceGetName")).rpartition("MIG ")[2],
            memory_bytes=_memory(part),
        )
        for place, part in enumerate(parts)
    ]


def _bus(info: Any) -> str:
    return _word(info.busId).lower() if info is not None else ""


def _word(value: Any) -> str:
    """Return a text of the driver, which some releases of the library give as bytes; empty for no answer."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts else None


class _Nvidia(Vendor):
    """NVIDIA. The variables: CUDA's programming guide; what it leaves open is as PyTorch counts devices."""

    name = "NVIDIA"
    order = 1
    device = "cuda"
    library = "NVML"
    filters = (Filter(("CUDA_VISIBLE_DEVICES",), loose=True, repeated_hides=True, order_variable="CUDA_DEVICE_ORDER"),)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Yield the NVML module, initialised; None where the driver is missing."""
        import pynvml

        if answer_or_error(pynvml, "nvmlInit")[1] is not None:
            yield None
            return
        try:
            yield pynvml
        finally:
            answer_of(pynvml, "nvmlShutdown")

    def gpus(self, library: Any) -> list[GpuFacts]:
        """Return the GPUs that the driver shows, in its order."""
        shown = devices(library)
        driver, cuda = (
            answer_of(library, "nvmlSystemGetDriverVersion"),
            answer_of(library, "nvmlSystemGetCudaDriverVersion"),
        )
        versions = (_word(driver), f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
        buses = {device.uuid: _bus(device.ask("nvmlDeviceGetPciInfo")) for device in shown}
        return [_gpu(device, versions, buses, shown) for device in shown]

    def why_none(self) -> str:
        """Return why no NVIDIA GPU can be used; empty where the driver shows one."""
        import pynvml

        if (error := answer_or_error(pynvml, "nvmlInit")[1]) is not None:
            if getattr(error, "value", None) == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                return "NVIDIA's driver is not installed: its library libnvidia-ml.so.1 is not found"
            return f"NVIDIA's driver does not respond: {reason(error)}"
        answer_of(pynvml, "nvmlShutdown")
        with self.opened() as library:
            if library is not None and devices(library):
                return ""
            silent = self.silent(library) if library is not None else []
            return f"NVIDIA's driver shows no GPU{': ' if silent else ''}{'; '.join(silent)}"

    def silent(self, library: Any) -> list[str]:
        """Return in words the GPUs that the driver counts and that do not respond, as one that is lost."""
        lost = ((place, error) for place, _, error in _handles(library) if error is not None)
        return [f"GPU {place} does not respond: {reason(error)}" for place, error in lost]

    def samples(self, library: Any) -> list[GpuSample]:
        """Return utilisation, memory, power and clocks of each GPU now."""
        return [_sample(library, device) for device in devices(library)]

    def use(self, library: Any) -> dict[str, GpuUse]:
        """Return memory and processes of each GPU, by UUID."""
        return {device.uuid: _use(device) for device in devices(library)}

    def throttling(self, library: Any) -> dict[str, float]:
        """Return the seconds for which each GPU was slowed down, by GPU and reason."""
        counters = {}
        for device in devices(library):
            for policy, words in _POLICIES.items():
                status = device.ask("nvmlDeviceGetViolationStatus", constant(library, policy))
                if status is not None:  # some GPUs do not count it
                    counters[f"GPU {device.place}: {words}"] = status.violationTime / 1e9
        return counters

    def counters(self, library: Any) -> Iterator[tuple[Counter, Read]]:
        """Yield the counters of boards: Volta and later have one, in mJ since the driver was loaded."""
        for device in devices(library):
            if device.ask(_ENERGY) is not None:
                counter = Counter(
                    name=f"GPU {device.place} {device.name}",
                    scope=Scope.GPU,
                    method=f"NVML, {_ENERGY}",
                    unit_j=1e-3,
                    wraps_at=2**64,
                    device=device.uuid,
                )
                yield counter, partial(device.ask, _ENERGY)


def _sample(library: Any, device: Device) -> GpuSample:
    """Return utilisation, memory, power and clocks of one GPU now."""
    load, memory = device.ask("nvmlDeviceGetUtilizationRates"), device.ask("nvmlDeviceGetMemoryInfo")
    return GpuSample(
        index=device.place,
        name=device.name,
        utilisation=None if load is None else load.gpu / 100,
        power_w=None if (power := device.ask("nvmlDeviceGetPowerUsage")) is None else power / 1000,
        memory_used_bytes=None if memory is None else int(memory.used),
        temperature_c=device.ask("nvmlDeviceGetTemperature", constant(library, "NVML_TEMPERATURE_GPU")),
        sm_mhz=device.ask("nvmlDeviceGetClockInfo", constant(library, "NVML_CLOCK_SM")),
    )


def _use(device: Device) -> GpuUse:
    memory = device.ask("nvmlDeviceGetMemoryInfo")
    pids = frozenset(int(process.pid) for process in device.ask("nvmlDeviceGetComputeRunningProcesses") or ())
    return GpuUse(device.name, None if memory is None else int(memory.used), pids)


VENDOR = _Nvidia()

"""NVIDIA GPUs, asked of the driver through NVML (nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from cm4vllm.hardware.records import GpuFacts, MigFacts

__all__ = ["asked", "gpus_of_processes", "handles", "nvidia_gpus", "opened", "pids_on", "why_none"]

#: nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo -m`.
_PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: nvmlGpuVirtualizationMode_t, from the guest's side.
_VIRTUAL = {1: "passthrough", 2: "vGPU"}


@contextmanager
def opened() -> Iterator[Any]:
    """Give the NVML module, initialised; None where the driver is missing."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def why_none() -> str:
    """Say why no NVIDIA GPU can be used; empty where the driver shows one."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return "NVIDIA's driver is not installed: its library libnvidia-ml.so.1 is not found"
        return f"NVIDIA's driver does not respond: {error}"
    pynvml.nvmlShutdown()
    with opened() as library:
        return "" if library is not None and nvidia_gpus(library) else "NVIDIA's driver shows no GPU"


def handles(nvml: Any) -> list[Any]:
    """Return the handles of all GPUs, in the driver's order. Raises NVMLError."""
    return [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]


def nvidia_gpus(nvml: Any) -> list[GpuFacts]:
    """Return the GPUs that the driver shows, in its order, which is that of the PCI bus."""
    try:
        peers = [(nvml.nvmlDeviceGetUUID(handle), handle) for handle in handles(nvml)]
        driver = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:  # a driver that fell out from under its library
        return []
    cuda = asked(nvml, "nvmlSystemGetCudaDriverVersion")
    buses = {uuid: _bus(nvml, handle) for uuid, handle in peers}
    return [
        _gpu(nvml, handle, uuid, driver, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "", buses, peers)
        for uuid, handle in peers
    ]


def gpus_of_processes(pids: Collection[int]) -> list[str]:
    """Return the UUIDs of the GPUs on which one of these processes computes; none where the driver does not tell.

    In a container with process numbers of its own, the driver reports those of the host, and none matches.
    """
    with opened() as nvml:
        if nvml is None:
            return []
        try:
            return [nvml.nvmlDeviceGetUUID(handle) for handle in handles(nvml) if pids_on(nvml, handle) & set(pids)]
        except nvml.NVMLError:
            return []


def pids_on(nvml: Any, handle: Any) -> set[int]:
    """Return the processes that compute on a GPU; none where the driver does not tell."""
    return {int(process.pid) for process in asked(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()}


def _gpu(
    nvml: Any, handle: Any, uuid: str, driver: str, cuda: str, buses: dict[str, str], peers: list[tuple[str, Any]]
) -> GpuFacts:
    def of_it(question: str, *more: Any) -> Any:
        return asked(nvml, question, handle, *more)

    capability = of_it("nvmlDeviceGetCudaComputeCapability")
    ecc, mig = of_it("nvmlDeviceGetEccMode"), of_it("nvmlDeviceGetMigMode")
    links = _links(nvml, handle, buses)
    paths = {
        other: asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", handle, peer)
        for other, peer in peers
        if other != uuid
    }
    return GpuFacts(
        name=nvml.nvmlDeviceGetName(handle),
        uuid=uuid,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        max_sm_mhz=_mega(of_it("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)),
        max_memory_mhz=_mega(of_it("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM)),
        memory_bus_bits=of_it("nvmlDeviceGetMemoryBusWidth") or None,
        pcie_generation=of_it("nvmlDeviceGetMaxPcieLinkGeneration") or None,
        pcie_width=of_it("nvmlDeviceGetMaxPcieLinkWidth") or None,
        pci_bus_id=buses[uuid],
        driver=driver,
        cuda=cuda,
        compute_capability=".".join(str(part) for part in capability) if capability else "",
        ecc=bool(ecc[0]) if ecc is not None else None,
        mig=bool(mig[0]) if mig is not None else None,
        mig_devices=_mig_devices(nvml, handle) if mig and mig[0] else [],
        power_limit_w=_watts(of_it("nvmlDeviceGetEnforcedPowerLimit")),
        power_default_w=_watts(of_it("nvmlDeviceGetPowerManagementDefaultLimit")),
        virtualisation=_VIRTUAL.get(of_it("nvmlDeviceGetVirtualizationMode"), ""),
        link_name="NVLink" if links else "",
        links=links,
        paths={other: _PATHS[level] for other, level in paths.items() if level in _PATHS},
    )


def _links(nvml: Any, handle: Any, buses: dict[str, str]) -> dict[str, int]:
    """Return the active NVLinks by what is at their other end."""
    links: dict[str, int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = asked(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if active is None:  # past the last link, or a GPU without any
            break
        if active:
            end = _other_end(nvml, handle, link, buses)
            links[end] = links.get(end, 0) + 1
    return links


def _other_end(nvml: Any, handle: Any, link: int, buses: dict[str, str]) -> str:
    kind = asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return "switch"
    remote = asked(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    bus = str(remote.busId).lower() if remote is not None else ""
    return next((uuid for uuid, own in buses.items() if own and own == bus), "unknown")


def _mig_devices(nvml: Any, handle: Any) -> list[MigFacts]:
    devices = []
    for i in range(asked(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = asked(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
        if part is not None:
            devices.append(
                MigFacts(
                    uuid=nvml.nvmlDeviceGetUUID(part),
                    profile=nvml.nvmlDeviceGetName(part).rpartition("MIG ")[2],
                    memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(part).total),
                )
            )
    return devices


def _bus(nvml: Any, handle: Any) -> str:
    info = asked(nvml, "nvmlDeviceGetPciInfo", handle)
    return str(info.busId).lower() if info is not None else ""


def asked(nvml: Any, question: str, *args: Any) -> Any:
    """Return what the driver answers; None where it does not know an answer."""
    try:
        return getattr(nvml, question)(*args)
    except nvml.NVMLError:  # a GPU or driver that does not know an answer says so with an error
        return None


def _mega(value: int | None) -> float | None:
    return float(value) if value else None


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts else None

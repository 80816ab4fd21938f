"""AMD GPUs, as the driver reports them through amdsmi, which comes with ROCm and is not required."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cm4vllm.hardware.records import GpuFacts

__all__ = ["amd_gpus", "asked", "opened"]

#: amdsmi_vram_type_t; AMDSMI_VRAM_TYPE_HBM3 is also what it says of HBM3E.
_MEMORY_TYPES = {1: "HBM", 2: "HBM2", 3: "HBM2e", 4: "HBM3", 22: "GDDR6", 23: "GDDR7"}
_XGMI = 2  # AMDSMI_LINK_TYPE_XGMI


def _library() -> Any:
    """Return the amdsmi module, initialised; None where ROCm's driver or the module is missing."""
    if not Path("/dev/kfd").exists():
        return None
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did not find, then fails in many ways
            import amdsmi
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except Exception:
        return None
    return amdsmi


@contextmanager
def opened() -> Iterator[Any]:
    """Give the amdsmi module, initialised; None where the driver or the module is missing."""
    amdsmi = _library()
    try:
        yield amdsmi
    finally:
        if amdsmi is not None:
            amdsmi.amdsmi_shut_down()


def asked(amdsmi: Any, question: str, *args: Any) -> Any:
    """Return what the driver answers; None where it does not know an answer."""
    try:
        return getattr(amdsmi, question)(*args)
    except amdsmi.AmdSmiException:
        return None


def amd_gpus(amdsmi: Any) -> list[GpuFacts]:
    """Return the GPUs that the driver shows, in its order."""
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        peers = [(str(amdsmi.amdsmi_get_gpu_device_uuid(handle)), handle) for handle in handles]
    except amdsmi.AmdSmiException:
        return []
    return [_gpu(amdsmi, handle, uuid, peers) for uuid, handle in peers]


def _gpu(amdsmi: Any, handle: Any, uuid: str, peers: list[tuple[str, Any]]) -> GpuFacts:
    def of_it(question: str, *more: Any) -> Any:
        return asked(amdsmi, question, handle, *more)

    def of(answer: Any, key: str) -> Any:
        """Return one entry of an answer; amdsmi says "N/A" for what it does not know."""
        value = (answer or {}).get(key)
        return None if value in ("N/A", "", None) else value

    vram, cap = of_it("amdsmi_get_gpu_vram_info"), of_it("amdsmi_get_power_cap_info")
    pcie = (of_it("amdsmi_get_pcie_info") or {}).get("pcie_static")
    clocks = {
        kind: of(of_it("amdsmi_get_clock_info", getattr(amdsmi.AmdSmiClkType, kind)), "max_clk")
        for kind in ("GFX", "MEM")
    }
    links = {other: of(of_it("amdsmi_topo_get_link_type", peer), "type") for other, peer in peers if other != uuid}
    return GpuFacts(
        name=str(of(of_it("amdsmi_get_gpu_asic_info"), "market_name") or "AMD GPU"),
        uuid=uuid,
        vendor="AMD",
        memory_bytes=int(of(vram, "vram_size") or 0) * 2**20,
        memory_type=_MEMORY_TYPES.get(of(vram, "vram_type") or 0, ""),
        memory_bus_bits=of(vram, "vram_bit_width"),
        max_sm_mhz=float(clocks["GFX"]) if clocks["GFX"] else None,
        max_memory_mhz=float(clocks["MEM"]) if clocks["MEM"] else None,
        pcie_generation=of(pcie, "pcie_interface_version"),
        pcie_width=of(pcie, "max_pcie_width"),
        pci_bus_id=str(of_it("amdsmi_get_gpu_device_bdf") or ""),
        driver=str(of(of_it("amdsmi_get_gpu_driver_info"), "driver_version") or ""),
        power_limit_w=_watts(of(cap, "power_cap")),
        power_default_w=_watts(of(cap, "default_power_cap")),
        link_name="XGMI" if _XGMI in links.values() else "",
        links={other: 1 for other, kind in links.items() if kind == _XGMI},
    )


def _watts(microwatts: int | None) -> float | None:
    return microwatts / 1e6 if microwatts else None

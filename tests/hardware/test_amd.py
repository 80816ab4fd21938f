"""AMD's library as amdsmi 7.0.2 answers, by its own source; no AMD GPU was at hand to record one."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace

from cm4vllm.hardware import amd
from cm4vllm.hardware.accelerators import accelerator_keys
from cm4vllm.hardware.amd import amd_gpus, opened
from cm4vllm.hardware.used_gpus import UsedGpu


class AmdSmiException(Exception):
    pass


class Clock(IntEnum):
    GFX = 1
    MEM = 5


def library(**changes):
    def refuses(*_):
        raise AmdSmiException

    answers = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiClkType": Clock,
        "AmdSmiInitFlags": SimpleNamespace(INIT_AMD_GPUS=2),
        "amdsmi_init": lambda _: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["one", "two"],
        "amdsmi_get_gpu_device_uuid": lambda handle: f"uuid-{handle}",
        "amdsmi_get_gpu_device_bdf": lambda handle: "0000:05:00.0",
        "amdsmi_get_gpu_asic_info": lambda _: {"market_name": "AMD Instinct MI300X", "asic_serial": "0x0123456789AB"},
        "amdsmi_get_gpu_vram_info": lambda _: {"vram_type": 4, "vram_size": 196592, "vram_bit_width": "N/A"},
        "amdsmi_get_pcie_info": lambda _: {"pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5}},
        "amdsmi_get_power_cap_info": lambda _: {"power_cap": 750000000, "default_power_cap": 750000000},
        "amdsmi_get_clock_info": lambda _, kind: {"max_clk": {Clock.GFX: 2100, Clock.MEM: 1300}[kind]},
        "amdsmi_get_gpu_driver_info": lambda _: {"driver_version": "6.12.12"},
        "amdsmi_topo_get_link_type": lambda *_: {"hops": 1, "type": 2},
    }
    return SimpleNamespace(**{**answers, **{name: refuses for name, keep in changes.items() if not keep}})


def test_an_mi300x_is_described_as_its_driver_does():
    gpu, other = amd_gpus(library())
    assert (gpu.name, gpu.vendor, gpu.memory_bytes) == ("AMD Instinct MI300X", "AMD", 196592 * 2**20)
    assert (gpu.memory_type, gpu.memory_bus_bits, gpu.max_sm_mhz) == ("HBM3", None, 2100)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.power_limit_w, gpu.driver) == (5, 16, 750, "6.12.12")
    assert gpu.links == {other.uuid: 1}
    assert "0123456789AB" not in str(gpu)
    keys = accelerator_keys([UsedGpu(gpu), UsedGpu(other)])
    assert keys["accelerator_memory_capacity"] == "192 GB"
    assert keys["accelerator_interconnect"] == "XGMI"
    assert keys["accelerator_interconnect_topology"] == "direct links between all GPUs"


def test_what_amdsmi_refuses_is_left_open():
    refused = dict.fromkeys(
        (
            "amdsmi_get_gpu_vram_info",
            "amdsmi_get_pcie_info",
            "amdsmi_get_power_cap_info",
            "amdsmi_get_clock_info",
            "amdsmi_get_gpu_driver_info",
            "amdsmi_topo_get_link_type",
        ),
        False,
    )
    gpu = amd_gpus(library(**refused))[0]
    assert (gpu.pcie_width, gpu.power_limit_w, gpu.max_sm_mhz, gpu.links, gpu.driver) == (None, None, None, {}, "")


def test_a_driver_that_does_not_start_has_no_gpus(monkeypatch):
    monkeypatch.setattr(amd.Path, "exists", lambda _: True)
    monkeypatch.setitem(sys.modules, "amdsmi", library(amdsmi_init=False))
    with opened() as amdsmi:
        assert amdsmi is None
    calls = []
    driver = library()
    driver.amdsmi_init, driver.amdsmi_shut_down = calls.append, lambda: calls.append("shut down")
    monkeypatch.setitem(sys.modules, "amdsmi", driver)
    with opened() as amdsmi:
        assert amdsmi is driver and calls == [2]
    assert calls == [2, "shut down"]
    assert amd_gpus(library(amdsmi_get_processor_handles=False)) == []

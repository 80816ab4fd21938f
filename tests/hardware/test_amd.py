"""AMD's library as amdsmi 7.0.2 answers, by its own source; no AMD GPU was at hand to record one."""

import sys
from enum import IntEnum
from types import SimpleNamespace

import pytest

from cm4vllm.hardware.gpus.accelerators import accelerator_keys
from cm4vllm.hardware.gpus.gpu import UsedGpu, least_memory, visible_gpus
from cm4vllm.hardware.gpus.vendors import amd
from cm4vllm.hardware.machine_facts import gpu_lines


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
    gpu, other = amd.VENDOR.gpus(library())
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
        tuple(
            (
                "amdsmi_get_gpu_vram_info amdsmi_get_pcie_info amdsmi_get_power_cap_info "
                "amdsmi_get_clock_info amdsmi_get_gpu_driver_info amdsmi_topo_get_link_type"
            ).split()
        ),
        False,
    )
    gpu = amd.VENDOR.gpus(library(**refused))[0]
    assert (gpu.pcie_width, gpu.power_limit_w, gpu.max_sm_mhz, gpu.links, gpu.driver) == (None, None, None, {}, "")


def test_a_driver_that_does_not_start_has_no_gpus(monkeypatch):
    monkeypatch.setattr(amd.Path, "exists", lambda _: True)
    monkeypatch.setitem(sys.modules, "amdsmi", library(amdsmi_init=False))
    with amd.VENDOR.opened() as amdsmi:
        assert amdsmi is None
    calls = []
    driver = library()
    driver.amdsmi_init, driver.amdsmi_shut_down = calls.append, lambda: calls.append("shut down")
    monkeypatch.setitem(sys.modules, "amdsmi", driver)
    with amd.VENDOR.opened() as amdsmi:
        assert amdsmi is driver and calls == [2]
    assert calls == [2, "shut down"]
    assert amd.VENDOR.gpus(library(amdsmi_get_processor_handles=False)) == []


def parted(count, sizes, *, device="0000:05:00", modes=("CPX", "NPS4"), uuids=None):
    """Return the library for one MI300X whose partitions are listed as GPUs: all but the first have no name."""
    driver = library()
    driver.amdsmi_get_processor_handles = lambda: list(range(count))
    driver.amdsmi_get_gpu_device_bdf = lambda handle: f"{device}.{handle}"
    driver.amdsmi_get_gpu_device_uuid = lambda handle: (uuids or (lambda each: f"uuid-{each}"))(handle)
    driver.amdsmi_get_gpu_asic_info = lambda handle: {"market_name": "N/A" if handle else "AMD Instinct MI300X"}
    driver.amdsmi_get_gpu_vram_info = lambda handle: {"vram_type": 4, "vram_size": sizes[handle]}
    driver.amdsmi_get_gpu_compute_partition = lambda handle: "N/A" if handle else modes[0]
    driver.amdsmi_get_gpu_memory_partition = lambda handle: "N/A" if handle else modes[1]
    return driver


@pytest.mark.parametrize(
    ("count", "sizes", "modes", "line"),
    [
        (8, [196592, *["N/A"] * 7], ("CPX", "NPS4"), "8 partitions (CPX/NPS4), each of 24 GiB"),
        (2, [196592, 98296], ("DPX", "NPS1"), "2 partitions (DPX/NPS1), each of 95.99 GiB"),
        (8, [24574] * 8, ("CPX", "NPS1"), "8 partitions (CPX/NPS1), each of 24 GiB"),
        (4, [196592, 0, 0, 0], ("QPX", "N/A"), "4 partitions (QPX), each of 48 GiB"),
    ],
)
def test_partitions_of_one_gpu_are_one_gpu(count, sizes, modes, line):
    (gpu,) = amd.VENDOR.gpus(parted(count, sizes, modes=modes))
    assert (gpu.name, gpu.memory_bytes, len(gpu.partitions)) == ("AMD Instinct MI300X", 196592 * 2**20, count)
    lines = gpu_lines([gpu])
    assert (
        lines[0] == "1x AMD Instinct MI300X"
        and line in lines
        and "192 GB HBM3 as marketed, 191.98 GiB as reported" in lines
    )
    used = visible_gpus([gpu], {})
    assert len({each.uuid for each in used}) == count
    keys = accelerator_keys(used)
    assert (keys["accelerators_per_node"], keys["accelerator_memory_capacity"]) == ("1", "192 GB")
    assert keys["accelerator_model_name"] == f"AMD Instinct MI300X (partitions {count}x {gpu.partitions[0].profile})"
    assert least_memory(used)[0] == 196592 * 2**20 // count


def two_parted(each, modes):
    """Return the library for two MI300X, each of whose partitions is listed: the first of a card has its name."""
    driver = parted(2 * each, [196592 if handle % each == 0 else "N/A" for handle in range(2 * each)], modes=modes)
    driver.amdsmi_get_gpu_device_bdf = lambda handle: f"0000:{5 + handle // each:02x}:00.{handle % each}"
    for name in ("asic_info", "compute_partition", "memory_partition"):
        answer = getattr(parted(each, [], modes=modes), f"amdsmi_get_gpu_{name}")
        setattr(driver, f"amdsmi_get_gpu_{name}", lambda handle, answer=answer: answer(handle % each))
    return driver


@pytest.mark.parametrize(("each", "modes"), [(8, ("CPX", "NPS4")), (2, ("DPX", "NPS1")), (4, ("QPX", "NPS1"))])
def test_partitions_of_two_gpus_are_two_gpus(each, modes):
    gpus = amd.VENDOR.gpus(two_parted(each, modes))
    assert [len(gpu.partitions) for gpu in gpus] == [each, each]
    assert gpu_lines(gpus)[0] == "2x AMD Instinct MI300X"
    used = visible_gpus(gpus, {})
    assert len({part.uuid for part in used}) == 2 * each
    assert accelerator_keys(used)["accelerators_per_node"] == "2"
    assert least_memory(used)[0] == 196592 * 2**20 // each


def test_an_answer_of_another_form_is_no_error():
    driver = library()
    driver.amdsmi_get_gpu_vram_info = lambda _: {"vram_type": "N/A", "vram_size": {"value": 196592, "unit": "MB"}}
    driver.amdsmi_get_pcie_info = lambda _: "N/A"
    driver.amdsmi_get_power_cap_info = lambda _: {"power_cap": "N/A"}
    gpu = amd.VENDOR.gpus(driver)[0]
    assert (gpu.memory_bytes, gpu.pcie_width, gpu.power_limit_w) == (196592 * 2**20, None, None)
    driver = parted(8, [196592, *["N/A"] * 7])
    driver.amdsmi_get_gpu_device_bdf = lambda _: "0000:05:00.0"  # the partitions are known by their missing names
    assert [len(gpu.partitions) for gpu in amd.VENDOR.gpus(driver)] == [8]

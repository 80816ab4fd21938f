import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import CmError
from cm4vllm.hardware.gpus.accelerators import interconnect
from cm4vllm.hardware.gpus.gpu import given_gpus, visible_gpus
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.hardware.machine_facts import gpu_lines
from gpu_machines import gpus as machine
from gpu_replay import Replay


def gpus(name):
    return nvml.VENDOR.gpus(Replay(json.loads((Path(__file__).with_name("recordings") / f"{name}.json").read_text())))


UUID = "GPU-00000000-0000-0000-0000-00000000000"


@pytest.mark.parametrize(
    ("visible", "used"),
    [
        (None, "0123"),
        ("0,2", "02"),
        ("3,1", "31"),
        (" 1 , 2 ", "12"),
        (UUID + "2", "2"),
        (f"{UUID}3,0", "3"),
        (f"2,{UUID}3", "2"),
        (f"{UUID}3,{UUID}1", "31"),
        (f"{UUID}3,{UUID}3", ""),
        ("1gpu,2 of these", "12"),
        ("0,,1", "0"),
        ("²", ""),
        ("", ""),
        ("-1", ""),
        ("0,-1,2", "0"),
        ("0,9,1", "0"),
        ("1,1", ""),
        ("GPU-0", ""),
        ("NoDevFiles", ""),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible, used):
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert "".join(gpu.uuid[-1] for gpu in visible_gpus(gpus("l40s-x4"), env)) == used


def test_a_program_sees_one_part_of_mig_and_nothing_beside_it():
    (split,) = gpus("h100-mig-3g40gb-x2")
    first, second = (part.uuid for part in split.mig_devices)
    assert second == "MIG-00000000-0000-0000-0000-000000000101"
    assert [used.uuid for used in visible_gpus([split, *gpus("h200-passthrough")], {})] == [first]
    both = {"CUDA_VISIBLE_DEVICES": f"{second},{first}"}
    assert [used.uuid for used in visible_gpus([split], both)] == [second]
    assert [given.word for given in given_gpus([split], both)] == [second, first]
    old = f"MIG-{split.uuid}/1/0"  # the form of older drivers
    older = replace(split, mig_devices=[replace(split.mig_devices[0], uuid=old)])
    assert [used.uuid for used in visible_gpus([older], {"CUDA_VISIBLE_DEVICES": old})] == [old]


@pytest.mark.parametrize(
    ("env", "used"),
    [
        ({"HIP_VISIBLE_DEVICES": "4,5"}, "45"),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, "5"),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1,0"}, "54"),
        ({"HIP_VISIBLE_DEVICES": "0,0,9,1"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "0,3,4,7", "HIP_VISIBLE_DEVICES": "0,1"}, "03"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ""),
        ({"HIP_VISIBLE_DEVICES": "1x,2"}, ""),
        ({"ROCR_VISIBLE_DEVICES": ""}, ""),
        ({"HIP_VISIBLE_DEVICES": ""}, "01234567"),
    ],
)
def test_amds_variables_are_read_one_after_the_other(env, used):
    assert "".join(gpu.uuid[-1] for gpu in visible_gpus(machine(8, "AMD"), env)) == used


def test_what_does_not_say_which_gpus_are_meant_is_refused():
    with pytest.raises(CmError, match="ROCR_VISIBLE_DEVICES=GPU-dc91284879207f2b"):
        visible_gpus(machine(2, "AMD"), {"ROCR_VISIBLE_DEVICES": "GPU-dc91284879207f2b"})
    mixed, numbered = [gpus("l40s-x4")[0], gpus("t4-passthrough")[0]], {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(CmError, match="it is not known which GPUs") as refused:
        visible_gpus(mixed, numbered)
    assert "PCI_BUS_ID" in refused.value.remedy
    by_bus = visible_gpus(mixed, {**numbered, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [used.gpu.name for used in by_bus] == ["Tesla T4"]


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("h100-sxm-x4", 4, ("18x NVLink 4, 900 GB/s", "NVSwitch: every GPU reaches every other")),
        ("h100-sxm-x4", 1, ("N/A", "N/A")),
        ("a100-pcie-bridged-x2", 2, ("12x NVLink 3, 600 GB/s", "direct links between all GPUs")),
        ("l40s-x4", 2, ("PCIe Gen4 x16", "PCIe: through one host bridge")),
        ("l40s-x4", 4, ("PCIe Gen4 x16", "PCIe: across NUMA nodes, through the processors' interconnect")),
    ],
)
def test_how_gpus_reach_each_other_is_worded(name, count, words):
    assert interconnect(gpus(name)[:count]) == words


def test_links_between_pairs_are_told_as_such_and_what_is_not_known_is_left_open():
    first, other = gpus("a100-pcie-bridged-x2")
    more = [replace(first, uuid=own, links={peer: 12}) for own, peer in (("GPU-c", "GPU-d"), ("GPU-d", "GPU-c"))]
    four = [first, other, *more]
    assert interconnect(four)[1] == "direct links between 2 of 6 pairs of GPUs, the others over PCIe"
    assert interconnect([first, four[2]])[1] == "no direct links among the GPUs that serve"
    assert interconnect([replace(gpu, paths={}) for gpu in gpus("l40s-x4")[:2]]) == ("", "")


def test_alike_gpus_are_summed_up_in_a_few_lines():
    assert gpu_lines(gpus("l40s-x4")) == [
        "4x NVIDIA L40S",
        "48 GB GDDR6 as marketed, 44.99 GiB as reported",
        "up to 2.52 GHz, memory 9 GHz, PCIe Gen4 x16",
        "ECC on, power limit 350 W",
        "driver 550.163.01, CUDA up to 12.4",
        "among them: PCIe Gen4 x16, PCIe: across NUMA nodes, through the processors' interconnect",
    ]

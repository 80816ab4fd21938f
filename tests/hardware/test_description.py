from __future__ import annotations

import dataclasses
import getpass
import json
import re
import socket

import pytest
from msgspec.structs import replace

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.description import KEYS, NOT_STATED, SystemAsked, describe_system, folder_name, not_stated
from cm4vllm.hardware.machine import detect_machine
from cm4vllm.hardware.records import GpuFacts

ASKED = SystemAsked(submitter="Example", division="open", system_type="datacenter", vllm="0.32.0", accelerators=0,
                    packages={"torch": "2.13.0+cpu", "python": "3.11.7", "pip": "25.0"})
H200 = GpuFacts(name="NVIDIA H200", uuid="GPU-serial", memory_bytes=150754820096, max_sm_mhz=1980, pcie_generation=5,
                pcie_width=16, driver="570.86.15")


@pytest.fixture
def machine(server):
    return detect_machine(server)


def asked(**changes):
    return dataclasses.replace(ASKED, **changes)


def test_all_keys_are_there_and_all_are_text(machine):
    description = describe_system(machine, ASKED)
    assert tuple(description) == KEYS
    assert len(KEYS) == 35
    assert all(isinstance(value, str) for value in description.values())


def test_a_cpu_system_has_the_text_0_accelerators(machine):
    description = describe_system(machine, ASKED)
    assert description["accelerators_per_node"] == "0"
    assert {description[key] for key in KEYS if key.startswith("accelerator_")} == {"N/A"}


def test_sizes_and_frequencies_are_written_as_people_do(machine):
    description = describe_system(machine, ASKED)
    assert description["host_memory_capacity"] == "64 GB"
    assert description["host_storage_capacity"] == "2.92 TB"
    assert description["host_processor_frequency"] == "3.8 GHz"
    assert description["host_processor_core_count"] == "4"
    assert description["host_processors_per_node"] == "2"


def test_versions_are_those_the_server_reports(machine):
    description = describe_system(machine, ASKED)
    assert description["framework"] == "vLLM 0.32.0"
    assert description["other_software_stack"].startswith("Python 3.11.7, torch 2.13.0+cpu, Linux ")
    assert "pip" not in description["other_software_stack"]


def test_what_is_not_known_is_not_made_up(machine):
    description = describe_system(machine, ASKED)
    assert description["cooling"] == NOT_STATED
    assert description["status"] == "rdi"
    assert not_stated(description) == ["host_processor_interconnect", "host_memory_configuration", "host_networking",
                                       "host_networking_topology", "host_network_card_count", "cooling"]


def test_what_is_stated_goes_before_what_is_detected(machine):
    description = describe_system(machine, asked(stated={"cooling": "air", "host_memory_capacity": "63 GB"}))
    assert description["cooling"] == "air"
    assert description["host_memory_capacity"] == "63 GB"
    assert "cooling" not in not_stated(description)


def test_a_virtual_machine_is_called_one(machine):
    virtual = replace(machine, host=replace(machine.host, virtualised=True))
    description = describe_system(virtual, asked(stated={"hw_notes": "Rented."}))
    assert description["hw_notes"].startswith("Rented. Virtual machine: ")
    assert "16 virtual CPUs" in description["hw_notes"]


def test_gpus_in_use_are_described_and_the_idle_ones_remarked(machine):
    description = describe_system(replace(machine, gpus=[H200] * 8), asked(accelerators=1))
    assert description["accelerators_per_node"] == "1"
    assert description["accelerator_model_name"] == "NVIDIA H200"
    assert description["accelerator_memory_capacity"] == "140 GB"
    assert description["accelerator_frequency"] == "1.98 GHz"
    assert description["accelerator_host_interconnect"] == "PCIe Gen5 x16"
    assert description["accelerator_interconnect"] == "N/A"
    assert description["hw_notes"] == "The machine has 8 GPUs, of which the server uses 1."
    assert "NVIDIA driver 570.86.15" in description["other_software_stack"]
    assert folder_name(description) == "1xNVIDIA-H200_vLLM-0.32.0"


def test_between_several_gpus_the_interconnect_has_to_be_stated(machine):
    description = describe_system(replace(machine, gpus=[H200] * 8), asked(accelerators=None))
    assert description["accelerators_per_node"] == "8"
    assert "accelerator_interconnect" in not_stated(description)


def test_gpus_that_do_not_serve_are_not_claimed(machine):
    description = describe_system(replace(machine, gpus=[H200]), ASKED)
    assert description["accelerators_per_node"] == "0"
    assert "are not used" in description["hw_notes"]


def test_a_server_elsewhere_is_never_described_by_this_machine(machine):
    stated = {"number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": "NVIDIA H200"}
    description = describe_system(machine, asked(here=False, stated=stated))
    assert description["host_processor_model_name"] == NOT_STATED
    assert description["host_memory_capacity"] == NOT_STATED
    assert description["operating_system"] == NOT_STATED
    assert folder_name(description) == "8xNVIDIA-H200_vLLM-0.32.0"


def test_a_result_of_a_server_elsewhere_needs_its_numbers_stated(machine):
    with pytest.raises(UsageError, match="accelerators_per_node") as refused:
        describe_system(machine, asked(here=False))
    assert "--system_file" in refused.value.remedy


def test_a_rehearsal_of_a_server_elsewhere_says_that_its_numbers_are_not_stated(machine):
    description = describe_system(machine, asked(here=False, rehearsal=True))
    assert description["hw_notes"].startswith(REHEARSAL_NOTICE)
    assert "accelerators_per_node is not stated" in description["hw_notes"]


def test_a_rehearsals_remarks_say_that_it_is_one(machine):
    description = describe_system(machine, asked(rehearsal=True))
    assert description["hw_notes"] == description["sw_notes"] == REHEARSAL_NOTICE


@pytest.mark.parametrize(("name", "folder"), [
    ("My System (new)", "My-System-new"),
    ("../../etc", "etc"),
    ("8xH100+NVL", "8xH100-NVL"),
])  # fmt: skip
def test_the_folders_name_has_safe_characters_only(machine, name, folder):
    assert folder_name(describe_system(machine, asked(stated={"system_name": name}))) == folder


def test_an_intel_processor_gives_a_short_name(machine):
    assert folder_name(describe_system(machine, ASKED)) == "2xIntel-Xeon-Platinum-8480_vLLM-0.32.0"


def test_nothing_private_of_this_machine_is_in_its_description():
    facts = detect_machine()
    text = json.dumps(describe_system(replace(facts, gpus=[H200]), asked(accelerators=1)))
    for word in (socket.gethostname(), getpass.getuser(), "GPU-serial"):
        assert not re.search(rf"\b{re.escape(word)}\b", text), word
    assert not re.search(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", text)

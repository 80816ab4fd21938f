import dataclasses
import getpass
import json
import re
import socket

import pytest
import yaml
from msgspec.structs import replace

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.hardware.system_file import read_system_file, template
from cm4vllm.records.described_system import (
    KEYS,
    NODES_DIFFER,
    NOT_STATED,
    STATUS_NOT_STATED,
    folder_name,
    hints,
    not_stated,
)
from cm4vllm.records.known_hardware import contradictions
from cm4vllm.records.machine import GpuFacts, MemoryModule, MigFacts, NetworkCard

ASKED = SystemAsked(
    submitter="Example",
    division="open",
    system_type="datacenter",
    vllm="0.32.0",
    used=(),
    packages={"torch": "2.13.0+cpu", "python": "3.11.7", "pip": "25.0"},
)
H200 = GpuFacts(
    name="NVIDIA H200",
    uuid="GPU-0",
    memory_bytes=150754820096,
    max_sm_mhz=1980,
    pcie_generation=5,
    pcie_width=16,
    driver="570.86.15",
    ecc=True,
    power_limit_w=600,
    power_default_w=700,
)
#: Of the fixture's processor.
UNCHECKED = (
    "Interconnect of the Intel Xeon Platinum 8480+: after Intel ARK, Intel Xeon Platinum 8480+ processor, not checked."
)
EIGHT = [replace(H200, uuid=f"GPU-{n}", links={"switch": 18}, link_name="NVLink") for n in range(8)]


@pytest.fixture
def machine(server):
    """The server with as many cores as its processors are sold with."""
    detected = detect_machine(server)
    return replace(detected, cpu=replace(detected.cpu, cores_per_socket=56))


def asked(**changes):
    return dataclasses.replace(ASKED, **changes)


def test_all_keys_are_text_as_people_write_it(machine):
    description = describe_system(machine, ASKED)
    assert tuple(description) == KEYS and len(KEYS) == 35
    assert all(isinstance(value, str) for value in description.values())
    assert description["accelerators_per_node"] == "0"
    assert {description[key] for key in KEYS if key.startswith("accelerator_")} == {"N/A"}
    written = {"memory_capacity": "64 GB", "storage_capacity": "2.92 TB", "processor_frequency": "3.8 GHz"}
    written |= {"processor_core_count": "56", "processors_per_node": "2"}
    assert {name: description[f"host_{name}"] for name in written} == written
    assert description["framework"] == "vLLM 0.32.0"
    assert description["other_software_stack"].startswith("Python 3.11.7, torch 2.13.0+cpu, Linux ")
    assert "pip" not in description["other_software_stack"]
    assert folder_name(description) == "2xIntel-Xeon-Platinum-8480_vLLM-0.32.0"


def test_the_container_of_a_server_is_named_in_the_remarks_on_software(machine):
    words = "the container image vllm:1 (sha256:12) by podman 4.3.1"
    assert f"vLLM was run from {words}." in describe_system(machine, asked(container=words))["sw_notes"]
    assert "container" not in describe_system(machine, ASKED)["sw_notes"]


def test_a_server_over_nodes_that_are_alike_is_described_once(machine):
    description = describe_system(machine, asked(others=[machine]))
    assert description["number_of_nodes"] == "2"
    assert description["system_name"].startswith("2-nodes-of-2x")
    assert "Network cards of a node: " in description["hw_notes"]
    assert NODES_DIFFER not in description["hw_notes"]
    single = describe_system(machine, ASKED)
    same = set(KEYS) - {"number_of_nodes", "system_name", "hw_notes"}
    assert {key: description[key] for key in same} == {key: single[key] for key in same}


def test_nodes_that_differ_are_named_with_their_values(machine):
    gpus, other = (
        replace(machine, gpus=EIGHT),
        replace(machine, gpus=[replace(gpu, name="NVIDIA H100") for gpu in EIGHT]),
    )
    other = replace(other, memory=replace(other.memory, total_bytes=2 * other.memory.total_bytes))
    description = describe_system(gpus, asked(used=[gpu.uuid for gpu in EIGHT], others=[other]))
    notes = description["hw_notes"]
    assert f"{NODES_DIFFER} host_memory_capacity: 64 GB; 128 GB." in notes
    assert f"{NODES_DIFFER} accelerator_model_name: NVIDIA H200; NVIDIA H100." in notes
    assert description["accelerators_per_node"] == "8"


def test_what_is_not_known_is_not_made_up(machine):
    description = describe_system(machine, ASKED)
    assert description["cooling"] == NOT_STATED
    assert description["status"] == "rdi"
    assert description["host_processor_interconnect"] == "UPI"  # of the table: a Xeon Platinum 8480+ has it
    assert (
        not_stated(description)
        == (
            "status host_memory_configuration host_networking host_networking_topology host_network_card_count cooling"
        ).split()
    )


def test_an_availability_that_nobody_stated_is_said_to_be_none(machine):
    description = describe_system(machine, ASKED)
    assert description["status"] == "rdi"
    assert description["sw_notes"] == STATUS_NOT_STATED
    stated = describe_system(machine, asked(stated={"status": "rdi", "sw_notes": "Tuned."}))
    assert stated["sw_notes"] == "Tuned."
    assert "status" not in not_stated(stated)


def test_what_is_stated_goes_before_what_is_detected(machine):
    description = describe_system(machine, asked(stated={"cooling": "air", "host_memory_capacity": "63 GB"}))
    assert description["cooling"] == "air"
    assert description["host_memory_capacity"] == "63 GB"
    assert "cooling" not in not_stated(description)


def test_modules_and_cards_that_are_shown_are_described(machine):
    shown = replace(
        machine,
        network=[NetworkCard(kind="Ethernet", driver="ice"), NetworkCard(kind="InfiniBand")],
        memory=replace(machine.memory, modules=[MemoryModule(size_bytes=2**36, kind="DDR5", mega_transfers=4800)] * 16),
    )
    description = describe_system(shown, ASKED)
    assert description["host_memory_configuration"] == "16x 64 GB DDR5-4800"
    assert description["host_network_card_count"] == "2"
    assert description["host_networking"] == NOT_STATED


@pytest.mark.parametrize(
    ("virtual", "cores", "said"),
    [
        (False, 20, "20"),
        (False, 72, "72"),
        (True, 20, "20 virtual cores (20 virtual CPUs in all)"),
        (True, 16, "16 virtual cores (16 virtual CPUs in all)"),
    ],
)
def test_a_machine_with_a_gb10_is_described_by_its_own_cores(machine, virtual, cores, said):
    gb10 = replace(
        H200, name="NVIDIA GB10", memory_bytes=None, shares_host_memory=True, unanswered={"memory": "Not Supported"}
    )
    cpu = replace(
        machine.cpu,
        model_name="NVIDIA Grace",
        sockets=1,
        cores_per_socket=cores,
        threads_per_core=1,
        logical_cpus=cores,
    )
    facts = replace(machine, host=replace(machine.host, virtualised=virtual), cpu=cpu, gpus=[gb10])
    description = describe_system(facts, asked(used=("GPU-0",)))
    assert description["host_processor_core_count"] == said
    assert description["accelerator_model_name"] == "NVIDIA GB10"
    assert "Memory of the NVIDIA GB10: not detected, shared with the host." in " ".join(map(str, description.values()))
    assert not [str(hint) for hint in contradictions(description) if "core_count" in hint.key]


def test_a_virtual_machine_is_called_one_and_its_cores_virtual(machine):
    virtual = replace(
        machine,
        host=replace(machine.host, virtualised=True),
        cpu=replace(machine.cpu, model_name="AMD EPYC", cores_per_socket=4),
        network=[NetworkCard(kind="virtual")],
    )
    description = describe_system(virtual, asked(stated={"hw_notes": "Rented."}))
    assert description["hw_notes"].startswith("Rented. Virtual machine: it is given 16 virtual CPUs")
    assert description["host_processor_core_count"] == "4 virtual cores (16 virtual CPUs in all)"
    assert description["host_processor_interconnect"] == ""
    assert description["host_network_card_count"] == NOT_STATED


def test_a_virtual_machines_processor_that_is_known_has_the_cores_it_is_sold_with(machine):
    crusoe = replace(machine.cpu, model_name="AMD EPYC 9254 24-Core Processor", sockets=10, cores_per_socket=4)
    virtual = replace(machine, host=replace(machine.host, virtualised=True), cpu=replace(crusoe, max_mhz=None))
    description = describe_system(virtual, ASKED)
    assert description["host_processor_core_count"] == "24"
    assert description["host_processor_frequency"] == "2.9 GHz, up to 4.15 GHz"
    assert "shown as 10 x 4 cores" in description["hw_notes"]
    # No published file states the most that a machine holds: its owner is asked, and nothing of it is published.
    assert "host_processors_per_node" in hints(description)[0]
    assert "against the table" not in description["hw_notes"]
    assert (
        "Frequencies of the AMD EPYC 9254: after AMD EPYC 9254 product page (amd.com), not checked."
        in (description["hw_notes"])
    )


def test_what_is_detected_against_a_published_system_is_remarked(machine):
    fewer = replace(machine, cpu=replace(machine.cpu, model_name="AMD EPYC 9254 24-Core Processor", cores_per_socket=4))
    description = describe_system(fewer, ASKED)
    assert description["host_processor_core_count"] == "4"
    assert "Detected against the table of known hardware: host_processor_core_count" in description["hw_notes"]
    assert hints(description) == []


def test_what_the_firmware_calls_the_machine_is_remarked(machine):
    named = replace(machine, host=replace(machine.host, product="Supermicro SYS-821GE-TNHR"))
    assert describe_system(named, ASKED)["hw_notes"].startswith("Machine: Supermicro SYS-821GE-TNHR.")


def test_a_limit_of_the_container_is_remarked(machine):
    limited = replace(machine, memory=replace(machine.memory, limit_bytes=2**34))
    assert "may use 16 GB" in describe_system(limited, ASKED)["hw_notes"]


def test_gpus_in_use_are_described_and_the_idle_ones_remarked(machine):
    description = describe_system(replace(machine, gpus=EIGHT), asked(used=["GPU-3"]))
    assert description["accelerators_per_node"] == "1"
    assert description["accelerator_model_name"] == "NVIDIA H200"
    assert description["accelerator_memory_capacity"] == "141 GB"
    assert description["accelerator_memory_configuration"] == "HBM3e"
    assert description["accelerator_frequency"] == "1.98 GHz"
    assert description["accelerator_host_interconnect"] == "PCIe Gen5 x16"
    assert description["accelerator_interconnect"] == "N/A"
    assert description["hw_notes"] == (
        f"The machine has 8 GPUs, of which the server uses 1. {UNCHECKED} GPU: ECC on; power limit 600 W (default "
        "700 W); form factor SXM5. Form factor of the NVIDIA H200: after NVIDIA H200 Tensor Core GPU data sheet, not "
        "checked."
    )
    assert "NVIDIA driver 570.86.15" in description["other_software_stack"]
    assert folder_name(description) == "1xNVIDIA-H200_vLLM-0.32.0"


def test_between_several_gpus_stands_what_the_driver_shows(machine):
    description = describe_system(replace(machine, gpus=EIGHT), asked(used=[gpu.uuid for gpu in EIGHT]))
    assert description["accelerators_per_node"] == "8"
    assert description["accelerator_interconnect"] == "18x NVLink 4, 900 GB/s"
    assert description["accelerator_interconnect_topology"] == "NVSwitch: every GPU reaches every other"


def test_which_gpus_serve_is_remarked_where_it_is_not_known(machine):
    assert "is not known" in describe_system(replace(machine, gpus=EIGHT), asked(used=None))["hw_notes"]


def test_mig_parts_are_described_as_parts(machine):
    parts = [MigFacts(uuid=f"MIG-{n}", profile="3g.71gb", memory_bytes=71 * 2**30) for n in range(2)]
    split = replace(H200, mig=True, mig_devices=parts)
    description = describe_system(replace(machine, gpus=[split]), asked(used=["MIG-1"]))
    assert description["accelerators_per_node"] == "1"
    assert description["accelerator_model_name"] == "NVIDIA H200 (MIG 1x 3g.71gb)"
    assert description["accelerator_memory_capacity"] == "71 GB"


def test_memory_that_is_far_from_what_is_sold_is_remarked(machine):
    half = replace(H200, memory_bytes=70 * 2**30)
    description = describe_system(replace(machine, gpus=[half]), asked(used=["GPU-0"]))
    assert description["accelerator_memory_capacity"] == "70 GB"
    assert "reports 70.0 GiB of the 141 GB" in description["hw_notes"]


def test_a_statement_against_the_table_is_refused_with_its_source(machine):
    with pytest.raises(UsageError, match=r"'HBM2', but the NVIDIA H200 has HBM3e \(NVIDIA H200") as refused:
        describe_system(
            replace(machine, gpus=[H200]), asked(used=["GPU-0"], stated={"accelerator_memory_configuration": "HBM2"})
        )
    assert "confirmed: [accelerator_memory_configuration]" in refused.value.remedy


def test_a_statement_that_its_owner_confirms_is_published_with_a_remark(machine):
    description = describe_system(
        replace(machine, gpus=[H200]),
        asked(
            used=["GPU-0"],
            stated={"accelerator_memory_configuration": "HBM2"},
            confirmed=["accelerator_memory_configuration"],
        ),
    )
    assert description["accelerator_memory_configuration"] == "HBM2"
    assert "against the table of known hardware: accelerator_memory_configuration" in description["hw_notes"]


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
    assert description["hw_notes"] == f"{REHEARSAL_NOTICE} {UNCHECKED}"
    assert description["sw_notes"].startswith(REHEARSAL_NOTICE)


@pytest.mark.parametrize(
    ("name", "folder"), [("My System (new)", "My-System-new"), ("../../etc", "etc"), ("8xH100+NVL", "8xH100-NVL")]
)
def test_the_folders_name_has_safe_characters_only(machine, name, folder):
    assert folder_name(describe_system(machine, asked(stated={"system_name": name}))) == folder


def test_nothing_private_of_this_machine_is_in_its_description():
    facts = detect_machine()
    text = json.dumps(describe_system(replace(facts, gpus=[H200]), asked(used=[H200.uuid])))
    for word in (socket.gethostname(), getpass.getuser(), H200.uuid):
        assert not re.search(rf"\b{re.escape(word)}\b", text), word
    assert not re.search(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", text)


# --- system_file


ASKED_OF_FILE = SystemAsked(submitter="Example", division="open", system_type="datacenter", vllm="0.32.0", used=())


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "system.yaml"
        path.write_text(text)
        return path

    return write


def test_a_template_asks_for_everything_that_is_not_stated(server, written):
    description = describe_system(detect_machine(server), ASKED_OF_FILE)
    asked = yaml.safe_load(template(description))
    assert set(not_stated(description)) <= set(asked)
    assert "submitter" not in asked
    assert "host_memory_capacity" not in asked


def test_an_untouched_template_changes_nothing(server, written):
    machine = detect_machine(server)
    description = describe_system(machine, ASKED_OF_FILE)
    stated = read_system_file(written(template(description))).stated
    assert describe_system(machine, SystemAsked(**{**vars(ASKED_OF_FILE), "stated": stated})) == description


def test_a_template_with_all_lines_uncommented_is_read(server, written):
    description = describe_system(detect_machine(server), ASKED_OF_FILE)
    lines = [
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in template(description).splitlines()
    ]
    stated = read_system_file(written("\n".join(lines))).stated
    assert {key: description[key] for key in stated} == stated
    assert "host_processor_caches" in stated


def test_counts_and_texts_are_read(written):
    path = written('number_of_nodes: 2\nhost_network_card_count: "4"\ncooling: liquid\nstatus: Available\nhw_notes:\n')
    assert read_system_file(path).stated == {
        "number_of_nodes": "2",
        "host_network_card_count": "4",
        "cooling": "liquid",
        "status": "available",
    }
    path = written("host_processor_core_count: 56\nconfirmed: [host_processor_core_count]\n")
    assert read_system_file(path).confirmed == ("host_processor_core_count",)
    assert read_system_file(written("")).stated == {}
    # No quotation mark reaches the checkers' CSV.
    assert read_system_file(written("hw_notes: 'the \"fast\" one'")).stated == {"hw_notes": "the 'fast' one"}
    with pytest.raises(UsageError, match="cannot read the system file"):
        read_system_file(path.with_name("none.yaml"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host_memory_configuration: undefined", "leave it empty"),
        ("cooling: TBD", "leave it empty"),
        ('cooling: "?"', "leave it empty"),
        ("confirmed: coling", "it lists keys"),
        ("confirmed: [coling]", "did you mean 'cooling'"),
        ("coling: air", "did you mean 'cooling'"),
        ("status: soon", "available, preview, rdi"),
        ("submitter: Me", "remove it from the file"),
        ("number_of_nodes: two", "whole number"),
        ("number_of_nodes: true", "whole number"),
        ("accelerator_frequency: 1980", "needs its unit"),
        ("cooling: [air]", "it is text"),
        ("hw_notes: see 10.1.2.3", "leave addresses out"),
        ("hw_notes: card 02:42:ac:11:00:02", "leave addresses out"),
    ],
)
def test_a_wrong_line_is_an_error_that_says_what_is_right(written, text, told):
    with pytest.raises(UsageError) as refused:
        read_system_file(written(text))
    assert told in refused.value.remedy


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "a: b: c"])
def test_what_is_not_a_list_of_keys_is_an_error(written, text):
    with pytest.raises(UsageError, match="is not"):
        read_system_file(written(text))

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


def described(machine, **changes):
    return describe_system(machine, dataclasses.replace(ASKED, **changes))


def hardware(machine, **changes):
    """Return a machine with other facts: those of its processor, memory and host by `cpu=`, `memory=`, `host=`."""
    changed = {name: replace(getattr(machine, name), **new) for name, new in changes.items() if isinstance(new, dict)}
    return replace(machine, **{**changes, **changed})


def test_all_keys_are_text_as_people_write_it(machine):
    description = described(machine)
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


def test_what_is_stated_goes_before_what_is_detected(machine):
    description = described(machine)
    assert (description["status"], description["sw_notes"]) == ("rdi", STATUS_NOT_STATED)
    stated = {"cooling": "air", "host_memory_capacity": "63 GB", "status": "rdi", "sw_notes": "Tuned."}
    description = described(machine, stated=stated)
    assert {key: description[key] for key in stated} == stated
    assert not {"cooling", "status"} & set(not_stated(description))


def test_a_server_over_nodes_that_are_alike_is_described_once(machine):
    description = described(machine, others=[machine])
    assert description["number_of_nodes"] == "2"
    assert description["system_name"].startswith("2-nodes-of-2x")
    assert "Network cards of a node: " in description["hw_notes"]
    assert NODES_DIFFER not in description["hw_notes"]
    single = described(machine)
    same = set(KEYS) - {"number_of_nodes", "system_name", "hw_notes"}
    assert {key: description[key] for key in same} == {key: single[key] for key in same}


def test_nodes_that_differ_are_named_with_their_values(machine):
    gpus, other = (
        replace(machine, gpus=EIGHT),
        replace(machine, gpus=[replace(gpu, name="NVIDIA H100") for gpu in EIGHT]),
    )
    other = replace(other, memory=replace(other.memory, total_bytes=2 * other.memory.total_bytes))
    description = described(gpus, used=[gpu.uuid for gpu in EIGHT], others=[other])
    notes = description["hw_notes"]
    assert f"{NODES_DIFFER} host_memory_capacity: 64 GB; 128 GB." in notes
    assert f"{NODES_DIFFER} accelerator_model_name: NVIDIA H200; NVIDIA H100." in notes
    assert description["accelerators_per_node"] == "8"


def test_what_is_not_known_is_not_made_up(machine):
    description = described(machine)
    assert description["cooling"] == NOT_STATED
    assert description["status"] == "rdi"
    assert description["host_processor_interconnect"] == "UPI"  # of the table: a Xeon Platinum 8480+ has it
    assert (
        not_stated(description)
        == (
            "status host_memory_configuration host_networking host_networking_topology host_network_card_count cooling"
        ).split()
    )


def test_modules_and_cards_that_are_shown_are_described(machine):
    shown = replace(
        machine,
        network=[NetworkCard(kind="Ethernet", driver="ice"), NetworkCard(kind="InfiniBand")],
        memory=replace(machine.memory, modules=[MemoryModule(size_bytes=2**36, kind="DDR5", mega_transfers=4800)] * 16),
    )
    description = described(shown)
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
    cpu = {"model_name": "NVIDIA Grace", "sockets": 1, "cores_per_socket": cores, "threads_per_core": 1}
    facts = hardware(machine, host={"virtualised": virtual}, cpu={**cpu, "logical_cpus": cores}, gpus=[gb10])
    description = described(facts, used=("GPU-0",))
    assert description["host_processor_core_count"] == said
    assert description["accelerator_model_name"] == "NVIDIA GB10"
    assert "Memory of the NVIDIA GB10: not detected, shared with the host." in " ".join(map(str, description.values()))
    assert not [str(hint) for hint in contradictions(description) if "core_count" in hint.key]


def test_a_virtual_machine_is_called_one_and_its_cores_virtual(machine):
    virtual = hardware(
        machine,
        host={"virtualised": True},
        cpu={"model_name": "AMD EPYC", "cores_per_socket": 4},
        network=[NetworkCard(kind="virtual")],
    )
    description = described(virtual, stated={"hw_notes": "Rented."})
    assert description["hw_notes"].startswith("Rented. Virtual machine: it is given 16 virtual CPUs")
    assert description["host_processor_core_count"] == "4 virtual cores (16 virtual CPUs in all)"
    assert description["host_processor_interconnect"] == ""
    assert description["host_network_card_count"] == NOT_STATED


def test_a_virtual_machines_processor_that_is_known_has_the_cores_it_is_sold_with(machine):
    crusoe = replace(machine.cpu, model_name="AMD EPYC 9254 24-Core Processor", sockets=10, cores_per_socket=4)
    virtual = replace(machine, host=replace(machine.host, virtualised=True), cpu=replace(crusoe, max_mhz=None))
    description = described(virtual)
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
    description = described(
        hardware(machine, cpu={"model_name": "AMD EPYC 9254 24-Core Processor", "cores_per_socket": 4})
    )
    assert description["host_processor_core_count"] == "4"
    assert "Detected against the table of known hardware: host_processor_core_count" in description["hw_notes"]
    assert hints(description) == []


@pytest.mark.parametrize(
    ("facts", "asked", "remark", "values"),
    [
        ({}, {"container": "vllm:1 by podman"}, "vLLM was run from vllm:1 by podman.", {}),
        ({"host": {"product": "Supermicro SYS-821GE-TNHR"}}, {}, "Machine: Supermicro SYS-821GE-TNHR.", {}),
        ({"memory": {"limit_bytes": 2**34}}, {}, "may use 16 GB", {}),
        ({"gpus": EIGHT}, {"used": None}, "is not known", {}),
        ({"gpus": [H200]}, {}, "are not used", {"accelerators_per_node": "0"}),
        (
            {"gpus": [replace(H200, memory_bytes=70 * 2**30)]},
            {"used": ["GPU-0"]},
            "reports 70.0 GiB of the 141 GB",
            {"accelerator_memory_capacity": "70 GB"},
        ),
    ],
)
def test_what_a_reader_would_miss_is_remarked(machine, facts, asked, remark, values):
    description = described(hardware(machine, **facts), **asked)
    assert remark in description["hw_notes"] + description["sw_notes"]
    assert remark not in str(described(machine))
    assert {key: description[key] for key in values} == values


def test_gpus_in_use_are_described_and_the_idle_ones_remarked(machine):
    description = described(hardware(machine, gpus=EIGHT), used=["GPU-3"])
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
    description = described(hardware(machine, gpus=EIGHT), used=[gpu.uuid for gpu in EIGHT])
    assert description["accelerators_per_node"] == "8"
    assert description["accelerator_interconnect"] == "18x NVLink 4, 900 GB/s"
    assert description["accelerator_interconnect_topology"] == "NVSwitch: every GPU reaches every other"


def test_mig_parts_are_described_as_parts(machine):
    parts = [MigFacts(uuid=f"MIG-{n}", profile="3g.71gb", memory_bytes=71 * 2**30) for n in range(2)]
    split = replace(H200, mig=True, mig_devices=parts)
    description = described(hardware(machine, gpus=[split]), used=["MIG-1"])
    assert description["accelerators_per_node"] == "1"
    assert description["accelerator_model_name"] == "NVIDIA H200 (MIG 1x 3g.71gb)"
    assert description["accelerator_memory_capacity"] == "71 GB"


def test_a_statement_against_the_table_is_published_where_its_owner_confirms_it(machine):
    key = "accelerator_memory_configuration"
    given = {"machine": hardware(machine, gpus=[H200]), "used": ["GPU-0"], "stated": {key: "HBM2"}}
    with pytest.raises(UsageError, match=r"'HBM2', but the NVIDIA H200 has HBM3e \(NVIDIA H200") as refused:
        described(**given)
    assert f"confirmed: [{key}]" in refused.value.remedy
    description = described(**given, confirmed=[key])
    assert description[key] == "HBM2"
    assert f"against the table of known hardware: {key}" in description["hw_notes"]


def test_a_server_elsewhere_is_never_described_by_this_machine(machine):
    stated = {"number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": "NVIDIA H200"}
    description = described(machine, here=False, stated=stated)
    assert description["host_processor_model_name"] == NOT_STATED
    assert description["host_memory_capacity"] == NOT_STATED
    assert description["operating_system"] == NOT_STATED
    assert folder_name(description) == "8xNVIDIA-H200_vLLM-0.32.0"


def test_a_result_of_a_server_elsewhere_needs_its_numbers_stated(machine):
    with pytest.raises(UsageError, match="accelerators_per_node") as refused:
        described(machine, here=False)
    assert "--system_file" in refused.value.remedy
    notes = described(machine, here=False, rehearsal=True)["hw_notes"]
    assert notes.startswith(REHEARSAL_NOTICE) and "accelerators_per_node is not stated" in notes


def test_a_rehearsals_remarks_say_that_it_is_one(machine):
    description = described(machine, rehearsal=True)
    assert description["hw_notes"] == f"{REHEARSAL_NOTICE} {UNCHECKED}"
    assert description["sw_notes"].startswith(REHEARSAL_NOTICE)


@pytest.mark.parametrize(
    ("name", "folder"), [("My System (new)", "My-System-new"), ("../../etc", "etc"), ("8xH100+NVL", "8xH100-NVL")]
)
def test_the_folders_name_has_safe_characters_only(machine, name, folder):
    assert folder_name(described(machine, stated={"system_name": name})) == folder


def test_nothing_private_of_this_machine_is_in_its_description():
    facts = detect_machine()
    text = json.dumps(described(hardware(facts, gpus=[H200]), used=[H200.uuid]))
    for word in (socket.gethostname(), getpass.getuser(), H200.uuid):
        assert not re.search(rf"\b{re.escape(word)}\b", text), word
    assert not re.search(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", text)


# --- system_file


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "system.yaml"
        path.write_text(text)
        return path

    return write


def test_a_template_asks_for_everything_that_is_not_stated(server, written):
    machine = detect_machine(server)
    description = described(machine)
    text = template(description)
    asked = yaml.safe_load(text)
    assert set(not_stated(description)) <= set(asked)
    assert not {"submitter", "host_memory_capacity"} & set(asked)
    assert described(machine, stated=read_system_file(written(text)).stated) == description
    uncommented = [line.removeprefix("#") if not line.startswith("# ") else line for line in text.splitlines()]
    stated = read_system_file(written("\n".join(uncommented))).stated
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
    for text in ("- a\n- b\n", "just words", "a: b: c"):
        with pytest.raises(UsageError, match="is not"):
            read_system_file(written(text))


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

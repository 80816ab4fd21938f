import json
import re
from pathlib import Path

import pytest

from cm4vllm.records import known_hardware
from cm4vllm.records.known_hardware import accelerator, contradictions, processor

#: Where the published vLLM submission to round v4.1 lies beside a checkout that has it.
PUBLISHED = Path(__file__).parents[3] / "shared/data/neuralmagic-v4.1"


@pytest.fixture(scope="module")
def published():
    files = sorted(PUBLISHED.glob("open/*/systems/*.json"))
    if not files:
        pytest.skip("the system files of the published v4.1 submission are not here")
    return {path.name.partition("-reference")[0]: json.loads(path.read_text()) for path in files}


def wrong(description):
    return {contradiction.key: contradiction.known for contradiction in contradictions(description)}


def test_published_systems_are_held_against_the_table(published):
    assert {name: set(wrong(system)) for name, system in published.items()} == {
        "4xH100-SXM-80GB_vLLM_FP8": set(),
        "4xH100-SXM-80GB_vLLM_GPTQ": set(),
        # 23.647... GB is what CUDA reports of a card that is sold with 24.
        "GO_2xRTX4090": {"accelerator_memory_capacity"},
        # A virtual machine's 4 cores, given as those of a processor that has 24.
        "vLLM_8xL40S": {"host_processor_core_count"},
    }
    for memory in ("HBM2", "HBM2e"):  # of two published descriptions of that card
        system = {**published["vLLM_8xL40S"], "accelerator_memory_configuration": memory}
        assert wrong(system)["accelerator_memory_configuration"] == "the NVIDIA L40S has GDDR6"


@pytest.mark.parametrize(
    ("key", "said", "is_wrong"),
    [
        ("accelerator_memory_configuration", "HBM2", True),
        ("accelerator_memory_configuration", "GDDR6 with ECC", False),
        ("accelerator_memory_configuration", "not stated", False),
        ("accelerator_memory_capacity", "48 GB", False),
        ("accelerator_memory_capacity", "44.99 GB", True),
        ("accelerator_memory_capacity", "48GiB", False),
        ("accelerator_host_interconnect", "PCIe Gen5 x16", True),
        ("accelerator_host_interconnect", "PCIe Gen3 x16", False),
        ("accelerator_interconnect", "NVLink", True),
        ("accelerator_interconnect", "PCIe Gen4 x16", False),
        ("host_processor_core_count", "4", True),
        ("host_processor_core_count", "24", False),
        ("host_processor_core_count", "4 virtual cores (80 virtual CPUs in all)", False),
        ("host_processors_per_node", "10", True),
        ("host_processors_per_node", "2", False),
        ("host_processor_frequency", "5.1 GHz", True),
        ("host_processor_frequency", "2.9 GHz, up to 4.15 GHz", False),
    ],
)
def test_each_key_is_judged(key, said, is_wrong):
    described = {"accelerator_model_name": "NVIDIA L40S", "host_processor_model_name": "AMD EPYC 9254"}
    assert (key in wrong({**described, key: said})) is is_wrong


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100-SXM-80GB", "NVIDIA H100 80GB HBM3"),
        ("nvidia l40s", "NVIDIA L40S"),
        ("NVIDIA L40", "NVIDIA L40"),
        ("NVIDIA H200 NVL", "NVIDIA H200 NVL"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
        ("NVIDIA L400", None),
        ("N/A", None),
        ("", None),
        ("AMD EPYC 9254 24-Core Processor", "AMD EPYC 9254"),
        ("Intel(R) Xeon(R) Platinum 8462Y+", "Intel Xeon Platinum 8462Y+"),
        ("INTEL(R) XEON(R) GOLD 6530", "Intel Xeon Gold 6530"),
        ("2xAMD EPYC 9655", "AMD EPYC 9655"),
        ("AMD EPYC 9654P 96-Core Processor", None),
        ("AMD EPYC", None),
        ("Intel(R) Xeon(R) Platinum 8480C", "Intel Xeon Platinum 8480C"),
    ],
)
def test_accelerators_and_processors_are_found_by_their_whole_name(name, known):
    gpu, cpu = accelerator(name), processor(name)
    assert (gpu.names[0] if gpu else cpu.name if cpu else None) == known


def test_every_row_has_a_source_and_no_name_stands_twice():
    rows = [*known_hardware._accelerators(), *known_hardware._processors()]
    assert all(row.source for row in rows)
    names = [name for row in known_hardware._accelerators() for name in row.names]
    names += [row.name for row in known_hardware._processors()]
    assert len(names) == len(set(names))
    assert all(re.search(r" .*systems/.*\.json$", row.published) for row in rows if row.published)
    # Only what a published file says is confirmed, and only by a row that names the file.
    assert all(bool(row.published) == bool(row.confirmed) for row in rows)
    assert all(getattr(row, field, None) for row in rows for field in row.confirmed)


def test_a_row_that_nothing_confirms_gives_a_hint_and_no_contradiction():
    said = {
        "accelerator_model_name": "NVIDIA A10",
        "accelerator_memory_configuration": "HBM2",
        "host_processor_model_name": "AMD EPYC 9754",
        "host_processor_core_count": "64",
    }
    hints = contradictions(said)
    assert len(hints) == 2
    assert all(hint.is_hint and "no published system confirms" in str(hint) for hint in hints)
    (l40s,) = contradictions({**said, "accelerator_model_name": "NVIDIA L40S", "host_processor_core_count": "128"})
    assert not l40s.is_hint
    assert "no published system confirms" not in str(l40s)


def test_a_row_that_a_published_file_confirms_agrees_with_it(published):
    files = {path.name: json.loads(path.read_text()) for path in PUBLISHED.glob("open/*/systems/*.json")}
    for row in known_hardware._accelerators():
        if system := files.get(Path(row.published).name):
            assert accelerator(system["accelerator_model_name"]) == row
            assert system["accelerator_memory_configuration"] in (row.memory_type, "N/A")
    for cpu in known_hardware._processors():
        if system := files.get(Path(cpu.published).name):
            assert processor(system["host_processor_model_name"]) == cpu
            own_name = re.search(r"(\d+)-Core", system["host_processor_model_name"])
            assert cpu.cores[0] in (int(system["host_processor_core_count"]), int(own_name[1]) if own_name else 0)


@pytest.mark.parametrize(
    ("cores", "known"), [("72", []), ("20", []), ("64", ["the NVIDIA Grace CPU has 72 or 20 cores"])]
)
def test_a_processor_that_is_sold_with_several_numbers_of_cores_has_each_of_them(cores, known):
    stated = {"host_processor_model_name": "NVIDIA Grace CPU", "host_processor_core_count": cores}
    assert list(wrong(stated).values()) == known

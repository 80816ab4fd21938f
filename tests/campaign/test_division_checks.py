"""The rules of the closed and the network division: what is refused beforehand, with the rule and its place."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from builders import job_of, steps_of
from cm4vllm.assets.samples.audio_dataset import digest_of_clips
from cm4vllm.campaign.entry import division_findings, finding_notes, require_division_rules
from cm4vllm.campaign.job_checks import of_division
from cm4vllm.campaign.job_checks.of_division import job_rules
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.common.checking.checks import checks_in
from cm4vllm.common.errors import UsageError
from cm4vllm.records import machine as records
from cm4vllm.records.described_system import NETWORK_KEYS
from cm4vllm.rules import Category, Division, Mode, Scenario, catalogue, division_rules, speculation, terms
from cm4vllm.rules import assets as catalogue_module
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings

OWN = {"division": "closed", "execution_mode": "valid", "model_source": "_mlcommons.llama-3.1-8b-instruct"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with ECC memory and a network card of 100 Gbit/s."""
    (tmp_path / "machine/sys/devices/system/edac/mc/mc0").mkdir(parents=True)
    card = tmp_path / "machine/sys/class/net/eth0"
    (card / "device").mkdir(parents=True)
    (card / "speed").write_text("100000\n")
    return tmp_path / "machine"


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[records.GpuFacts]:
    """The GPUs that the machine of these tests has."""
    detected: list[records.GpuFacts] = []
    monkeypatch.setattr(job_rules, "detect_gpus", lambda: detected)
    return detected


def codes(root: Path, **fields: object) -> list[str]:
    return [finding.code for finding in division_findings(job_of(**OWN | fields), root)]


def test_a_job_that_keeps_the_rules_is_accepted(root):
    job = job_of(**OWN)
    assert division_findings(job, root) == ()
    require_division_rules(job, ())
    assert (job.no_tree, job.proves_model, job.tests) == ("", True, ("TEST06",))
    assert [step.tags for step in schedule(job) if "identity" in step.name] == ["verify,ml-model"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_source": ""}, ["MODEL", "DATASET"]),
        ({"model_source": "_hf.meta-llama/Llama-3.1-8B-Instruct"}, []),
        ({"model_source": "_catalogue.llama-3.1-8b-instruct-fp8"}, ["MODEL"]),
        ({"model_source": "_hf.someone/finetuned"}, ["MODEL"]),
        ({"model_source": "_dummy", "execution_mode": "test"}, ["MODEL", "DATASET", "VALIDATION"]),
        ({"model_source": "", "vllm_model_name": "llama-3.1-8b-instruct"}, []),
        ({"model": "llama3.1-8b-edge"}, []),
        ({"api_server": "http://127.0.0.1:1"}, ["MODEL", "SPECULATION"]),
        ({"dataset": "tiny"}, ["DATASET"]),
        ({"model_source": "_smollm2", "execution_mode": "test"}, ["MODEL", "DATASET"]),
        ({"quantize": "fp8-dynamic"}, []),
        ({"scenario": "Interactive"}, ["SCENARIOS"]),
        ({"scenario": "Offline,Interactive"}, []),
        ({"model": "llama3.1-8b-edge", "scenario": "Offline"}, ["SCENARIOS"]),
        ({"modes": "performance"}, ["VALIDATION"]),
    ],
)
def test_what_the_settings_break_is_found(root, fields, expected):
    assert codes(root, **fields) == expected


def test_a_division_without_rules_refuses_nothing(tmp_path):
    assert codes(tmp_path, division="open", model_source="", scenario="Offline", modes="accuracy") == []


@pytest.mark.parametrize(
    ("extra", "expected"),
    [("-sc={}", ["SPECULATION"]), ("--spec-mod=x", ["SPECULATION"]), ("--max-num-seqs 4", []), ("'unclosed", [])],
)
def test_speculative_decoding_is_found_in_every_form(root, extra, expected):
    assert codes(root, servers=LaunchSettings(server=ServerSettings(extra=extra))) == expected


def test_a_file_of_ones_own_counts_if_it_is_the_published_one(root, tmp_path, monkeypatch):
    given = tmp_path / "cnn_eval.json"
    given.write_text("[]")
    assert codes(root, dataset_path=str(given)) == ["DATASET"]
    assert codes(root, quantize="fp8", calibration_path=str(given)) == ["CALIBRATION"]
    assert codes(root, quantize="int8", calibration_path=str(given)) == [], "no scale comes from it"
    known, digest = catalogue(), f"md5:{hashlib.md5(b'[]').hexdigest()}"
    same = changed(known, datasets={name: changed(dataset, digest=digest) for name, dataset in known.datasets.items()})
    monkeypatch.setattr(job_rules, "catalogue", lambda: same)
    assert codes(root, dataset_path=str(given)) == []
    assert codes(root, quantize="fp8", calibration_path=str(given)) == []


def test_clips_count_if_they_are_those_that_are_published(tmp_path):
    clips = {"a": b"1", "b": b"2"}
    (tmp_path / "clips").mkdir()
    for name, text in reversed(clips.items()):
        (tmp_path / "clips" / f"{name}.wav").write_bytes(text)
    lines = "".join(f"{hashlib.md5(text).hexdigest()}  clips/{name}.wav\n" for name, text in clips.items())
    expected = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    assert digest_of_clips(tmp_path, "clips/") == expected
    (tmp_path / "clips" / "a.wav").write_bytes(b"3")
    assert digest_of_clips(tmp_path, "clips/") != expected


def test_a_folder_is_compared_with_the_published_digests(root, tmp_path, monkeypatch):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert codes(root, model_source=f"_path.{model}") == ["MODEL"]
    (tmp_path / "llama-3.1-8b-instruct.md5").write_text(f"{hashlib.md5(b'{}').hexdigest()}  config.json\n")
    monkeypatch.setattr(catalogue_module, "_DIGESTS", tmp_path)
    assert codes(root, model_source=f"_path.{model}") == []


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("", ["ECC", "NETWORKING"]),
        ("host_memory_configuration: 2x 16 GB DDR5, non-ECC", ["ECC", "NETWORKING"]),
        ("host_memory_configuration: 12x ECC\nhost_networking: 100 GbE\nhost_network_card_count: 0", ["NETWORKING"]),
        ("host_memory_configuration: 12x ECC\nhost_networking: 100 GbE\nhost_network_card_count: 2", []),
    ],
)
def test_what_a_machine_does_not_show_has_to_be_stated(tmp_path, stated, expected):
    file = tmp_path / "system.yaml"
    file.write_text(stated)
    assert codes(tmp_path, system_file=str(file)) == expected
    assert codes(tmp_path, model="llama3.1-8b-edge") == []  # the edge category has neither rule


@pytest.mark.parametrize(("ecc", "expected"), [([True, True], []), ([True, False], ["ECC"]), ([True, None], ["ECC"])])
def test_the_memory_of_gpus_needs_ecc_too(root, gpus, ecc, expected):
    unknown = dict.fromkeys(("max_sm_mhz", "pcie_generation", "pcie_width"))
    gpus += [records.GpuFacts(name="GPU", uuid="", memory_bytes=1, driver="", ecc=mode, **unknown) for mode in ecc]
    assert codes(root) == expected
    assert codes(root, device="cpu") == []


def test_a_valid_run_is_refused_with_every_rule_and_its_place(root):
    job = job_of(**OWN | {"model_source": "", "scenario": "Offline"})
    assert finding_notes(job, division_findings(job, root)) == ()  # the refusal says it all
    with pytest.raises(UsageError, match="cannot give a result of the closed division") as refused:
        require_division_rules(job, division_findings(job, root))
    for words in (
        "the stand-in",
        "rule MODEL:",
        "rule DATASET:",
        "llama3.1-8b needs Server or Interactive beside Offline",
        'mlcommons/inference_policies inference_rules.adoc, "Model" and',
    ):
        assert words in refused.value.cause
    assert "--scenario=Offline,Server" in refused.value.remedy and "--division=open" in refused.value.remedy


def test_a_rehearsal_goes_on_names_the_rules_and_makes_no_tree(root):
    job = job_of(division="closed")
    faults = division_findings(job, root)
    require_division_rules(job, faults)
    notes = finding_notes(job, faults)
    assert "a valid run would be refused: the model is the stand-in" in notes[0] and "no submission tree" in notes[-1]
    job = replace(job, findings=faults)
    names = [step.name for step in schedule(job)]
    assert {"Offline TEST06", "Server TEST06: verification"} <= set(names)
    assert not {"submission", "checkers", "model identity"} & set(names)
    assert job.no_tree == "the job does not keep these rules of the closed division: MODEL, DATASET"


@pytest.mark.parametrize(("scheme", "calibrated"), [("fp8", True), ("int8,kv-fp8", True), ("int8", False)])
def test_a_quantised_model_is_compared_before_and_named_after(scheme, calibrated):
    names = list(steps_of(**OWN | {"quantize": scheme}))
    order = ["model", "model identity", "calibration set", "quantisation", "quantised model identity"]
    assert [name for name in names if name in order] == [name for name in order if calibrated or "set" not in name]


ELSEWHERE = {"division": "network", "api_server": "http://198.51.100.7:8000"}
NETWORK = (
    "".join(f"{key}: '1'\n" for key in NETWORK_KEYS[1:] if key != "network_type") + "network_type: 100G Ethernet\n"
)
MACHINE = "host_memory_configuration: 12x ECC\nhost_networking: 100 GbE\nhost_network_card_count: 2\n"


@pytest.mark.parametrize(
    ("stated", "fields", "expected"),
    [
        # Only the facts of a server that its HTTP API does not report are refused.
        (NETWORK + MACHINE + "accelerators_per_node: 0\n", {}, ["MODEL", "SPECULATION"]),
        (NETWORK + MACHINE, {}, ["MODEL", "SPECULATION", "ECC"]),
        (NETWORK, {}, ["MODEL", "SPECULATION", "ECC", "ECC", "NETWORKING"]),  # nothing of this machine counts
        (MACHINE + "accelerators_per_node: 0\n", {}, ["MODEL", "SPECULATION", "FABRIC"]),
        (NETWORK.replace("100G Ethernet", "NVLink") + MACHINE, {}, ["MODEL", "SPECULATION", "ECC", "FABRIC"]),
        (NETWORK, {"api_server": "http://198.51.100.7,http://[::1]"}, ["MODEL", "SPECULATION", "SEPARATE"]),
        (NETWORK, {"api_server": ""}, ["SEPARATE"]),
        (NETWORK, {"model": "llama3.1-8b-edge"}, ["MODEL", "SPECULATION", "DATACENTER"]),
    ],
)
def test_what_a_job_of_the_network_division_breaks_is_found(root, tmp_path, stated, fields, expected):
    file = tmp_path / "system.yaml"
    file.write_text(stated)
    assert codes(root, system_file=str(file), **ELSEWHERE | fields) == expected


def test_the_docs_name_the_rules_by_which_a_valid_run_of_the_network_division_is_refused():
    text = " ".join((Path(__file__).parents[2] / "docs" / "what-runs.md").read_text(encoding="utf-8").split())
    assert "The open and the closed division run. Of the network division only rehearsals run: a valid run is" in text
    assert "two of its rules, MODEL and SPECULATION" in text  # as the first jobs above, whose machines are described


def test_a_rule_that_cannot_be_met_is_named_as_such(root):
    job = job_of(**ELSEWHERE, execution_mode="valid")
    with pytest.raises(UsageError, match="a result of the network division") as refused:
        require_division_rules(job, division_findings(job, root))
    assert refused.value.remedy.startswith("MODEL, SPECULATION: cannot be met; rehearse")


@pytest.mark.parametrize("execution_mode", ["test", "valid"])
def test_a_server_beside_loadgen_is_refused_with_the_rule_even_in_a_rehearsal(root, execution_mode):
    fields = {**OWN, **ELSEWHERE, "api_server": "http://localhost:8000", "execution_mode": execution_mode}
    job = job_of(**fields)
    with pytest.raises(UsageError, match="of the network division") as refused:
        require_division_rules(job, division_findings(job, root))
    assert "physically apart" in refused.value.cause and "another machine" in refused.value.remedy
    assert ("FABRIC" in refused.value.cause) is (execution_mode == "valid")


def test_a_rehearsal_of_the_network_division_names_the_fields_that_are_missing(root):
    job = job_of(**ELSEWHERE)
    faults = division_findings(job, root)
    require_division_rules(job, faults)
    (fabric,) = [note for note in finding_notes(job, faults) if "rule FABRIC" in note]
    assert all(key in fabric for key in NETWORK_KEYS[1:])
    assert job.tests == ("TEST06",)


def test_every_rule_is_checked_kept_by_what_a_job_does_or_refused():
    every = {code for division in Division for category in Category for code in division_rules(division, category)}
    assert every == {*checks_in(of_division.__name__), "LENGTHS", "TESTS", "QDL-NAME", "DIAGRAM"}
    closed, network = (
        division_rules(division, Category.DATACENTER) for division in (Division.CLOSED, Division.NETWORK)
    )
    assert set(closed) < set(network)  # which inherits all of it
    assert division_rules(Division.OPEN, Category.DATACENTER) == {}


def test_the_lengths_of_answers_are_those_that_the_division_states():
    for division, lengths in (
        (Division.OPEN, (1, 2000)),
        (Division.CLOSED, (2, 20000)),
        (Division.NETWORK, (2, 20000)),
    ):
        generation = terms("v6.0", "llama3.1-405b", Scenario.OFFLINE, Mode.PERFORMANCE, division).generation
        assert (generation.min_tokens, generation.max_tokens) == lengths
        assert bool(generation.lengths_source) is (division is not Division.OPEN)


def test_speculative_decoding_is_allowed_where_the_rules_list_it():
    allowed = speculation("v6.1", "deepseek-r1", Scenario.INTERACTIVE)
    assert allowed is not None and (allowed.steps, allowed.topk) == (3, 1)
    assert speculation("v6.1", "deepseek-r1", Scenario.SERVER) is None

"""Models of each source, and what is said when one cannot be had."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from builders import quantization_record
from cm4vllm.assets import dummy
from cm4vllm.assets.datasets import provide as provide_dataset
from cm4vllm.assets.model_identity import _published_digests, differences, is_from, with_benchmark_name
from cm4vllm.assets.models import MODEL_FILE, ModelSettings, check, check_unchanged, model_exports, provide
from cm4vllm.assets.quantization import QuantizationSettings, quantize
from cm4vllm.assets.samples.dataset_files import DatasetSettings
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.records import read_record
from cm4vllm.records.assets import DUMMY_SOURCE, IDENTITY, STAND_IN_SOURCE, ModelRecord
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import CatalogueDataset, CatalogueModel, benchmark_terms, catalogue, published_digests, round_names
from cm4vllm.rules import assets as catalogue_module
from cm4vllm.serving.fit.advice import _stated_precision
from cm4vllm.serving.fit.layout import Asked, advise


@pytest.fixture
def entry(tmp_path):
    folder = tmp_path / "entry"
    folder.mkdir()
    return folder


def local(model, entry) -> ModelRecord:
    return provide(ModelSettings(source="path", location=str(model)), entry)


def test_a_local_folder_is_described_and_recorded(model, entry):
    record = local(model, entry)
    assert read_record(entry / MODEL_FILE, ModelRecord) == record
    assert record.name == "My-Model"
    assert record.path == str(model)
    assert record.sha256 == sha256_of_tree(model)
    assert (record.parameters, record.weight_data_types, record.min_tokens) == (42, "bf16", 1)
    env = model_exports(record, entry).env()
    assert read_record(Path(env["CM_ML_MODEL_RECORD"]), ModelRecord) == record
    assert env["CM_ML_MODEL_TOKENIZER_SHA256"] == hashlib.sha256((model / "tokenizer.json").read_bytes()).hexdigest()


def test_a_snapshot_of_the_hubs_cache_has_the_models_name(model, entry):
    folder = model.parent / "models--owner--Some-Model" / "snapshots" / "0123abcd"
    folder.parent.mkdir(parents=True)
    model.rename(folder)
    assert local(folder, entry).name == "Some-Model"


def test_a_model_called_as_a_benchmark_does_not_become_its_model(model, entry):
    folder = model.rename(model.with_name("llama3_1-8b"))
    assert local(folder, entry).name == "local-llama3_1-8b"
    served = ModelSettings(source="served", location="llama3.1-8b", served_folder=str(folder))
    assert provide(served, entry).name == "local-llama3.1-8b"


def test_the_weights_of_the_tiny_model_are_known_under_any_name(model, entry):
    assert not local(model, entry).is_stand_in
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "cm4vllm_stand_in": True}))
    folder = model.rename(model.with_name("Llama-2-70b-chat-hf-FP8"))
    record = local(folder, entry)
    assert record.is_stand_in and record.name == folder.name and record.min_tokens == 2
    served = provide(ModelSettings(source="served", location="owner/Big-Model", served_folder=str(folder)), entry)
    assert served.is_stand_in and served.name == "Big-Model" and served.path == str(folder)
    assert served.source == f"served as owner/Big-Model from the folder {folder.name}; {STAND_IN_SOURCE}"


def test_a_change_in_place_that_restores_size_and_time_is_noticed_and_a_copy_is_the_same_model(model, entry, tmp_path):
    record, weights = local(model, entry), model / "model.safetensors"
    check_unchanged(record)
    check_unchanged(msgspec.structs.replace(record, path=str(shutil.copytree(model, tmp_path / "copied"))))
    before, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    time.sleep(0.02)  # a tick of the file system's clock
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelError, match="have changed") as caught:
        check_unchanged(record)
    assert "--renew" in caught.value.remedy


def test_what_is_no_model_is_refused_and_leaves_no_record(tmp_path, entry):
    with pytest.raises(ModelError):
        local(tmp_path / "none", entry)
    assert not (entry / MODEL_FILE).exists()
    with pytest.raises(UsageError):
        provide(ModelSettings(source="cloud"), entry)
    with pytest.raises(UsageError, match="not the name"):
        provide(ModelSettings(source="hf", location="https://hub/owner/name"), entry)


# --- a model is a benchmark's own by the published digests of its files, or because it was quantised from such a one


BENCHMARK = "llama3.1-8b"
FILES = {"config.json": b"{}", "model-00001-of-00001.safetensors": b"weights", "tokenizer.json": b"[]"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are those that the list of digests has, which stands for the published one."""
    monkeypatch.setattr(catalogue_module, "_DIGESTS", tmp_path)
    lines = [f"{hashlib.md5(data).hexdigest()}  {name}" for name, data in FILES.items()]
    (tmp_path / "llama-3.1-8b-instruct.md5").write_text("\n".join(lines) + "\n")
    model = tmp_path / "model"
    model.mkdir()
    for name, data in FILES.items():
        (model / name).write_bytes(data)
    (model / "README.md").write_text("no part of what is served")
    return model


def record(folder: Path, **fields: object) -> ModelRecord:
    return ModelRecord(
        **{"name": "Llama-3.1-8B-Instruct", "path": str(folder), "source": "a folder", "sha256": "1" * 64} | fields
    )


def quantised(base: ModelRecord) -> ModelRecord:
    made = quantization_record(base_model=base.name, base_sha256=base.sha256)
    return replace(base, name="quantised", sha256="2" * 64, recipe={}, quantization=made)


def test_a_model_with_the_published_digests_goes_by_the_benchmarks_name(folder):
    model = with_benchmark_name(record(folder), BENCHMARK)
    assert (model.name, model.recipe[IDENTITY]) == (BENCHMARK, BENCHMARK)
    assert "3 files have the digests" in model.source
    assert list(differences(folder, BENCHMARK)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: (model / "model-00001-of-00001.safetensors").write_bytes(b"others"), "published is md5:"),
        (lambda model: (model / "config.json").unlink(), "config.json is missing"),
        (lambda model: (model / "adapter.safetensors").write_bytes(b"more"), "adapter.safetensors is not among"),
        (lambda model: (model / "modeling.py").write_text("x = 1"), "modeling.py is not among"),
    ],
)
def test_another_model_is_refused(folder, change, words):
    change(folder)
    with pytest.raises(ModelError, match="is not the model of llama3.1-8b") as refused:
        with_benchmark_name(record(folder), BENCHMARK)
    assert words in refused.value.cause
    assert "_mlcommons.llama-3.1-8b-instruct" in refused.value.remedy


def test_the_quick_comparison_leaves_large_files_to_the_whole_one(folder, monkeypatch):
    monkeypatch.setattr("cm4vllm.assets.model_identity._SMALL_BYTES", 5)
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"others")
    assert list(differences(folder, BENCHMARK, quick=True)) == []
    assert len(list(differences(folder, BENCHMARK))) == 1
    (folder / "model-00001-of-00001.safetensors").unlink()
    assert list(differences(folder, BENCHMARK, quick=True)) == ["model-00001-of-00001.safetensors is missing"]


@pytest.mark.parametrize(
    "base",
    [
        lambda own: None,
        lambda own: replace(own, recipe={}),
        lambda own: replace(own, sha256="3" * 64),
        lambda own: replace(own, recipe={IDENTITY: "llama2-70b-99"}),
    ],
    ids=["none", "unproved", "other", "benchmark"],
)
def test_a_quantised_model_is_the_benchmarks_with_an_identified_base_alone(folder, base):
    own = with_benchmark_name(record(folder), BENCHMARK)
    model = with_benchmark_name(quantised(own), BENCHMARK, own)
    assert (model.name, model.recipe[IDENTITY]) == (BENCHMARK, BENCHMARK)
    with pytest.raises(ModelError, match="is not known to be quantised from"):
        with_benchmark_name(quantised(own), BENCHMARK, base(own))


@pytest.mark.parametrize(
    ("benchmark", "location", "own"),
    [
        ("llama3.1-8b", "llama-3.1-8b-instruct", True),
        ("llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("llama3.1-8b", "llama-3.1-8b-instruct-fp8", False),
        ("llama3.1-405b", "llama-3.1-8b-instruct", False),
    ],
)
def test_names_of_the_catalogue_and_the_hub_say_whose_model_it_is(benchmark, location, own):
    assert is_from(benchmark, location) is own


def test_every_benchmarks_model_has_published_digests_or_is_never_taken_for_it(tmp_path):
    for benchmark, assets in catalogue().benchmarks.items():
        names = _published_digests(benchmark)
        if not catalogue().model(assets.model).mlcommons:
            assert not names and "no digests" in next(differences(tmp_path, benchmark))
            continue
        assert "config.json" in names, benchmark
        assert any(name.endswith(".safetensors") for name in names), benchmark


# --- the catalogue: every fact has its source, and every name that one entry gives is another entry's


FACTS = {CatalogueModel: {"note", "sources"}, CatalogueDataset: {"sources"}}


@pytest.mark.parametrize(("name", "entry"), [*catalogue().models.items(), *catalogue().datasets.items()])
def test_every_fact_has_its_source(name, entry):
    given = {field for field, value in msgspec.structs.asdict(entry).items() if value} - FACTS[type(entry)]
    assert given == set(entry.sources)
    assert all(entry.sources.values())


def test_names_within_the_catalogue_are_known():
    known = catalogue()
    for model in known.models.values():
        assert not model.base or model.base in known.models
        assert not model.revision or len(model.revision) == 40
    for dataset in known.datasets.values():
        if dataset.hub:  # published there alone
            assert len(dataset.revision) == 40 and not dataset.mlcommons
            continue
        assert dataset.clips or dataset.tokenizer in known.models
        assert dataset.digest.startswith("md5:")
        assert len(dataset.digest) == 36
    for assets in known.benchmarks.values():
        assert assets.model in known.models
        names = {assets.dataset, assets.calibration, assets.performance_dataset, assets.compliance_dataset} - {""}
        assert names <= set(known.datasets)


def test_each_benchmark_that_can_be_run_has_a_dataset_of_the_samples_of_the_rules():
    cells = {(name, benchmark) for name in round_names() for benchmark in runnable_benchmarks(name)}
    assert {benchmark for _, benchmark in cells} == set(catalogue().benchmarks)
    samples = {cell: catalogue().dataset(catalogue().benchmark(cell[1]).dataset).samples for cell in cells}
    assert samples == {cell: benchmark_terms(*cell).samples for cell in cells}


@pytest.mark.parametrize("name", [name for name, model in catalogue().models.items() if model.mlcommons])
def test_the_files_of_a_hosted_model_are_whole(name):
    files = published_digests(name)
    folder = catalogue().model(name).mlcommons_folder
    assert {f"{folder}/config.json".lstrip("/"), f"{folder}/tokenizer.json".lstrip("/")} <= set(files)
    assert [file for file in files if file.endswith(".safetensors")]
    assert all(digest.startswith("md5:") and len(digest) == 36 for digest in files.values())


def test_an_unknown_name_is_told_with_the_nearest(tmp_path):
    with pytest.raises(UsageError) as caught:
        provide(ModelSettings(source="catalogue", location="llama-2-70b-chat-fp9"), tmp_path)
    assert "llama-2-70b-chat-fp8" in caught.value.remedy
    with pytest.raises(UsageError, match="does not host"):
        provide(ModelSettings(source="mlcommons", location="llama-2-70b-chat-fp8"), tmp_path)
    assert catalogue().config("llama-2-70b-chat-fp8")["num_hidden_layers"] == 80


# --- dummy models: the real architecture, no weights, and marked as such under any name


MODEL = "llama-3.1-8b-instruct"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The record of two layers of llama3.1-8b, and the folder of the entry."""
    entry = tmp_path_factory.mktemp("entry")
    return provide(ModelSettings(source="dummy", location="llama3.1-8b", layers=2), entry), entry


def test_it_has_the_sizes_of_the_real_one_and_as_many_layers_as_asked_for(made):
    record, entry = made
    config = json.loads((entry / record.name / "config.json").read_text())
    known = catalogue().config(MODEL)
    assert {key: config[key] for key in known} == {**known, "num_hidden_layers": 2}
    assert record.name == f"{MODEL}-dummy-2-layers"
    assert record.parameters == read_architecture(config).parameters == 2 * 218_112_000 + 2 * 128_256 * 4096 + 4096
    assert (record.weight_data_types, record.architecture, record.min_tokens) == ("bf16", "LlamaForCausalLM", 1)
    assert record.is_dummy and not record.is_stand_in
    assert f"{DUMMY_SOURCE}; architecture of {MODEL}, 2 of its 32 layers" in record.source
    assert not list((entry / record.name).glob("*.safetensors"))


def test_its_tokenizer_reads_any_text_and_writes_any_id_of_the_vocabulary(made):
    record, entry = made
    tokenizer = Tokenizer.from_file(str(entry / record.name / "tokenizer.json"))
    text = "Grüße, 港"
    assert tokenizer.get_vocab_size() == 128_256
    ids = tokenizer.encode(text).ids
    assert ids[0] == 0 and len(ids) == 1 + len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([128_255]) == "<unused-128255>"


def test_it_has_the_stand_ins_dataset_where_no_other_is_asked_for(made, tmp_path):
    _, entry = made
    dataset = provide_dataset(DatasetSettings(model_record=str(entry / MODEL_FILE), calibration=True), tmp_path)
    assert dataset.name == "harbour-log-calibration" and "length_factor" not in dataset.recipe
    assert dataset.max_input_tokens > 100


@pytest.mark.parametrize("benchmark", catalogue().benchmarks)
def test_every_benchmarks_model_has_an_architecture_that_can_be_sized(benchmark):
    model = dummy.known_model(benchmark)
    config = catalogue().model(model).config
    assert config["architectures"] and config["torch_dtype"]
    architecture = read_architecture({**config, "num_hidden_layers": 4})
    size = {"gpus": 8, "memory_bytes": 80e9, "max_model_len": 2048}
    advise(Asked(name=model, architecture=architecture, precision=_stated_precision(config), **size))


@pytest.mark.parametrize("source", ["path", "served"])
def test_its_folder_is_known_under_any_name(made, tmp_path, source):
    record, entry = made
    folder = tmp_path / "Llama-3.1-8B-Instruct"
    folder.symlink_to(entry / record.name)
    settings = ModelSettings(
        source=source, location=str(folder) if source == "path" else "owner/Real", served_folder=str(folder)
    )
    assert provide(settings, tmp_path).is_dummy


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (ModelSettings(source="dummy", location="llama9"), "llama9"),
        (ModelSettings(source="dummy", location="llama-3.1-8b-instruct-fp8"), "no architecture of its own"),
        (ModelSettings(source="dummy", location="llama3.1-8b", layers=0), "--dummy_layers=0"),
        (ModelSettings(source="dummy", location="llama3.1-8b", layers=33), "--dummy_layers=33"),
        (ModelSettings(source="hf", location="owner/name", layers=2), "--dummy_layers=2"),
    ],
)
def test_what_it_cannot_be_is_refused_before(settings, word):
    with pytest.raises(UsageError, match=word) as caught:
        check(settings)
    assert caught.value.remedy


def test_it_is_not_quantised(made, tmp_path):
    with pytest.raises(ModelError, match="no weights to quantise"):
        quantize(QuantizationSettings(scheme="int8", model_record=str(made[1] / MODEL_FILE)), tmp_path)

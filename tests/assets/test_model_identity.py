"""A model is a benchmark's own by the published digests of its files, or because it was quantised from such a one."""

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm.assets.model_identity import _published, differences, identified, is_from
from cm4vllm.common.errors import ModelError
from cm4vllm.records.assets import IDENTITY, ModelRecord, QuantizationRecord
from cm4vllm.rules import assets as catalogue_module

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
    made = QuantizationRecord(
        scheme="int8",
        weights="int8",
        activations="int8",
        kv_cache="not quantised",
        formula="x",
        layers=1,
        layer_kinds=["q_proj"],
        ignored=["lm_head"],
        base_model=base.name,
        base_sha256=base.sha256,
        starting_weights="model.safetensors",
        tools={},
    )
    return replace(base, name="quantised", sha256="2" * 64, recipe={}, quantization=made)


def test_a_model_with_the_published_digests_goes_by_the_benchmarks_name(folder):
    model = identified(record(folder), BENCHMARK)
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
        identified(record(folder), BENCHMARK)
    assert words in refused.value.cause
    assert "_mlcommons.llama-3.1-8b-instruct" in refused.value.remedy


def test_the_quick_comparison_leaves_large_files_to_the_whole_one(folder, monkeypatch):
    monkeypatch.setattr("cm4vllm.assets.model_identity._SMALL_BYTES", 5)
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"others")
    assert list(differences(folder, BENCHMARK, quick=True)) == []
    assert len(list(differences(folder, BENCHMARK))) == 1
    (folder / "model-00001-of-00001.safetensors").unlink()
    assert list(differences(folder, BENCHMARK, quick=True)) == ["model-00001-of-00001.safetensors is missing"]


def test_a_model_quantised_from_an_identified_one_is_the_benchmarks_too(folder):
    base = identified(record(folder), BENCHMARK)
    model = identified(quantised(base), BENCHMARK, base)
    assert (model.name, model.recipe[IDENTITY]) == (BENCHMARK, BENCHMARK)


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
def test_a_quantised_model_without_such_a_base_is_refused(folder, base):
    own = identified(record(folder), BENCHMARK)
    with pytest.raises(ModelError, match="is not known to be quantised from"):
        identified(quantised(own), BENCHMARK, base(own))


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
    for benchmark, assets in catalogue_module.catalogue().benchmarks.items():
        names = _published(benchmark)
        if not catalogue_module.catalogue().model(assets.model).mlcommons:
            assert not names and "no digests" in next(differences(tmp_path, benchmark))
            continue
        assert "config.json" in names, benchmark
        assert any(name.endswith(".safetensors") for name in names), benchmark

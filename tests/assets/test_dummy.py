"""Dummy models: the real architecture, no weights, and marked as such under any name."""

import json

import pytest
from tokenizers import Tokenizer

from cm4vllm.assets import dummy
from cm4vllm.assets.datasets import provide as provide_dataset
from cm4vllm.assets.models import MODEL_FILE, ModelSettings, check, provide
from cm4vllm.assets.quantization import QuantizationSettings, quantize
from cm4vllm.assets.samples.dataset_files import DatasetSettings
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.records.assets import DUMMY_SOURCE
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue
from cm4vllm.serving.fit.advice import _stated
from cm4vllm.serving.fit.layout import Asked, advise

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
    advise(
        Asked(
            name=model,
            architecture=architecture,
            precision=_stated(config),
            gpus=8,
            memory_bytes=80e9,
            max_model_len=2048,
        )
    )


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

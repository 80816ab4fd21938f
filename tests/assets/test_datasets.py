"""Datasets: the tiny one reads as the reference reads its own; files that do not fit are refused with the reason."""

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cm4vllm.assets.datasets import DATASET_FILE, provide
from cm4vllm.assets.models import MODEL_FILE, ModelSettings
from cm4vllm.assets.models import provide as provide_model
from cm4vllm.assets.samples.dataset_files import DatasetSettings
from cm4vllm.assets.samples.published_formats import COLUMNS, rows_of
from cm4vllm.common.errors import DatasetError, DownloadError, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.assets import STAND_IN_SOURCE, DatasetRecord, ModelRecord
from cm4vllm.rules import benchmark_terms, catalogue
from conftest import write_tokenizer

SAMPLES = benchmark_terms("v6.1", "llama3.1-8b").samples


@pytest.fixture
def model_record(model, tmp_path):
    folder = tmp_path / "model-entry"
    folder.mkdir()
    provide_model(ModelSettings(source="path", location=str(model)), folder)
    return str(folder / MODEL_FILE)


def rows(count=SAMPLES, **more):
    return [{"input": "text", "tok_input": [1, 2, number % 300], "output": "gold", **more} for number in range(count)]


def local(tmp_path, value, model_record=""):
    path = tmp_path / "cnn_eval.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return provide(DatasetSettings(source="path", location=str(path), model_record=model_record), tmp_path)


def test_the_tiny_dataset_has_the_benchmarks_size_and_the_models_tokens(tmp_path, model, model_record):
    import pandas
    from tokenizers import Tokenizer

    benchmark = "llama3.1-8b-edge"
    samples = benchmark_terms("v6.1", benchmark).samples
    record = provide(DatasetSettings(source="tiny", model_record=model_record, benchmark=benchmark), tmp_path)
    assert read_record(tmp_path / DATASET_FILE, DatasetRecord) == record
    made = rows_of(Path(record.path))
    assert record.samples == len(made) == samples == 5000
    assert record.sha256 == sha256_of(Path(record.path))
    assert record.tokenizer_sha256 == sha256_of(model / "tokenizer.json")
    assert record.sentences == "punkt-untrained"
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for row in made[:: samples // 20]:
        assert tuple(row) == COLUMNS
        assert row["tok_input"] == tokenizer.encode(row["input"]).ids
    assert record.max_input_tokens == max(len(row["tok_input"]) for row in made)
    # And it reads as the reference reads its own.
    table = pandas.read_json(record.path)  # language/llama3.1-8b/dataset.py
    assert list(table.columns) == list(COLUMNS)
    assert len(table) == samples
    assert all(isinstance(token, int) for token in table["tok_input"][0])


def test_a_stand_in_has_the_columns_that_its_benchmarks_samples_are_scored_by(tmp_path, model_record):
    settings = DatasetSettings(source="tiny", model_record=model_record, round="v6.0", benchmark="llama3.1-405b")
    record = provide(settings, tmp_path)
    made = rows_of(Path(record.path))
    assert len(made) == 8313
    assert [row["metric"] for row in made[:6]] == 2 * ["rouge", "niah_em", "qa_em"]
    summary, code, answer = (row["output"] for row in made[:3])
    assert summary.endswith(".")
    assert re.fullmatch(r"\w{8}(-\w{4}){3}-\w{12}", code)
    assert re.fullmatch(r"\d+ tons of \w+\|a cargo of \d+ tons of \w+", answer)
    goods = answer.partition("|")[0].split()[-1]
    assert f"cargo {goods}" in made[2]["input"]  # what is asked for stands in the prompt, as in its summary
    factor, _, words = record.recipe["length_factor"].partition(":")
    assert 0 < float(factor) < 1
    assert "684.68 an answer" in words


def test_a_row_that_no_metric_is_named_for_is_refused(tmp_path):
    path = tmp_path / "data.json"
    settings = DatasetSettings(source="path", location=str(path), round="v6.0", benchmark="llama3.1-405b")
    path.write_text(json.dumps(rows(8313)))
    with pytest.raises(DatasetError, match="lacks metric"):
        provide(settings, tmp_path)
    path.write_text(json.dumps([*rows(8312, metric="rouge"), *rows(1, metric="bleu")]))
    with pytest.raises(DatasetError, match="sample 8312 has 'bleu' as its metric"):
        provide(settings, tmp_path)
    path.write_text(json.dumps([*rows(8312, metric="rouge"), *rows(1, metric="qa_em")]))
    assert provide(settings, tmp_path).samples == 8313


def test_truncation_of_a_tokenizer_does_not_cut_prompts(tmp_path, model, model_record):
    from tokenizers import Tokenizer

    settings = DatasetSettings(source="tiny", model_record=model_record, calibration=True)
    whole = provide(settings, tmp_path).max_input_tokens
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(16)
    tokenizer.save(str(model / "tokenizer.json"))
    assert provide(settings, tmp_path).max_input_tokens == whole > 16


def test_a_file_of_records_is_taken_as_it_is(tmp_path, model_record):
    record = local(tmp_path, rows(input=""), model_record)
    assert (record.name, record.samples, record.max_input_tokens) == ("cnn_eval", SAMPLES, 3)
    assert record.sentences == "punkt_tab"


def test_a_file_of_columns_is_read_as_pandas_does(tmp_path):
    made = rows()
    columns = {name: {str(n): row[name] for n, row in enumerate(made)} for name in COLUMNS}
    assert local(tmp_path, columns).samples == SAMPLES
    assert rows_of(tmp_path / "cnn_eval.json") == made


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "not a JSON file"),
        ([], "holds no records"),
        (5, "holds no records"),
        ([1], "holds no records"),
        ({"input": {"0": "a"}}, "lacks tok_input, output"),
        ({"input": {"0": "a"}, "tok_input": {}, "output": {"0": "b"}}, "different lengths"),
        ([{"input": "a", "output": "b"}] * SAMPLES, "lacks tok_input"),
        ([{"input": "a", "output": "b", "tok_input": []}] * SAMPLES, "sample 0 is not usable"),
        ([{"input": "a", "output": None, "tok_input": [1]}] * SAMPLES, "sample 0 is not usable"),
        ([*rows(SAMPLES - 1), {"input": "a", "output": "b", "tok_input": [1, -1]}], f"sample {SAMPLES - 1} has -1"),
        ([*rows(SAMPLES - 1), {"input": "a", "output": "b", "tok_input": [1, 2.0]}], f"sample {SAMPLES - 1} has 2.0"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, value, words):
    with pytest.raises(DatasetError, match=words) as caught:
        local(tmp_path, value)
    assert caught.value.remedy
    assert not (tmp_path / DATASET_FILE).exists()


def test_token_ids_beyond_the_models_vocabulary_are_refused_where_no_text_is_given(tmp_path, model_record):
    made = rows(input="")
    made[5]["tok_input"] = [300]
    assert local(tmp_path, made).samples == SAMPLES  # nothing is known of the model
    with pytest.raises(DatasetError, match="sample 0 has no text") as caught:
        local(tmp_path, made, model_record)
    assert "sample 5 has token id 300, and the model's vocabulary has 300" in caught.value.cause


@pytest.mark.parametrize("count", [1, 10, 345, SAMPLES + 1])
def test_a_dataset_of_the_users_own_has_any_number_of_samples(tmp_path, count):
    record = local(tmp_path, rows(count))
    assert record.samples == record.whole(SAMPLES) == count
    assert record.whose == "your dataset's"


def test_what_a_dataset_cannot_be_made_of_is_told(tmp_path):
    with pytest.raises(DatasetError) as caught:
        provide(DatasetSettings(), tmp_path)
    assert "get,ml-model" in caught.value.remedy
    with pytest.raises(UsageError, match="relative"):
        provide(DatasetSettings(source="path", location="cnn_eval.json"), tmp_path)
    with pytest.raises(DatasetError, match="there is no dataset"):
        provide(DatasetSettings(source="path", location=str(tmp_path / "none")), tmp_path)
    with pytest.raises(UsageError):
        provide(DatasetSettings(benchmark="llama9"), tmp_path)


def test_a_broken_tokenizer_is_told(tmp_path, model, model_record):
    from cm4vllm.common.errors import ModelError

    write_tokenizer(model / "tokenizer.json")
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot read the tokenizer"):
        provide(DatasetSettings(source="tiny", model_record=model_record, calibration=True), tmp_path)


@pytest.mark.parametrize(
    ("calibration", "flag", "file"),
    [
        (False, "--dataset_path=cnn_eval.json", "cnn_eval.json"),
        (True, "--calibration_path=cnn_dailymail_calibration.json", "cnn_dailymail_calibration.json"),
    ],
)
def test_a_dataset_that_cannot_be_fetched_is_named_with_the_flag_that_gives_it(
    tmp_path, monkeypatch, calibration, flag, file
):
    real = catalogue()
    name = real.benchmark("llama3.1-8b").calibration if calibration else real.benchmark("llama3.1-8b").dataset
    gone = msgspec.structs.replace(real.dataset(name), mlcommons="http://127.0.0.1:9/metadata/gone.uri")
    monkeypatch.setattr(
        "cm4vllm.assets.datasets.catalogue",
        lambda: msgspec.structs.replace(real, datasets={**real.datasets, name: gone}),
    )
    with pytest.raises(DownloadError, match=f"the dataset {name} could not be fetched") as caught:
        provide(DatasetSettings(source="mlcommons", calibration=calibration), tmp_path)
    assert flag in caught.value.remedy
    assert f"{file} (md5:" in caught.value.remedy


@pytest.mark.parametrize("calibration", [False, True])
def test_a_real_model_gets_no_stand_in_where_no_source_is_named(tmp_path, monkeypatch, model_record, calibration):
    asked = []
    for name in ("_mlcommons", "stand_in_dataset"):
        monkeypatch.setattr(f"cm4vllm.assets.datasets.{name}", lambda *_, name=name: asked.append(name) or made)
    settings = DatasetSettings(model_record=model_record, calibration=calibration, benchmark="llama3.1-8b-edge")
    made = local(tmp_path, rows())
    provide(settings, tmp_path)
    assert asked == ["_mlcommons"]
    tiny = msgspec.structs.replace(read_record(Path(model_record), ModelRecord), source=STAND_IN_SOURCE)
    quantised = msgspec.structs.replace(tiny, source=f"cm4vllm-tiny quantised here by llm-compressor; {tiny.source}")
    for record in (tiny, quantised):
        write_record(Path(model_record), record)
        provide(settings, tmp_path)
    assert asked[1:] == ["stand_in_dataset"] * 2

"""The stand-ins are used where nothing else was asked for, and only together."""

from pathlib import Path

import pytest
import yaml

from cm4vllm.assets.packaged import smollm2
from cm4vllm.assets.tiny.stand_ins import STAND_INS
from cm4vllm.campaign import asset_sources
from cm4vllm.campaign.links import LinkInputs
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import write_record
from cm4vllm.records.assets import ModelRecord
from cm4vllm.rules import catalogue

BENCHMARK = "llama3.1-8b"
ROOT = Path(__file__).parents[2]


def sources(benchmark, *, name="", served=False, **given):
    asked = {"vllm_model_name": name, "api_server": "http://127.0.0.1:8000" if served else "", **given}
    return asset_sources.sources(asset_sources.AssetInputs(model=benchmark, **asked))


@pytest.mark.parametrize(
    ("given", "model", "dataset", "calibration"),
    [
        ({}, "_tiny", "_tiny", "_tiny"),
        ({"name": "cm4vllm-tiny"}, "_tiny", "_tiny", "_tiny"),
        ({"name": "tiny", "served": True}, "_tiny", "_tiny", "_tiny"),
        ({"model_source": "_tiny"}, "_tiny", "_tiny", "_tiny"),
        ({"name": "owner/model"}, "_hf.owner/model", "_mlcommons", "_mlcommons"),
        ({"name": "llama-3.1-8b-instruct"}, "_catalogue.llama-3.1-8b-instruct", "_mlcommons", "_mlcommons"),
        ({"model_source": "_path./m", "name": "/m"}, "_path./m", "_mlcommons", "_mlcommons"),
        ({"name": "owner/model", "dataset_path": "/d.json"}, "_hf.owner/model", "_path./d.json", "_mlcommons"),
        ({"name": "owner/model", "calibration_path": "/c.json"}, "_hf.owner/model", "_mlcommons", "_path./c.json"),
        # The user says so.
        ({"name": "owner/model", "dataset": "tiny"}, "_hf.owner/model", "_tiny", "_mlcommons"),
        ({"model_source": "_tiny", "dataset_path": "/d.json"}, "_tiny", "_path./d.json", "_tiny"),
        ({"model_source": "_tiny", "dataset": "benchmark"}, "_tiny", "_mlcommons", "_tiny"),
        # Random weights take any prompt; the stand-in's need no network.
        ({"model_source": "_dummy"}, "_dummy.llama3.1-8b", "_tiny", "_mlcommons"),
        ({"model_source": "_dummy", "dataset": "benchmark"}, "_dummy.llama3.1-8b", "_mlcommons", "_mlcommons"),
        # SmolLM2 has the articles, where it is asked for by its name alone; others have them where the user says so.
        ({"name": "smollm2"}, "_smollm2", "_articles", "_mlcommons"),
        ({"model_source": "_smollm2"}, "_smollm2", "_articles", "_mlcommons"),
        ({"model_source": "_smollm2", "dataset": "tiny"}, "_smollm2", "_tiny", "_mlcommons"),
        ({"model_source": "_smollm2", "dataset": "benchmark"}, "_smollm2", "_mlcommons", "_mlcommons"),
        ({"model_source": "_smollm2", "dataset_path": "/d.json"}, "_smollm2", "_path./d.json", "_mlcommons"),
        ({"name": "owner/model", "dataset": "articles"}, "_hf.owner/model", "_articles", "_mlcommons"),
        ({"name": "smollm2", "served": True}, "_served.smollm2", "_mlcommons", "_mlcommons"),
        # With a server that runs, the name is the server's.
        ({"model_source": "_hf.owner/one", "name": "two", "served": True}, "_hf.owner/one", "_mlcommons", "_mlcommons"),
        ({"name": "owner/model", "served": True}, "_served.owner/model", "_mlcommons", "_mlcommons"),
    ],
)
def test_where_model_and_datasets_come_from(given, model, dataset, calibration):
    asset_sources = sources(BENCHMARK, **given)
    assert (asset_sources.model, asset_sources.dataset, asset_sources.calibration) == (model, dataset, calibration)
    assert asset_sources.named is (given != {})
    assert asset_sources.needs_sentence_model is (dataset not in ("_tiny", "_articles"))


@pytest.mark.parametrize(
    ("given", "performance"),
    [
        ({"name": "owner/model"}, "_mlcommons"),
        ({"name": "owner/model", "dataset": "tiny"}, "_tiny"),
        ({"name": "owner/model", "performance_dataset_path": "/p.parquet"}, "_path./p.parquet"),
    ],
)
def test_performance_runs_may_have_a_dataset_of_their_own(given, performance):
    assert sources("gpt-oss-120b", **given).performance == performance


@pytest.mark.parametrize(
    ("benchmark", "given", "word"),
    [(BENCHMARK, {"name": "owner/model"}, "has one dataset"), ("gpt-oss-120b", {}, "but no model")],
)
def test_such_a_dataset_is_refused_where_it_has_no_place(benchmark, given, word):
    with pytest.raises(UsageError, match=word):
        sources(benchmark, performance_dataset_path="/p.parquet", **given)


def test_a_folder_is_taken_for_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    assert sources(BENCHMARK, name="owner").model == f"_path.{tmp_path}/owner"
    for name in ("tiny", "smollm2"):
        (tmp_path / name).mkdir()
        assert sources(BENCHMARK, name=name).model == f"_path.{tmp_path}/{name}"


@pytest.mark.parametrize(
    "given",
    [
        {"dataset_path": "/d.json", "served": True},
        {"calibration_path": "/c.json"},
        {"model_source": "_tiny", "name": "owner/model"},
        {"model_source": "_hf.owner/one", "name": "owner/two"},
    ],
)
def test_what_contradicts_itself_is_refused(given):
    with pytest.raises(UsageError) as caught:
        sources(BENCHMARK, **given)
    assert caught.value.remedy


def test_what_a_download_needs_is_said_before():
    gated = sources(BENCHMARK, name="llama-3.1-8b-instruct")
    assert "Llama 3.1 Community License" in gated.model_notes[0]
    assert "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct; HF_TOKEN" in gated.model_notes[0]
    assert sources(BENCHMARK, name="meta-llama/Llama-3.1-8B-Instruct").model_notes == gated.model_notes
    members = sources(BENCHMARK, model_source="_mlcommons.llama-3.1-8b-instruct")
    assert "CF_ACCESS_TOKEN" in members.model_notes[0]
    assert sources(BENCHMARK).model_notes == ()
    assert sources(BENCHMARK, model_source="_dummy.llama-3.1-8b-instruct").model_notes == ()
    (brought,) = gated.brings("dataset")
    assert ("cnn_eval.json" in brought.what, brought.disk_bytes) == (True, 267_000_000)
    assert "calibration" in gated.brings("calibration")[0].what
    assert sources(BENCHMARK, name="a/b", dataset_path="/d").brings("dataset") == ()


@pytest.mark.parametrize("asked", ["", "_tiny"])
def test_a_benchmark_of_speech_has_a_stand_in_of_its_own(asked):
    assert sources("whisper", name="tiny-whisper", served=True).model == "_tiny-whisper"
    asset_sources = sources("whisper", model_source=asked)
    assert (asset_sources.model, asset_sources.dataset, asset_sources.named) == ("_tiny-whisper", "_tiny", bool(asked))
    assert sources("whisper", name="whisper-large-v3").dataset == "_mlcommons"


@pytest.mark.parametrize("asked", ["_dummy", "_dummy.whisper-large-v3"])
def test_random_weights_do_not_stand_for_a_model_of_speech(asked):
    with pytest.raises(UsageError, match="random weights cannot stand for the model of whisper"):
        sources("whisper", model_source=asked)


@pytest.mark.parametrize(
    ("benchmark", "given"),
    [
        ("whisper", {"name": "cm4vllm-tiny", "served": True}),
        ("whisper", {"name": "cm4vllm-tiny-vision", "model_source": "_tiny"}),
        ("qwen3-vl-235b-a22b", {"name": "cm4vllm-tiny-whisper"}),
        (BENCHMARK, {"model_source": "_tiny-vision"}),
    ],
)
def test_the_stand_in_of_other_benchmarks_is_refused(benchmark, given):
    with pytest.raises(UsageError, match="cannot stand for the model of") as refused:
        sources(benchmark, **given)
    assert sources(benchmark).model == f"_{catalogue().benchmark(benchmark).stand_in}"
    assert STAND_INS[catalogue().benchmark(benchmark).stand_in].name in refused.value.remedy


@pytest.mark.parametrize(("benchmark", "megabytes"), [(BENCHMARK, 11), ("whisper", 157), ("qwen3-vl-235b-a22b", 24)])
def test_the_size_of_a_made_dataset_is_that_of_its_kind(benchmark, megabytes):
    (made,) = sources(benchmark).brings("dataset")
    assert (made.how, round(made.disk_bytes / 1e6)) == ("make", megabytes)


def test_the_articles_are_made_and_their_size_is_known():
    (made,) = sources(BENCHMARK, name="smollm2").brings("dataset")
    assert (made.how, made.what, made.disk_bytes) == ("make", "the dataset of 200 articles", 300_000)


def test_a_link_takes_the_articles_for_a_record_of_smollm2(tmp_path):
    path = tmp_path / "model.json"
    write_record(path, ModelRecord(name="m", path="/m", source=smollm2.SOURCE, sha256="0"))
    of_link = LinkInputs(model_record=str(path)).sources()
    assert (of_link.model, of_link.dataset) == ("_smollm2", "_articles")


def test_each_stand_in_is_of_the_catalogue_and_of_the_recipe_that_makes_it():
    variations = yaml.safe_load((ROOT / "script/get-ml-model/_cm.yaml").read_text())["variations"]
    assert set(STAND_INS) <= set(variations)
    assert {benchmark.stand_in for benchmark in catalogue().benchmarks.values()} == set(STAND_INS)


@pytest.mark.parametrize(
    "name",
    [
        *("/none", "./none", "../none/here", "models/q4.gguf", "there.bin", "~/none-of-this-name"),
        "owner/Model-Q4_K_M.GGUF",
    ],
)
def test_a_name_that_can_only_be_a_path_is_one_though_no_folder_has_it(name, tmp_path, monkeypatch):
    (tmp_path / "there.bin").touch()
    monkeypatch.chdir(tmp_path)
    assert sources(BENCHMARK, name=name).model == f"_path.{Path(name).expanduser().absolute()}"
    assert sources(BENCHMARK, name="owner/none").model == "_hf.owner/none"

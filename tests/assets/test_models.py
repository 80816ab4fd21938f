"""Models of each source, and what is said when one cannot be had."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from cm4vllm.assets.models import MODEL_FILE, ModelSettings, check_unchanged, model_exports, provide
from cm4vllm.assets.tiny.stand_ins import STAND_INS
from cm4vllm.assets.tiny.training import STAND_IN
from cm4vllm.common.errors import InstallError, ModelError, UsageError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.records import read_record
from cm4vllm.records.assets import ModelRecord


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


def test_a_folder_called_as_a_benchmark_does_not_become_its_model(model, entry):
    folder = model.rename(model.with_name("llama3_1-8b"))
    assert local(folder, entry).name == "local-llama3_1-8b"


def test_the_weights_of_the_tiny_model_are_known_under_any_name(model, entry):
    assert not local(model, entry).is_stand_in
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **STAND_IN}))
    folder = model.rename(model.with_name("Llama-2-70b-chat-hf-FP8"))
    record = local(folder, entry)
    assert record.is_stand_in and record.name == folder.name and record.min_tokens == 2
    served = provide(ModelSettings(source="served", location="owner/Big-Model", served_folder=str(folder)), entry)
    assert served.is_stand_in and served.name == "Big-Model" and served.path == str(folder)
    assert served.source.startswith("served as owner/Big-Model from the folder Llama-2-70b-chat-hf-FP8; trained here")


def test_a_model_served_under_a_benchmarks_name_is_not_that_benchmarks(model, entry):
    asked = ModelSettings(source="served", location="llama3.1-8b", served_folder=str(model))
    assert provide(asked, entry).name == "local-llama3.1-8b"


def test_files_that_changed_since_are_noticed(model, entry):
    record = local(model, entry)
    check_unchanged(record)
    (model / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="have changed") as caught:
        check_unchanged(record)
    assert "--renew" in caught.value.remedy


def test_a_change_in_place_that_restores_size_and_time_is_noticed(model, entry):
    record, weights = local(model, entry), model / "model.safetensors"
    before, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    time.sleep(0.02)  # a tick of the file system's clock
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelError, match="have changed"):
        check_unchanged(record)


def test_the_same_content_with_other_times_is_the_same_model(model, entry, tmp_path):
    """The check raises ModelError for other content."""
    record = local(model, entry)
    copied = shutil.copytree(model, tmp_path / "copied")
    check_unchanged(msgspec.structs.replace(record, path=str(copied)))


def test_a_folder_without_a_model_leaves_no_record(tmp_path, entry):
    with pytest.raises(ModelError):
        local(tmp_path / "none", entry)
    assert not (entry / MODEL_FILE).exists()


def test_without_vllm_the_tiny_model_says_how_it_is_trained_once(entry):
    with pytest.raises(ModelError) as caught:
        provide(ModelSettings(source="tiny"), entry)
    assert "cm run script --tags=get,ml-model,_tiny" in caught.value.remedy


def test_a_python_without_torch_is_told(entry, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\"\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(InstallError) as caught:
        provide(ModelSettings(source="tiny", python=str(python)), entry)
    assert "No module named 'torch'" in caught.value.cause
    assert not (entry / STAND_INS["tiny"].name).exists()


def test_a_training_that_is_killed_leaves_no_model(entry, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'step 100/1050 loss 2.0 3 s'\nkill -9 $$\n")
    python.chmod(0o755)
    with pytest.raises(ModelError, match="training") as caught:
        provide(ModelSettings(source="tiny", python=str(python)), entry)
    assert "killed by SIGKILL" in caught.value.cause
    assert "step 100/1050" in caught.value.cause
    assert not (entry / STAND_INS["tiny"].name).exists()


def test_an_unknown_source_and_an_impossible_name_are_refused(entry):
    with pytest.raises(UsageError):
        provide(ModelSettings(source="cloud"), entry)
    with pytest.raises(UsageError, match="not the name"):
        provide(ModelSettings(source="hf", location="https://hub/owner/name"), entry)

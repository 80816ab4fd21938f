"""What flags name is looked at before anything is downloaded, installed or started."""

import json
import os

import pytest

from cm4vllm.campaign.preflight import absolute_paths, preflight
from cm4vllm.common.errors import DatasetError, UsageError


def test_paths_mean_the_same_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "model").mkdir()
    given = {"CM_DATASET_FILE": "cnn_eval.json", "CM_NLTK_DATA_SOURCE": "~/punkt_tab.zip",
             "CM_VLLM_SERVER_MODEL_NAME": "model", "CM_MLPERF_SUBMITTER": "model", "CM_MLPERF_SYSTEM_FILE": ""}
    assert absolute_paths(given) == {
        "CM_DATASET_FILE": str(tmp_path / "cnn_eval.json"), "CM_NLTK_DATA_SOURCE": "/home/me/punkt_tab.zip",
        "CM_VLLM_SERVER_MODEL_NAME": str(tmp_path / "model")}


@pytest.mark.parametrize("given", [
    {"CM_VLLM_SERVER_MODEL_NAME": "owner/model"},
    {"CM_VLLM_SERVER_MODEL_NAME": "model", "CM_MLPERF_INFERENCE_API_SERVER": "http://a"},
])
def test_a_name_is_no_path(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert absolute_paths(given) == {}


def test_what_is_sound_passes(tmp_path):
    system, dataset = tmp_path / "system.yaml", tmp_path / "data.json"
    system.write_text("cooling: air\n")
    dataset.write_text(json.dumps([{"input": "a", "tok_input": [1], "output": "b"}]))
    preflight({"CM_MLPERF_SYSTEM_FILE": str(system), "CM_DATASET_FILE": str(dataset)})


@pytest.mark.parametrize(("name", "key", "error"), [
    ("system.yaml", "CM_MLPERF_SYSTEM_FILE", UsageError), ("data.json", "CM_DATASET_FILE", DatasetError),
    ("data.pkl", "CM_CALIBRATION_DATASET_FILE", DatasetError),
])
def test_a_file_that_is_not_what_it_should_be_is_refused(name, key, error, tmp_path):
    with pytest.raises(error):
        preflight({key: str(tmp_path / name)})
    (tmp_path / name).write_text("colling: air\n")
    with pytest.raises(error):
        preflight({key: str(tmp_path / name)})


def test_more_workers_than_cores_are_refused_where_a_server_is_started(monkeypatch):
    monkeypatch.setattr("cm4vllm.serving.launch.detect_gpus", list)
    env = {"CM_VLLM_SERVER_TP_SIZE": str(len(os.sched_getaffinity(0)) + 1)}
    with pytest.raises(UsageError, match="cores"):
        preflight(env)
    preflight({**env, "CM_MLPERF_INFERENCE_API_SERVER": "http://127.0.0.1:1"})
    monkeypatch.setattr("cm4vllm.serving.launch.detect_gpus", lambda: ["a GPU"])
    preflight(env)  # whether vLLM will use the GPU is known later

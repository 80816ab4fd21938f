"""The training with the real torch, cut short: whole models, and the same bytes each time."""

import json
import subprocess

import pytest

from cm4vllm.assets.tiny import text_training, training
from cm4vllm.assets.tiny.tiny_model import training_data
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.records.weights.checkpoint import read_checkpoint

PAIRS = 160


@pytest.mark.e2e
@pytest.mark.xdist_group("vllm-2")
def test_training_twice_gives_the_same_whole_model(vllm_python, tmp_path):
    stages = tmp_path / "stages.json"
    stages.write_text(json.dumps([stage[:PAIRS] for stage in training_data()]))
    for name in ("first", "second"):
        words = [vllm_python, "-P", training.__file__, f"--subject={text_training.__file__}", f"--data={stages}"]
        subprocess.run([*words, f"--output={tmp_path / name}"], capture_output=True, text=True, check=True)
    assert sha256_of_tree(tmp_path / "first") == sha256_of_tree(tmp_path / "second")
    checkpoint = read_checkpoint(tmp_path / "first")
    assert (checkpoint.architecture, checkpoint.weight_data_types) == ("LlamaForCausalLM", "fp32")
    assert (checkpoint.vocabulary, checkpoint.max_positions) == (text_training.VOCABULARY, 65536)
    assert checkpoint.parameters == 492_160

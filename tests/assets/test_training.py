"""The training with the real torch, cut short: whole models, and the same bytes each time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.assets import training
from cm4vllm.assets.checkpoint import read_checkpoint
from cm4vllm.assets.tiny_model import training_stages
from cm4vllm.common.files import sha256_of_tree

PAIRS = 160


@pytest.fixture(scope="module")
def vllm_python(tmp_path_factory):
    """The Python of vLLM's environment, from the CM home that `make setup` prepared; installed there if need be."""
    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test`")
    done = subprocess.run(
        [Path(sys.executable).with_name("cm"), "run", "script", "--tags=get,vllm,_cpu", "--quiet", "--out=json"],
        cwd=tmp_path_factory.mktemp("cm"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index("{"):])["new_env"]["CM_VLLM_PYTHON_BIN_WITH_PATH"]


@pytest.mark.e2e
@pytest.mark.xdist_group("vllm-2")
def test_training_twice_gives_the_same_whole_model(vllm_python, tmp_path):
    stages = tmp_path / "stages.json"
    stages.write_text(json.dumps([stage[:PAIRS] for stage in training_stages()]))
    for name in ("first", "second"):
        words = [vllm_python, "-P", training.__file__, f"--stages={stages}", f"--output={tmp_path / name}"]
        subprocess.run(words, capture_output=True, text=True, check=True)
    assert sha256_of_tree(tmp_path / "first") == sha256_of_tree(tmp_path / "second")
    found = read_checkpoint(tmp_path / "first")
    assert (found.architecture, found.weight_data_types) == ("LlamaForCausalLM", "fp32")
    assert (found.vocabulary, found.max_positions) == (training.VOCABULARY, 4096)
    assert found.parameters == 492_160

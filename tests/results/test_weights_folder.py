"""Weights at hand against what a tree claims of them: small safetensors files, whole and malformed."""

import hashlib
import json
import math
import shutil
import struct
from typing import Any

import good_tree
import msgspec
import pytest

from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.records.weights.checkpoint import read_weights
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.checks import served_weights
from cm4vllm.rules import catalogue

VALUE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}
#: A llama of 84 parameters.
SMALL = {
    "model_type": "llama",
    "hidden_size": 2,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "vocab_size": 8,
    "num_attention_heads": 1,
}


def save(path, tensors):
    header: dict[str, Any] = {}
    at = 0
    for name, (kind, shape) in tensors.items():
        size = VALUE_BYTES[kind] * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def model(folder, kind="F8_E4M3", count=78, config=None):
    """A model of `count` parameters in two files."""
    save(folder / "model-00001-of-00002.safetensors", {"a.weight": (kind, [count - 8]), "a.weight_scale": ("F32", [3])})
    save(folder / "model-00002-of-00002.safetensors", {"b.weight": ("BF16", [2, 4])})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def made(neural_magic, tmp_path_factory):
    return good_tree.make(tmp_path_factory.mktemp("good") / "closed" / "Somebody", neural_magic)


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A good tree whose benchmark's own model is of 78 parameters."""
    home = tmp_path / "tree" / made.parent.name / made.name
    shutil.copytree(made, home)
    entry = catalogue().model("llama-2-70b-chat")
    with_config = msgspec.structs.replace(entry, config=SMALL)
    known = catalogue()
    changed = msgspec.structs.replace(known, models={**known.models, "llama-2-70b-chat": with_config})
    monkeypatch.setattr("cm4vllm.results.checks.served_weights.catalogue", lambda: changed)
    assert read_architecture(SMALL).parameters == 78
    return home


def codes_of(home, weights, of=""):
    checked = check_tree(home.parents[1], weights=weights, weights_of=of).findings
    return {f"{finding.code} {finding.severity}" for finding in checked}


def state(home, **values):
    for path in home.rglob("measurements.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_weights_that_are_as_claimed_leave_nothing_to_say(home, tmp_path):
    assert codes_of(home, model(tmp_path / "w")) == set()


def test_weights_are_only_those_of_the_results_that_are_named(home, tmp_path):
    shutil.copytree(home / "results/4xH100_vLLM/llama2-70b-99", home / "results/4xH100_vLLM/another")
    weights = model(tmp_path / "w")
    with pytest.raises(UsageError, match="several models"):
        codes_of(home, weights)
    with pytest.raises(UsageError, match="without the weights of those results"):
        check_tree(home.parents[1], weights_of="llama3")
    with pytest.raises(UsageError, match="no result is named by 'llama3'"):
        codes_of(home, weights, "llama3")
    assert "MODEL-NOT-VERIFIABLE note" in codes_of(home, weights, "4xH100_vLLM/llama2*")


@pytest.mark.parametrize(
    ("kind", "stated", "finding"),
    [
        ("F8_E4M3", "fp16", "SERVED-TYPE error"),
        ("F8_E4M3", "FP8 (E4M3)", ""),
        ("F16", "fp8", "SERVED-TYPE warning"),
        ("BF16", "fp16", "SERVED-TYPE warning"),
        ("BF16", "bfloat16", ""),
        ("F16", "float16", ""),
        ("BF16", "as served", ""),
    ],
)
def test_the_type_in_the_headers_is_compared_with_the_stated_one(home, tmp_path, kind, stated, finding):
    state(home, weight_data_types=stated)
    assert {text for text in codes_of(home, model(tmp_path / "w", kind)) if "SERVED" in text} == ({finding} - {""})


@pytest.mark.parametrize(("count", "wrong"), [(78, False), (80, False), (88, True), (40, True)])
def test_parameters_are_those_of_the_benchmarks_model(home, tmp_path, count, wrong):
    assert ("SERVED-PARAMETERS error" in codes_of(home, model(tmp_path / "w", count=count))) is wrong


def test_parameters_of_a_mapped_model_are_those_of_its_name(home, tmp_path):
    home = home.parent.rename(home.parents[1] / "open") / home.name
    (home / "results/4xH100_vLLM/llama2-70b-99").rename(home / "results/4xH100_vLLM/my-llama-7b")
    (home / "model_mapping.json").write_text(json.dumps({"my-llama-7b": "llama2-70b-99"}))
    assert "SERVED-PARAMETERS error" in codes_of(home, model(tmp_path / "w"))


@pytest.mark.parametrize(
    ("config", "tensors", "parameters", "kind"),
    [
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            {
                "q.qweight": ("I32", [4, 8]),
                "q.qzeros": ("I32", [8]),
                "q.scales": ("F16", [4]),
                "q.g_idx": ("I32", [9]),
                "e.weight": ("F16", [10]),
            },
            4 * 8 * 8 + 10,
            "int4",
        ),
        (
            {"quantization_config": {"quant_method": "mxfp4"}},
            {"x_blocks": ("U8", [2, 16]), "x_scales": ("U8", [2]), "e.weight": ("BF16", [6])},
            2 * 16 * 2 + 6,
            "fp4",
        ),
        ({}, {"x.qweight": ("I32", [4])}, None, ""),
        (None, {"e.weight": ("BF16", [6])}, 6, "bf16"),
    ],
)
def test_packed_weights_are_counted_by_their_bits(tmp_path, config, tensors, parameters, kind):
    save(tmp_path / "w" / "model.safetensors", tensors)
    if config is not None:
        (tmp_path / "w" / "config.json").write_text(json.dumps(config))
    read = read_weights(tmp_path / "w")
    assert (read.parameters, read.data_type) == (parameters, kind)


def test_weights_stated_by_their_digest_are_those(home, tmp_path):
    weights = model(tmp_path / "w")
    state(home, model_sha256=sha256_of_tree(weights))
    assert codes_of(home, weights) == {"SERVED-DIGESTS note"}
    state(home, model_sha256="0" * 64)
    assert codes_of(home, weights) == {"SERVED-DIGESTS error"}


def test_weights_stated_as_the_references_have_the_published_digests(home, tmp_path, monkeypatch):
    weights = model(tmp_path / "w", "F16")
    state(home, weight_data_types="fp16", weight_transformations="none")
    published = {path.name: f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}" for path in weights.iterdir()}
    assert "SERVED-DIGESTS warning" in codes_of(home, weights)  # not in as many files as the published ones
    entry = catalogue().model("llama-2-70b-chat")
    monkeypatch.setattr(served_weights, "published_model", lambda result: (entry, published))
    assert "SERVED-DIGESTS note" in codes_of(home, weights)
    published["model-00002-of-00002.safetensors"] = "md5:0"
    assert "SERVED-DIGESTS error" in codes_of(home, weights)
    (weights / "model-00001-of-00002.safetensors").rename(weights / "another.safetensors")
    assert "SERVED-DIGESTS warning" in codes_of(home, weights)


def tamper(old, new):
    def change(content):
        (length,) = struct.unpack("<Q", content[:8])
        text = content[8 : 8 + length].decode().replace(old, new).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:7],
        lambda content: content[:-1],
        lambda content: content + b"0",
        lambda content: struct.pack("<Q", 2**63) + content[8:],
        lambda content: struct.pack("<Q", 3) + content[8:],
        lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        lambda content: struct.pack("<Q", 200_000) + b"[" * 200_000,
        tamper("[2, 4]", "[2, 4, 1000000]"),
        tamper("[2, 4]", "[-2, -4]"),
        tamper("[2, 4]", "[true, 8]"),
        tamper("[2, 4]", '"8"'),
        tamper("[0, 16]", "[0]"),
        tamper("[0, 16]", "[16, 0]"),
        tamper('"dtype"', '"type"'),
        tamper("[0, 16]", "[0, 1" + "0" * 400 + "]"),
    ],
)
def test_a_malformed_file_is_a_finding_and_no_crash(tmp_path, damage):
    path = model(tmp_path / "w") / "model-00002-of-00002.safetensors"
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    with pytest.raises(ModelError) as caught:
        read_weights(tmp_path / "w")
    assert caught.value.cause and caught.value.remedy


def test_weights_that_cannot_be_read_are_a_finding(home, tmp_path):
    assert "SERVED-UNREADABLE error" in codes_of(home, tmp_path / "none")
    weights = model(tmp_path / "w")
    (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"c": "model-3.safetensors"}}))
    assert "SERVED-UNREADABLE error" in codes_of(home, weights)

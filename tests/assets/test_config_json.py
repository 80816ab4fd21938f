"""A config.json that nobody checked: every value that is not of its kind is named, and none ends in a traceback."""

import copy
import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cm4vllm.common.errors import CmError, ModelError
from cm4vllm.records.weights.checkpoint import quantised_to, read_checkpoint, unset_scales
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue
from cm4vllm.serving.fit.advice import AdviceSettings, advice
from conftest import safetensors

#: JSON texts, as some cannot be written by Python.
ODD = [
    "null",
    "true",
    '"x"',
    '""',
    "[]",
    "[1]",
    '["x"]',
    "{}",
    '{"a": 1}',
    "-1",
    "0",
    "1",
    "0.5",
    "3.0",
    "1e308",
    "1e999",
    "NaN",
    "-Infinity",
    "1" * 400,
    '"\\u0000"',
    '"\\ud800"',
]
DEEP = "[" * 100_000
HUGE = "1" * 5000
WHOLE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "float32",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "bits": 4,
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
    },
    "text_config": None,
}


def places(config: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, (*before, key))


def with_odd(config: dict[str, Any], place: tuple[str, ...], text: str) -> str:
    changed = copy.deepcopy(config)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "(odd)"
    return json.dumps(changed).replace('"(odd)"', text)


def without_traceback(function, *given) -> bool:
    """Return True for a refused call; a refusal must be an error with a name and a text that can be shown."""
    try:
        function(*given)
    except CmError as error:
        str(error).encode()
        return True
    return False


@pytest.mark.parametrize("place", list(places(WHOLE)), ids=".".join)
def test_no_odd_value_ends_in_a_traceback(model, place, capsys):
    refused = 0
    for text in (*ODD, DEEP, HUGE):
        (model / "config.json").write_text(with_odd(WHOLE, place, text))
        for function in (read_checkpoint, quantised_to):
            refused += without_traceback(function, model)
        for target in (model, model / "config.json"):
            refused += without_traceback(advice, AdviceSettings(model=str(target), gpus=1, gpu_memory_gib=80))
    assert refused >= 8  # at least what is nested too deep, and the number of too many digits, by each


@pytest.mark.parametrize("name", [name for name in catalogue().models if catalogue().config(name)])
def test_no_odd_value_of_a_known_architecture_ends_in_a_traceback(name):
    config, refused = catalogue().config(name), 0
    for place in places(config):
        for text in ODD:
            refused += without_traceback(read_architecture, json.loads(with_odd(config, place, text)))
    assert refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": math.inf}, "num_hidden_layers is inf"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"architectures": [1]}, "architectures is a list"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'"),
    ],
)
def test_the_key_is_named(model, change, words):
    (model / "config.json").write_text(json.dumps({**WHOLE, **change}))
    with pytest.raises(ModelError, match=words) as caught:
        read_checkpoint(model)
        read_architecture({**WHOLE, **change})
    assert caught.value.remedy


def test_a_whole_number_may_be_written_as_a_float():
    assert read_architecture({**WHOLE, "num_hidden_layers": 2.0}) == read_architecture(WHOLE)


@pytest.mark.parametrize(
    "text",
    ['{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "\\u0000"}}', "[]", DEEP, HUGE],
    ids=range(6),
)
def test_an_odd_index_of_shards_is_refused(model, text):
    (model / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError):
        read_checkpoint(model)


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "5",
        '{"a": 5}',
        '{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}',
        DEEP,
        HUGE,
        '{"a": {"dtype": "F32", "shape": 4, "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 5]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": "04"}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}',
        '{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
    ],
    ids=range(13),
)
def test_an_odd_header_of_weights_is_refused(model, header):
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(4))
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        read_checkpoint(model)


def test_a_scale_that_ends_within_a_value_is_refused(model):
    safetensors(model / "model.safetensors", {"0.k_scale": ("F32", [1], 5)})
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        unset_scales(model)

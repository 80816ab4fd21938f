"""The description that a model folder gives of itself, and the refusal of damaged folders."""

import copy
import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cm4vllm.common.errors import CmError, ModelError
from cm4vllm.records.weights.checkpoint import fingerprint, quantised_to, read_checkpoint, unset_scales
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue
from cm4vllm.serving.fit.advice import AdviceSettings, advice
from conftest import CONFIG, safetensors


def configure(model, **more):
    (model / "config.json").write_text(json.dumps({**CONFIG, **more}))


def test_parameters_and_data_type_come_from_the_headers_of_all_shards(model):
    checkpoint = read_checkpoint(model)
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert (checkpoint.vocabulary, checkpoint.max_positions) == (300, 64)
    assert checkpoint.parameters == 42
    assert checkpoint.weight_data_types == "bf16"
    safetensors(model / "model-2.safetensors", {"c": ("BF16", [8], 16)})
    assert read_checkpoint(model).parameters == 50


def test_a_nested_text_configuration_is_read(model):
    configure(model, vocab_size=None, text_config={"vocab_size": 7, "max_position_embeddings": 9})
    assert (read_checkpoint(model).vocabulary, read_checkpoint(model).max_positions) == (7, 9)


def compressed(bits, kind):
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": bits, "type": kind}}}}


@pytest.mark.parametrize(
    ("quantisation", "data_type"),
    [
        (compressed(8, "int"), "int8"),
        (compressed(8, "float"), "fp8"),
        (compressed(4, "int"), "int4"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "fp4"),
        ({"quant_method": "mxfp4"}, "fp4"),
    ],
)
def test_the_data_type_of_quantised_weights_comes_from_the_configuration(model, quantisation, data_type):
    configure(model, quantization_config=quantisation)
    assert read_checkpoint(model).weight_data_types == data_type


def test_packed_weights_do_not_tell_their_number(model):
    configure(model, quantization_config={"quant_method": "gptq", "bits": 4})
    assert read_checkpoint(model).parameters is None


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_missing_file_is_named_with_a_remedy(model, file, words):
    (model / file).unlink()
    with pytest.raises(ModelError, match=words) as caught:
        read_checkpoint(model)
    assert caught.value.cause
    assert caught.value.remedy


def test_a_shard_that_the_index_names_must_be_there_and_weights_of_another_format_are_named(model):
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00002.safetensors"}}))
    with pytest.raises(ModelError, match="weights are missing") as caught:
        read_checkpoint(model)
    assert "model-00002.safetensors" in caught.value.cause
    index.unlink()
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(ModelError) as caught:
        read_checkpoint(model)
    assert "pytorch_model.bin" in caught.value.cause


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:20], lambda data: b""]
)
def test_half_a_weights_file_is_refused(model, damage):
    path = model / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        read_checkpoint(model)


def test_weights_that_may_not_be_read_are_not_called_damaged(model):
    (model / "model.safetensors").chmod(0)
    program = (
        "import os, pathlib, sys\n"
        "from cm4vllm.records.weights.checkpoint import read_checkpoint\n"
        "from cm4vllm.common.errors import ModelError\n"
        "folder = pathlib.Path(sys.argv[1]); os.chdir(folder)\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "try: read_checkpoint(pathlib.Path('.'))\n"
        "except ModelError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True, cwd="/"
    )
    assert "model.safetensors cannot be read" in done.stdout and "permission to read" in done.stdout, done


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_broken_configuration_is_refused(model, text):
    (model / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_checkpoint(model)


@pytest.mark.parametrize(
    "value",
    [0.0, -0.01, float("nan"), float("inf"), 2.8e-45, 3.4e38],
    ids=["zero", "negative", "nan", "infinite", "denormal", "huge"],
)
@pytest.mark.parametrize("name", ["self_attn.k_scale", "self_attn.v_scale", "mlp.up_proj.input_scale"])
def test_a_scale_that_no_calibration_has_set_is_named(model, name, value):
    scale = struct.pack("<f", 0.01)
    good = {"0.self_attn.k_scale": ("F32", [1], scale), "2.self_attn.v_scale": ("F32", [], scale)}
    unset = {f"1.{name}": ("F32", [1], struct.pack("<f", value))}
    safetensors(model / "model-2.safetensors", {"a": ("BF16", [2], 4), **good, **unset})
    assert unset_scales(model) == [f"1.{name}"]


@pytest.mark.parametrize(
    ("data_type", "scale"),
    [("F32", struct.pack("<f", 0.02)), ("F16", struct.pack("<e", 0.02)), ("BF16", struct.pack("<f", 0.02)[2:])],
)
def test_scales_that_were_set_are_so_in_each_data_type(model, data_type, scale):
    zeros = bytes(len(scale))
    safetensors(
        model / "model-2.safetensors",
        {"0.self_attn.k_scale": (data_type, [2], 2 * scale), "0.weight_scale": (data_type, [1], zeros)},
    )
    assert unset_scales(model) == []
    safetensors(model / "model-2.safetensors", {"0.self_attn.k_scale": (data_type, [2], scale + zeros)})
    assert unset_scales(model) == ["0.self_attn.k_scale"]


def test_a_fingerprint_changes_with_the_files(model):
    before = fingerprint(model)
    assert fingerprint(model) == before
    (model / "tokenizer.json").write_text("{}")
    assert fingerprint(model) != before


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "tokenizer.model"])
def test_a_pointer_of_git_lfs_is_refused_whatever_file_it_stands_for(model, name):
    (model / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(ModelError, match="pointers of git-lfs") as caught:
        read_checkpoint(model)
    assert name in caught.value.cause and "git lfs pull" in caught.value.remedy


def test_what_is_no_model_folder_is_named_as_what_it_is(model, tmp_path):
    folder, upper = tmp_path / "quants", tmp_path / "upper"
    folder.mkdir()
    upper.mkdir()
    cases = {
        tmp_path / "none": "the folder does not exist",
        model / "model.safetensors": "it ends in .safetensors",
        folder / "q4.gguf": "a GGUF file has no config.json",
        folder / "Q4_K_M.GGUF": "a GGUF file has no config.json",
        folder: "a GGUF file has no config.json",
        upper: "a GGUF file has no config.json",
        tmp_path: "its folders have one: My Model",
    }
    for file in (folder / "q4.gguf", folder / "Q4_K_M.GGUF", upper / "Q8_0.GGUF"):
        file.write_bytes(b"GGUF")
    for path, cause in cases.items():
        with pytest.raises(ModelError) as caught:
            read_checkpoint(path)
        assert cause in caught.value.cause, path
        assert "give" in caught.value.remedy


# --- a config.json that nobody checked: every value that is not of its kind is named, and none ends in a traceback


#: JSON texts, as some cannot be written by Python.
ODD = [
    *'null true "x" "" [] [1] ["x"] {} {"a":1} -1 0 1 0.5 3.0 1e308 1e999 NaN -Infinity "\\u0000" "\\ud800"'.split(),
    "1" * 400,
]
DEEP = "[" * 100_000
HUGE = "1" * 5000
WHOLE = {
    **CONFIG,
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"intermediate_size": 64, "tie_word_embeddings": True, "attention_bias": False, "torch_dtype": "float32"},
    "quantization_config": {**compressed(4, "int"), "bits": 4},
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
        *("[]", "5", '{"a": 5}', DEEP, HUGE),
        *(
            f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'
            for shape, offsets in (
                *(("[1e999]", "[0, 4]"), ("4", "[0, 4]"), ('["x"]', "[0, 4]"), ("[1]", "[0, 4, 5]"), ("[1]", '"04"')),
                *(("[1]", "[0, 1e999]"), ("[-1]", "[0, 4]"), ("[1]", "[4, 0]")),
            )
        ),
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

"""The description that a model folder gives of itself, and the refusal of damaged folders."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cm4vllm.common.errors import ModelError
from cm4vllm.records.weights.checkpoint import fingerprint, read_checkpoint, unset_scales
from conftest import CONFIG, safetensors


def configure(model, **more):
    (model / "config.json").write_text(json.dumps({**CONFIG, **more}))


def test_parameters_and_data_type_come_from_the_weights_headers(model):
    checkpoint = read_checkpoint(model)
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert (checkpoint.vocabulary, checkpoint.max_positions) == (300, 64)
    assert checkpoint.parameters == 42
    assert checkpoint.weight_data_types == "bf16"


def test_shards_are_counted_together(model):
    safetensors(model / "model-2.safetensors", {"c": ("BF16", [8], 16)})
    assert read_checkpoint(model).parameters == 50


def test_a_nested_text_configuration_is_read(model):
    configure(model, vocab_size=None, text_config={"vocab_size": 7, "max_position_embeddings": 9})
    assert (read_checkpoint(model).vocabulary, read_checkpoint(model).max_positions) == (7, 9)


@pytest.mark.parametrize(
    ("quantisation", "data_type"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            "int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
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


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ModelError) as caught:
        read_checkpoint(tmp_path / "none")
    assert "_path." in caught.value.remedy


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


def test_weights_of_another_format_are_named(model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(ModelError) as caught:
        read_checkpoint(model)
    assert "pytorch_model.bin" in caught.value.cause


def test_a_shard_that_the_index_names_must_be_there(model):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00002.safetensors"}}))
    with pytest.raises(ModelError, match="weights are missing") as caught:
        read_checkpoint(model)
    assert "model-00002.safetensors" in caught.value.cause


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
    safetensors(
        model / "model-2.safetensors",
        {
            "a": ("BF16", [2], 4),
            "0.self_attn.k_scale": ("F32", [1], scale),
            f"1.{name}": ("F32", [1], struct.pack("<f", value)),
            "2.self_attn.v_scale": ("F32", [], scale),
        },
    )
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

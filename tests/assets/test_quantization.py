"""Quantisation: the refusals, the files after a failure, and the real llm-compressor on the tiny model."""

import json
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cm4vllm.assets import quantization
from cm4vllm.assets.datasets import DATASET_FILE
from cm4vllm.assets.datasets import provide as provide_dataset
from cm4vllm.assets.models import MODEL_FILE, ModelSettings, provide
from cm4vllm.assets.quantization import QuantizationSettings, quantize
from cm4vllm.assets.samples.dataset_files import DatasetSettings
from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED, Split, examples
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.records import read_record
from cm4vllm.records.assets import ModelRecord
from conftest import CONFIG, safetensors


@pytest.fixture
def base(model, tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    provide(ModelSettings(source="path", location=str(model)), folder)
    return folder / MODEL_FILE


@pytest.fixture
def calibration(base, tmp_path):
    folder = tmp_path / "calibration"
    folder.mkdir()
    provide_dataset(DatasetSettings(source="tiny", model_record=str(base), calibration=True), folder)
    return folder / DATASET_FILE


def asked(base, calibration="", **more):
    return QuantizationSettings(model_record=str(base), calibration_record=str(calibration), **more)


def test_the_tiny_calibration_set_shares_no_prompt_with_the_evaluation(calibration):
    rows = json.loads(Path(json.loads(calibration.read_text())["path"]).read_text())
    evaluated = {example.input for example in examples(Split.EVALUATION, 2000, EVALUATION_SEED)}
    assert len(rows) == 128
    assert not evaluated & {row["input"] for row in rows}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"scheme": "fp9"}, "unknown quantisation scheme 'fp9'"),
        ({"scheme": "weights-as-they-are"}, "alone quantises nothing"),
        ({"samples": 0}, "SAMPLES=0"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(base, tmp_path, more, words):
    with pytest.raises(UsageError, match=words):
        quantize(QuantizationSettings.of(asked(base, **more).env()), tmp_path)


def test_a_quantised_model_is_not_quantised_again(model, base, tmp_path):
    (model / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "fp8"}}))
    provide(ModelSettings(source="path", location=str(model)), base.parent)
    with pytest.raises(ModelError, match="quantised already"):
        quantize(asked(base), tmp_path)


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 3"])
def test_a_quantisation_that_fails_leaves_no_model(base, calibration, tmp_path, end):
    python, target = tmp_path / "python", tmp_path / "made"
    python.write_text(f"#!/bin/sh\necho 'RuntimeError: no such layer'\n{end}\n")
    python.chmod(0o755)
    target.mkdir()
    with pytest.raises(ModelError, match="cannot be quantised") as caught:
        quantize(asked(base, calibration, scheme="fp8", python=str(python)), target)
    assert "no such layer" in caught.value.cause
    assert caught.value.remedy
    assert [path.name for path in target.iterdir() if ".failed" not in path.name] == []


def test_a_quantisation_that_leaves_scales_unset_is_refused(model, base, calibration, tmp_path):
    """The stand-in for llm-compressor copies the model with a scale of uninitialised memory."""
    safetensors(tmp_path / "spoilt.safetensors", {"0.self_attn.k_scale": ("F32", [1], 4)})
    python, target = tmp_path / "python", tmp_path / "made"
    python.write_text(f"""#!/bin/sh
for word; do case $word in --output=*) cp '{model}'/* '{tmp_path}'/spoilt.safetensors "${{word#--output=}}";; esac; done
echo '{{"layers": [], "ignored": [], "tools": {{}}}}'
""")
    python.chmod(0o755)
    target.mkdir()
    with pytest.raises(ModelError, match="was not quantised well") as caught:
        quantize(asked(base, calibration, scheme="weights-as-they-are", kv_fp8=True, python=str(python)), target)
    assert "has not set: 1, the first 0.self_attn.k_scale" in caught.value.cause
    assert not (target / MODEL_FILE).exists()
    safetensors(tmp_path / "spoilt.safetensors", {"0.self_attn.k_scale": ("F32", [1], struct.pack("<f", 0.01))})
    repaired = asked(base, calibration, scheme="weights-as-they-are", kv_fp8=True, python=str(python))
    assert quantize(repaired, target).quantization


def test_a_scheme_is_one_entry_of_the_data_file(model, base, tmp_path, monkeypatch):
    """The stand-in for llm-compressor records its command line and copies the model."""
    described = tmp_path / "schemes.yaml"
    described.write_text(
        quantization._SCHEMES.read_text(encoding="utf-8")
        + """
int4-rtn:
  {preset: W4A16_ASYM, algorithm: round-to-nearest, weights: int4, activations: not quantised, formula: x,
   calibrated: false}
""",
        encoding="utf-8",
    )
    monkeypatch.setattr(quantization, "_SCHEMES", described)
    quantization.schemes.cache_clear()
    try:
        assert Job.of(CampaignSettings(quantize="int4-rtn")).quantisation == "_scheme.int4-rtn"
        python, target = tmp_path / "python", tmp_path / "made"
        python.write_text(f"""#!/bin/sh
echo "$@" > '{tmp_path}/called'
for word; do case $word in --output=*) cp '{model}'/* "${{word#--output=}}";; esac; done
echo '{{"layers": ["model.layers.0.mlp.up_proj"], "ignored": [], "tools": {{}}}}'
""")
        python.chmod(0o755)
        target.mkdir()
        record = quantize(asked(base, scheme="int4-rtn", python=str(python)), target)
    finally:
        quantization.schemes.cache_clear()
    assert "--preset=W4A16_ASYM --algorithm=round-to-nearest" in (tmp_path / "called").read_text()
    assert record.name.endswith("-int4-rtn")
    assert (record.quantization.scheme, record.quantization.weights) == ("int4-rtn", "int4")


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("vllm-2")
def test_gptq_of_the_tiny_model_is_whole_and_describes_itself(tmp_path):
    from cm4vllm.records.weights.checkpoint import read_checkpoint

    record = quantised_by_recipe(tmp_path, "_scheme.gptq-w4a16,_kv-fp8")
    made = record.quantization
    assert (record.name, record.weight_data_types) == ("cm4vllm-tiny-gptq-w4a16-kv-fp8", "int4")
    assert (made.layers, made.ignored, made.calibration_samples) == (14, ["lm_head"], 128)
    assert set(made.tools) == {"llmcompressor", "compressed-tensors", "torch", "transformers"}
    assert len(made.calibration_sha256) == 64
    assert made.starting_weights == "cm4vllm-tiny/model.safetensors"
    assert read_checkpoint(Path(record.path)).quantised
    config = json.loads((Path(record.path) / "config.json").read_text())["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 128, True)
    assert config["kv_cache_scheme"]["num_bits"] == 8
    scales = scalars(Path(record.path), "k_scale", "v_scale")
    assert len(scales) == 4
    assert all(1e-4 < scale < 1 for scale in scales), scales  # the largest key or value / 448


def scalars(folder, *ends):
    """Return the single fp32 values whose names end so, out of a folder's safetensors files."""
    values = []
    for path in folder.glob("*.safetensors"):
        whole = path.read_bytes()
        start = 8 + struct.unpack("<Q", whole[:8])[0]
        for name, tensor in json.loads(whole[8:start]).items():
            if name.endswith(ends):
                first, last = tensor["data_offsets"]
                values += struct.unpack("<f", whole[start + first : start + last])
    return values


def quantised_by_recipe(folder, variations):
    import os
    import subprocess

    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test`")
    cm = Path(sys.executable).with_name("cm")
    words = [cm, "run", "script", f"--tags=quantize,ml-model,{variations}", "--quiet", "--out=json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    exported = json.loads(done.stdout[done.stdout.index("\n{") if not done.stdout.startswith("{") else 0 :])["new_env"]
    return read_record(Path(exported["CM_ML_MODEL_RECORD"]), ModelRecord)

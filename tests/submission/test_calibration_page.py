"""calibration.md says what was done to the model, and nothing else."""

from cm4vllm.assets.quantization import KV_FP8, schemes
from cm4vllm.records.assets import ModelRecord, QuantizationRecord
from cm4vllm.submission.submitter_pages import noticed, quantisation


def model(made=None, **more):
    given = {"name": "m", "path": "/home/me/m", "source": "local folder /home/me/m", "sha256": "0" * 64, **more}
    return ModelRecord(quantization=made, **given)


def made(scheme, samples=0, **more):
    words = schemes()[scheme]
    return QuantizationRecord(
        scheme=scheme,
        weights=words.weights,
        activations=words.activations,
        kv_cache=KV_FP8,
        formula=words.formula,
        layers=14,
        layer_kinds=["q_proj"],
        ignored=["lm_head"],
        base_model="base",
        base_sha256="1" * 64,
        starting_weights="base/model.safetensors",
        tools={"llmcompressor": "0.14.0.1"},
        calibration_dataset="cal",
        calibration_sha256="2" * 64,
        calibration_samples=samples,
        calibration_tokens=samples * 10,
        **more,
    )


def test_a_calibrated_scheme_names_its_samples_with_their_digest():
    page = quantisation(model(made("fp8", 512)))
    for words in (
        "one static scale per tensor",
        "first 512 samples (5120 tokens",
        "2" * 64,
        "llmcompressor 0.14.0.1",
        "14 linear layers: q_proj",
        "lm_head",
        "1" * 64,
        "448",
    ):
        assert words in page


def test_a_scheme_without_samples_claims_none():
    page = quantisation(model(made("fp8-dynamic")))
    assert "No calibration samples" in page
    assert "2" * 64 not in page


def test_what_was_not_quantised_here_is_not_claimed():
    assert "Nothing was quantised" in quantisation(model(weight_data_types="bf16"))
    page = quantisation(model(weight_data_types="fp8"))
    assert "came quantised, to fp8" in page
    assert "/home/me" not in page


def test_a_rehearsal_says_so():
    assert "> **NOT A RESULT**" in noticed(quantisation(model(weight_data_types="bf16")), "NOT A RESULT")

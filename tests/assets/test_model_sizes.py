"""The sizes of downloads before they are made: computed from the configuration, published, or of the hub's list."""

import pytest

from cm4vllm.assets.model_sizes import catalogue_name, planned_downloads, require_token, weight_bytes
from cm4vllm.common.errors import DownloadError
from cm4vllm.rules import catalogue

#: metadata.total_size of model.safetensors.index.json as the hub has it, by public copies of these files: of
#: meta-llama/Llama-3.1-8B-Instruct and mistralai/Mixtral-8x7B-Instruct-v0.1, and of meta-llama/Llama-2-70b-chat-hf,
#: which holds the inverse frequencies of its rotary embeddings beside its weights.
INDEXES = {
    "llama-3.1-8b-instruct": 16_060_522_496,
    "mixtral-8x7b-instruct": 93_405_585_408,
    "llama-2-70b-chat": 137_953_316_864 - 80 * 64 * 4,
}


@pytest.mark.parametrize(("name", "size"), INDEXES.items())
def test_the_bytes_of_weights_are_those_of_the_published_index(name, size):
    assert weight_bytes(name) == size


def test_a_model_of_the_catalogue_has_a_size_without_a_network():
    for name, model in catalogue().models.items():
        for source, location in (("hf", model.hub), ("catalogue", name)):
            (bring,) = planned_downloads(source, location)
            assert bring["disk_bytes"] == weight_bytes(name) > 1e9
            assert model.precision in str(bring["measured"])
            assert catalogue_name(source, location) == name
        if model.mlcommons:
            (bring,) = planned_downloads("mlcommons", name)
            assert bring["disk_bytes"] and "as published" in str(bring["measured"])


def test_the_size_of_another_model_is_asked_of_the_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (bring,) = planned_downloads("hf", "someone/model")
    assert bring["disk_bytes"] == 0 and "the hub did not say" in str(bring["measured"])
    assert planned_downloads("served", "someone/model") == planned_downloads("path", "/a") == []


def test_a_gated_model_needs_a_token_beforehand(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    gated = "meta-llama/Llama-3.1-8B-Instruct"
    with pytest.raises(DownloadError, match="HF_TOKEN is not set"):
        require_token("hf", gated)
    require_token("hf", "openai/gpt-oss-120b")
    require_token("mlcommons", "llama-3.1-8b-instruct")
    monkeypatch.setenv("HF_TOKEN", "made-up")
    require_token("hf", gated)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    require_token("hf", gated)

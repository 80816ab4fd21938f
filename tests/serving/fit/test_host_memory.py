"""The KV cache of a server on the CPU backend: for the requests at a time, as far as the host's memory allows."""

import json

import pytest

from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import env_keys
from cm4vllm.records.assets import ModelRecord
from cm4vllm.serving.fit import advice
from cm4vllm.serving.fit.advice import AdviceSettings, with_host_memory
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings, server_env, with_extra_options
from cm4vllm.serving.planned_servers import _with_host_memory

GIB = 2**30
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
TINY = {**SMOLLM2, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2}


@pytest.fixture
def given(tmp_path, monkeypatch):
    def make(free_gib, config=SMOLLM2, servers=1, sequences=256, longest=2400, **more):
        (tmp_path / "config.json").write_text(json.dumps(config))
        monkeypatch.setattr(advice, "free_memory", lambda: round(free_gib * GIB))
        model = ModelRecord(name="m", path=str(tmp_path), source="", sha256="", weight_data_types="bf16")
        server = ServerSettings(model=str(tmp_path), name="m", **more)
        made = with_host_memory(server, model, servers=servers, sequences=sequences, longest=longest)
        assert server_env(made).get("VLLM_CPU_KVCACHE_SPACE") == (
            str(made.kv_cache_gib or 1) if made.device == "cpu" else None
        )
        return made.kv_cache_gib

    return make


def test_a_kv_cache_has_room_for_the_requests_at_a_time_in_half_of_the_free_memory(given):
    # 256 sequences of 2,400 tokens of 23,040 bytes need 13.2 GiB.
    assert [given(free) for free in (200, 40, 34, 22, 12, 6)] == [16, 16, 16, 8, 4, 2]
    assert given(21.5) == given(22.5)  # a server that starts again has the same
    assert given(200, sequences=64) == 4
    assert given(200, sequences=256, longest=0, max_model_len=1024) == 8


@pytest.mark.parametrize(
    ("extra", "gib"),
    [("--max-num-seqs 512", 32), ("--max_num_seqs=64", 4), ("--max-num-seqs 512 --max-model-len 1024", 16), ("", 8)],
)
def test_the_requests_at_a_time_may_be_an_option_of_vllm(tmp_path, monkeypatch, extra, gib):
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2 | {"max_position_embeddings": 2048}))
    monkeypatch.setattr(advice, "free_memory", lambda: 200 * GIB)
    model = ModelRecord(name="m", path=str(tmp_path), source="", sha256="", weight_data_types="bf16")
    write_record(tmp_path / "model.json", model)
    settings = LaunchSettings(model_record=str(tmp_path / "model.json"))
    server = with_extra_options(ServerSettings(model="m", name="m", extra=extra))
    assert _with_host_memory(settings, server, None).kv_cache_gib == gib


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"utilisation": 95}, "a percentage is divided by 100: give CM_VLLM_SERVER_GPU_MEMORY_UTILIZATION=0.95"),
        ({"utilisation": 0}, "give a value in this range"),
        ({"utilisation": -0.5}, "give a value in this range"),
        ({"max_model_len": 0}, "give a value in this range"),
        ({"max_num_seqs": -1}, "give a value in this range"),
        ({"max_num_batched_tokens": 0}, "give a value in this range"),
        ({"kv_cache_gib": -1}, "give a value in this range"),
        ({"gpu_memory_gib": -80}, "give a value in this range"),
    ],
)
def test_the_advisor_refuses_sizes_that_no_server_has(sizes, words):
    with pytest.raises(UsageError) as refused:
        AdviceSettings.of({env_keys(AdviceSettings)[field]: size for field, size in sizes.items()})
    assert words in refused.value.remedy


def test_what_one_gib_holds_has_one_gib(given):
    assert given(22, TINY) == given(3, TINY) == 1


def test_servers_and_workers_share_the_memory(given):
    assert (given(22, servers=2), given(22, servers=4), given(22, tp_size=2)) == (4, 1, 4)


def test_a_size_that_is_given_counts(given):
    assert given(22, kv_cache_gib=3) == 3
    assert given(22, device="cuda") is None
    with pytest.raises(ModelError):
        given(2, kv_cache_gib=8)
    with pytest.raises(ModelError):
        given(0.5)

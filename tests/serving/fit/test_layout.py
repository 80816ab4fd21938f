"""The fit advisor: sizes of known models, deployments that ran, refusals with their sum, and vLLM's own figures."""

import json
import re
from pathlib import Path

import pytest

from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import env_keys
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue
from cm4vllm.serving.clusters.placement import node_layout
from cm4vllm.serving.fit import advice
from cm4vllm.serving.fit.advice import AdviceSettings, with_host_memory
from cm4vllm.serving.fit.layout import GIB, Asked, advise, kv_cache_tokens, table
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings, server_env, with_extra_options
from cm4vllm.serving.planned_servers import _with_host_memory

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "vocab_size": 768,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
#: NVML's total of an 80 GB H100 and a 24 GB RTX 4090, as the published system descriptions name them.
H100, RTX4090 = 79.6 * GIB, 23.6 * GIB


def asked(name, gpus, memory, **more):
    config = {"max_model_len": 2048, **more}
    return Asked(
        name=name,
        architecture=read_architecture(catalogue().config(name)),
        gpus=gpus,
        memory_bytes=memory,
        precision=config.pop("precision", catalogue().model(name).precision),
        **config,
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # The sums of the tensors in the published checkpoints.
        ("whisper-large-v3", 1_543_490_560),
        ("llama-2-7b-chat", 6_738_415_616),
        ("llama-2-70b-chat", 68_976_648_192),
        ("llama-3.1-8b-instruct", 8_030_261_248),
        ("llama-3.1-405b-instruct", 405_853_388_800),
        ("mixtral-8x7b-instruct", 46_702_792_704),
    ],
)
def test_parameters_are_those_of_the_published_checkpoint(name, parameters):
    assert read_architecture(catalogue().config(name)).parameters == parameters


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # The models' own papers and cards; gpt-oss counts active parameters without its input embeddings (0.58 B).
        ("deepseek-r1", 671, 37),
        ("mixtral-8x7b-instruct", 46.7, 12.9),
        ("qwen3-vl-235b-a22b-instruct", 235, 22),
        ("gpt-oss-120b", 116.8, 5.13 + 0.58),
    ],
)
def test_active_parameters_of_experts_are_those_the_publisher_names(name, total, active):
    model = read_architecture(catalogue().config(name))
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.005)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_a_tiny_model_is_counted_and_a_missing_key_named():
    model = read_architecture(TINY)
    assert model.parameters == 492_160
    assert kv_cache_tokens(model, "fp8", GIB) == 2 * kv_cache_tokens(model, "bf16", GIB)
    with pytest.raises(UsageError):
        kv_cache_tokens(model, "int3", GIB)
    with pytest.raises(ModelError, match="vocab_size"):
        read_architecture({key: value for key, value in TINY.items() if key != "vocab_size"})


@pytest.mark.parametrize(
    ("name", "tensor", "bytes_a_token"),
    [
        ("llama-2-70b-chat", 1, 80 * 8 * 128 * 2 * 2),
        ("llama-2-70b-chat", 4, 80 * 2 * 128 * 2 * 2),
        ("llama-2-7b-chat", 2, 32 * 16 * 128 * 2 * 2),
        ("llama-2-70b-chat", 16, 80 * 1 * 128 * 2 * 2),  # fewer KV heads than GPUs: each keeps one whole
        ("deepseek-r1", 8, 61 * (512 + 64) * 2),  # the latent vector is kept whole on each
    ],
)
def test_keys_and_values_of_a_token(name, tensor, bytes_a_token):
    assert read_architecture(catalogue().config(name)).kv_bytes_per_token(2, tensor) == bytes_a_token


RECORDED = Path(__file__).parents[1] / "recorded" / "kv-cache.json"


@pytest.mark.parametrize("log", json.loads(RECORDED.read_text()), ids=lambda log: log["what"])
def test_the_kv_cache_is_within_a_tenth_of_what_vllm_reported(log):
    predicted = kv_cache_tokens(read_architecture(log["config"]), log["kv_dtype"], log["gib"] * GIB)
    reported = int(re.search(r"KV cache size: ([\d,]+) tokens", log["line"])[1].replace(",", ""))
    assert predicted == pytest.approx(reported, rel=0.1)


@pytest.mark.parametrize(
    ("name", "gpus", "memory", "more"),
    [
        # The published serve lines of v4.1 and the systems they ran on: all of these ran.
        ("llama-2-70b-chat-fp8", 4, H100, {"tensor_parallel": 4, "utilisation": 0.95, "max_num_seqs": 1024}),
        ("llama-2-70b-chat-gptq", 4, H100, {"tensor_parallel": 4, "utilisation": 0.95, "max_num_seqs": 1024}),
        ("llama-2-7b-chat-fp8", 2, RTX4090, {}),
    ],
)
def test_deployments_that_ran_are_not_refused(name, gpus, memory, more):
    wanted = asked(name, gpus, memory, **more)
    fit = advise(wanted)
    assert fit.used_bytes <= memory * wanted.utilisation * 1.0001
    assert fit.tensor_parallel == more.get("tensor_parallel", fit.tensor_parallel)
    assert fit.tensor_parallel * fit.data_parallel <= gpus


@pytest.mark.parametrize(
    ("model", "gpus", "memory", "sizes"),
    [
        # Replicas are preferred to larger groups once the cache is large enough.
        ("llama-3.1-8b-instruct", 8, H100, (1, 1, 8)),
        ("llama-2-70b-chat", 8, H100, (4, 1, 2)),
        # Stages are used where heads do not divide.
        ("llama-2-70b-chat-fp8", 3, 30 * GIB, (1, 3, 1)),
    ],
)
def test_what_is_advised(model, gpus, memory, sizes):
    fit = advise(asked(model, gpus, memory))
    assert (fit.tensor_parallel, fit.pipeline_parallel, fit.data_parallel) == sizes


def test_what_does_not_fit_is_refused_with_the_sum():
    with pytest.raises(ModelError, match="does not fit") as caught:
        advise(asked("llama-2-70b-chat", 2, RTX4090))
    assert "64.24 GiB" in caught.value.cause  # 138.0 GB of weights on each of two
    assert "21.24 GiB" in caught.value.cause
    assert "fp8" in caught.value.remedy
    advise(asked("llama-3.1-8b-instruct", 1, RTX4090, max_model_len=8192))
    for wanted, cause in (
        (asked("llama-3.1-8b-instruct", 1, RTX4090, max_model_len=131072), "16.00 GiB of KV cache"),
        (asked("llama-2-70b-chat-fp8", 4, H100, tensor_parallel=3), "64 attention heads cannot be shared by 3"),
    ):
        with pytest.raises(ModelError, match="does not fit|cannot") as caught:
            advise(wanted)
        assert cause in caught.value.cause


def test_the_cpu_backend_is_held_against_the_hosts_memory():
    tiny = Asked(
        name="tiny",
        architecture=read_architecture(TINY),
        precision="fp32",
        gpus=0,
        memory_bytes=8 * GIB,
        max_model_len=2048,
        kv_dtype="fp32",
        kv_cache_bytes=GIB,
    )
    assert advise(tiny).kv_tokens == 1_048_576
    with pytest.raises(ModelError) as caught:
        advise(asked("llama-3.1-8b-instruct", 0, 16 * GIB, kv_cache_bytes=4 * GIB))
    assert "14.96 GiB" in caught.value.cause
    with pytest.raises(ModelError, match="does not fit") as caught:
        advise(asked("llama-3.1-8b-instruct", 0, 64 * GIB, kv_cache_bytes=GIB, max_model_len=131072))
    assert "the KV cache is given 1.00 GiB" in caught.value.cause


def test_the_table_says_what_to_serve_with():
    wanted = asked("deepseek-r1", 8, 140 * GIB, max_model_len=24576, kv_dtype="fp8")
    text = table(wanted, advise(wanted))
    for words in (
        "671.03 B parameters, 37.55 B a token",
        "latent attention",
        "--tensor-parallel-size 8",
        "--kv-cache-dtype fp8",
        "35,136 bytes a token",
    ):
        assert words in text


def test_an_engine_that_fits_a_node_stays_on_it():
    fit = advise(asked("llama-2-70b-chat-fp8", 16, H100, nodes=2))
    single = advise(asked("llama-2-70b-chat-fp8", 8, H100))
    assert (fit.tensor_parallel, fit.pipeline_parallel) == (single.tensor_parallel, single.pipeline_parallel)
    assert fit.data_parallel == 2 * single.data_parallel
    assert "2 of 8 GPUs, each engine within a node" in table(asked("llama-2-70b-chat-fp8", 16, H100, nodes=2), fit)


def test_what_no_node_holds_has_its_stages_on_several():
    with pytest.raises(ModelError, match="does not fit 8 x"):
        advise(asked("llama-3.1-405b-instruct", 8, H100))
    with pytest.raises(ModelError, match="does not fit 4 x 23.6 GiB on 2 nodes"):
        advise(asked("llama-3.1-405b-instruct", 4, RTX4090, nodes=2))
    fit = advise(asked("llama-3.1-405b-instruct", 16, H100, nodes=2))
    assert (fit.tensor_parallel, fit.pipeline_parallel, fit.data_parallel) == (8, 2, 1)
    assert "each engine over 2 nodes" in table(asked("llama-3.1-405b-instruct", 16, H100, nodes=2), fit)


def test_a_layout_over_nodes_is_one_that_can_be_started():
    for nodes, each in ((2, 2), (2, 8), (3, 4), (4, 8)):
        question = asked("llama-2-70b-chat", nodes * each, H100, nodes=nodes)
        fit = advise(question)
        layout = node_layout(
            nodes, tp_size=fit.tensor_parallel, pp_size=fit.pipeline_parallel, dp_size=fit.data_parallel
        )
        assert layout.workers <= each


@pytest.mark.parametrize("sizes", [{"tensor_parallel": 8}, {"tensor_parallel": 2, "pipeline_parallel": 4}])
def test_an_engine_of_more_workers_than_gpus_is_refused_with_both_numbers(sizes):
    with pytest.raises(UsageError, match="needs 8 GPUs, and there are 4"):
        advise(asked("llama-2-70b-chat-fp8", 4, H100, **sizes))


# --- the KV cache of a server on the CPU backend: for the requests at a time, as far as the host's memory allows


HOST_GIB = 2**30
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
TINY_HOST = {**SMOLLM2, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2}


@pytest.fixture
def given(tmp_path, monkeypatch):
    def make(free_gib, config=SMOLLM2, servers=1, sequences=256, longest=2400, **more):
        (tmp_path / "config.json").write_text(json.dumps(config))
        monkeypatch.setattr(advice, "free_memory", lambda: round(free_gib * HOST_GIB))
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
    monkeypatch.setattr(advice, "free_memory", lambda: 200 * HOST_GIB)
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


def test_servers_and_workers_share_the_memory_and_what_one_gib_holds_has_one_gib(given):
    assert (given(22, servers=2), given(22, servers=4), given(22, tp_size=2)) == (4, 1, 4)
    assert given(22, TINY_HOST) == given(3, TINY_HOST) == 1


def test_a_size_that_is_given_counts(given):
    assert given(22, kv_cache_gib=3) == 3
    assert given(22, device="cuda") is None
    with pytest.raises(ModelError):
        given(2, kv_cache_gib=8)
    with pytest.raises(ModelError):
        given(0.5)

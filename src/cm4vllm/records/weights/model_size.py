"""Size of a model by its config.json: parameters, bytes of weights, bytes of keys and values.

Counts follow the modules of the model's own code in transformers: Llama and Mistral (grouped-query attention, gated
MLP), Mixtral and gpt-oss (experts), DeepSeek V2 and V3 (multi-head latent attention, shared and routed experts).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cm4vllm.common.errors import ModelError
from cm4vllm.records.weights.config_json import text_config, whole_number

#: Bytes of one parameter. Those of group-quantised weights hold their scales: 2 bytes for 128 (GPTQ), 1 for 32 (MXFP4).
BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32}
_GATED = 3  # gate, up and down projection

#: The width of whisper's two convolutions.
_KERNEL = 3


@dataclass(frozen=True)
class Architecture:
    """The sizes of a model. `linear` are the parameters that quantisation changes, `other` all others.

    `kv_values` counts the values that one token leaves in the cache of one layer and one KV head: 2 x head size, or
    with latent attention the one compressed vector, which every GPU of a tensor-parallel group keeps whole
    (`kv_heads` is 1 then).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    kv_values: int
    latent: bool
    linear: int
    other: int
    inactive: int
    vocabulary: int
    max_positions: int | None
    experts: int

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the model."""
        return self.linear + self.other

    @property
    def active_parameters(self) -> int:
        """The parameters that one token passes through: all but the experts it is not routed to."""
        return self.parameters - self.inactive

    def weight_bytes(self, precision: str, other: str = "bf16") -> float:
        """Return the bytes of all weights with the linear ones in `precision`. Raises ModelError for an unknown one."""
        if precision not in BYTES:
            raise ModelError(f"unknown precision {precision!r}", remedy=f"known: {', '.join(BYTES)}")
        rest = BYTES[precision] if BYTES[precision] > 1 else BYTES[other]
        return self.linear * BYTES[precision] + self.other * rest

    def kv_bytes_per_token(self, value_bytes: float, tensor_parallel: int = 1) -> float:
        """Return the bytes that one token takes in the KV cache of one GPU that holds all layers."""
        return self.layers * max(1.0, self.kv_heads / tensor_parallel) * self.kv_values * value_bytes


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the sizes that a config.json gives. Raises ModelError naming a key that is missing or of a wrong kind."""
    return _whisper_sizes(config) if config.get("model_type") == "whisper" else _read(text_config(config))


def _required_size(config: Mapping[str, Any], key: str) -> int:
    """Return a size of config.json, at least 1. Raises ModelError where it is missing."""
    value = whole_number(config, key, 1)
    if value is None:
        raise ModelError(
            f"the model's config.json has no {key!r}",
            cause="its sizes cannot be computed without it",
            remedy="give the model's whole config.json",
        )
    return value


def _read(config: Mapping[str, Any]) -> Architecture:
    """Return the sizes of a model by its config.json. Raises ModelError for one that is missing."""
    layers, hidden = _required_size(config, "num_hidden_layers"), _required_size(config, "hidden_size")
    heads = _required_size(config, "num_attention_heads")
    kv_heads = whole_number(config, "num_key_value_heads") or heads
    size = whole_number(config, "head_dim") or hidden // heads
    vocabulary, latent = _required_size(config, "vocab_size"), bool(whole_number(config, "kv_lora_rank"))
    attention, attention_other = (
        _latent_attention_weights(config, hidden, heads)
        if latent
        else _grouped_query_weights(config, hidden, heads, kv_heads, size)
    )
    experts, expert, dense, sparse_layers, router = _mlp(config, layers, hidden)
    shared = whole_number(config, "n_shared_experts") or 0
    linear = layers * attention + (layers - sparse_layers) * dense + sparse_layers * (experts + shared) * expert
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    norms = (2 * layers + 1) * hidden
    chosen = whole_number(config, "num_experts_per_tok") or 0
    if str(config.get("model_type")) == "gpt_oss":
        # Its attention stays in bf16 (modules_to_not_convert in its config.json).
        attention, attention_other, linear = 0, attention + attention_other + heads, linear - layers * attention
    return Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if latent else kv_heads,
        kv_values=_required_size(config, "kv_lora_rank") + _required_size(config, "qk_rope_head_dim")
        if latent
        else 2 * size,
        latent=latent,
        linear=linear,
        other=embeddings + norms + layers * attention_other + sparse_layers * router,
        inactive=sparse_layers * (experts - chosen) * expert if experts else 0,
        vocabulary=vocabulary,
        max_positions=whole_number(config, "max_position_embeddings", 1),
        experts=experts,
    )


def _whisper_sizes(config: Mapping[str, Any]) -> Architecture:
    """Return the sizes of a whisper model: an encoder of clips, and a decoder that also attends to it."""
    hidden, heads = _required_size(config, "d_model"), _required_size(config, "decoder_attention_heads")
    encoder, layers = _required_size(config, "encoder_layers"), _required_size(config, "decoder_layers")
    vocabulary, positions = _required_size(config, "vocab_size"), _required_size(config, "max_target_positions")
    attention, attention_bias = 4 * hidden * hidden, 3 * hidden  # keys have no bias
    inner, outer = _required_size(config, "encoder_ffn_dim"), _required_size(config, "decoder_ffn_dim")
    linear = encoder * (attention + 2 * hidden * inner) + layers * (2 * attention + 2 * hidden * outer)
    norm = 2 * hidden
    biases = encoder * (attention_bias + inner + hidden + 2 * norm)
    biases += layers * (2 * attention_bias + outer + hidden + 3 * norm) + 2 * norm
    convolutions = _KERNEL * hidden * (_required_size(config, "num_mel_bins") + hidden) + 2 * hidden
    embeddings = (vocabulary + positions + _required_size(config, "max_source_positions")) * hidden
    return Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        kv_values=2 * hidden // heads,
        latent=False,
        linear=linear,
        other=biases + convolutions + embeddings,
        inactive=0,
        vocabulary=vocabulary,
        max_positions=positions,
        experts=0,
    )


def _grouped_query_weights(
    config: Mapping[str, Any], hidden: int, heads: int, kv_heads: int, size: int
) -> tuple[int, int]:
    """Return the parameters of grouped-query attention in one layer: those of matrices, and the biases."""
    biased = config.get("attention_bias") or str(config.get("model_type")) == "qwen2"
    bias = (heads + 2 * kv_heads) * size + (hidden if config.get("attention_bias") else 0) if biased else 0
    return hidden * size * (2 * heads + 2 * kv_heads), bias


def _latent_attention_weights(config: Mapping[str, Any], hidden: int, heads: int) -> tuple[int, int]:
    """Return the parameters of latent attention in one layer: those of matrices, and those of the norms."""
    rank, rope, nope, value = (
        _required_size(config, key) for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    query_rank = whole_number(config, "q_lora_rank") or 0
    query = (hidden + heads * (nope + rope)) * query_rank if query_rank else hidden * heads * (nope + rope)
    compressed = hidden * (rank + rope) + rank * heads * (nope + value)
    return query + compressed + heads * value * hidden, query_rank + rank


def _mlp(config: Mapping[str, Any], layers: int, hidden: int) -> tuple[int, int, int, int, int]:
    """Return experts, parameters of one expert, of a dense MLP, layers with experts, and parameters of a router."""
    dense = _GATED * hidden * _required_size(config, "intermediate_size")
    named = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next((count for key in named if (count := whole_number(config, key))), 0)
    if not experts:
        return 0, 0, dense, 0, 0
    inner = whole_number(config, "moe_intermediate_size") or _required_size(config, "intermediate_size")
    biases = (2 * inner + hidden, experts) if str(config.get("model_type")) == "gpt_oss" else (0, 0)
    corrections = experts if str(config.get("model_type")) == "deepseek_v3" else 0
    sparse = max(0, layers - (whole_number(config, "first_k_dense_replace") or 0))
    return experts, _GATED * hidden * inner + biases[0], dense, sparse, hidden * experts + biases[1] + corrections

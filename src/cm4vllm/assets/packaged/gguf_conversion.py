"""Write a Llama of a GGUF file as a folder of the Hugging Face kind; run by path in the environment that has `gguf`.

    python gguf_conversion.py PACKAGE FILE FOLDER

FILE is the name of the GGUF file in the installed package PACKAGE. FOLDER receives config.json, generation_config.json,
tokenizer.json, tokenizer_config.json, chat_template.jinja, and model.safetensors in fp32: each value as `gguf` computes
it from the quantised one, so that none is rounded again. Nothing of cm4vllm is imported, because that environment is
not ours.
"""

import importlib.util
import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

#: Hugging Face's names of the tensors outside of the layers, and of those of a layer, by those of GGUF.
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: GGUF's kind of a token that is no text (gguf.TokenType.CONTROL).
CONTROL = 3
#: How texts are cut before pairs are merged, by `tokenizer.ggml.pre` (llama.cpp, src/llama-vocab.cpp): each digit by
#: itself, the rest by GPT-2's expression, which is that of ByteLevel.
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CUTS = {"smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]}}


def main(package: str, name: str, folder: Path) -> None:
    """Write the folder of the model whose GGUF file is `name` in an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the package {package} is not installed")
    reader = gguf.GGUFReader(Path(spec.submodule_search_locations[0]) / name)
    facts = {key: field.contents() for key, field in reader.fields.items()}
    weights = {hub_name(tensor.name): values_of(tensor, facts) for tensor in reader.tensors}
    write_safetensors(folder / "model.safetensors", weights)
    for file, value in documents(facts, tied="lm_head.weight" not in weights).items():
        (folder / file).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(facts["tokenizer.chat_template"], encoding="utf-8")


def hub_name(name: str) -> str:
    """Return Hugging Face's name of a tensor by that of GGUF."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{IN_LAYER[kind]}.weight"


def values_of(tensor: gguf.ReaderTensor, facts: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the values of a tensor in fp32, rows of queries and keys in the order that Hugging Face has."""
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    kind = tensor.name.split(".")[-2]
    return halves_of_heads(values, facts[heads[kind]]) if kind in heads else values


def halves_of_heads(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return a matrix whose rows of a head, neighbours in pairs as llama.cpp rotates them, are two halves again."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_safetensors(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write tensors in the order of their names: the length of the header, the header, the values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(weights):
        begin, end = end, end + weights[name].nbytes
        header[name] = {"dtype": "F32", "shape": list(weights[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(weights):
            file.write(weights[name].astype("<f4").tobytes())


def documents(facts: Mapping[str, Any], *, tied: bool) -> dict[str, dict[str, Any]]:
    """Return the JSON files of the folder; `tied` says that the embedding is the output's matrix, too."""
    tokens = facts["tokenizer.ggml.tokens"]
    ends = {"bos_token_id": facts["tokenizer.ggml.bos_token_id"], "eos_token_id": facts["tokenizer.ggml.eos_token_id"]}
    padding = facts["tokenizer.ggml.padding_token_id"]
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": facts["llama.embedding_length"],
            "intermediate_size": facts["llama.feed_forward_length"],
            "num_hidden_layers": facts["llama.block_count"],
            "num_attention_heads": facts["llama.attention.head_count"],
            "num_key_value_heads": facts["llama.attention.head_count_kv"],
            "max_position_embeddings": facts["llama.context_length"],
            "rms_norm_eps": float(str(np.float32(facts["llama.attention.layer_norm_rms_epsilon"]))),
            "rope_theta": facts["llama.rope.freq_base"],
            "vocab_size": len(tokens),
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            "pad_token_id": padding,
            **ends,
        },
        "generation_config.json": {"pad_token_id": padding, **ends},
        "tokenizer.json": tokenizer(facts),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[ends["bos_token_id"]],
            "eos_token": tokens[ends["eos_token_id"]],
            "pad_token": tokens[padding],
            "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
            "model_max_length": facts["llama.context_length"],
            "clean_up_tokenization_spaces": False,
        },
    }


def tokenizer(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer.json of a byte-level BPE. Raises KeyError for another way to cut texts."""
    tokens = facts["tokenizer.ggml.tokens"]
    kinds = facts["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **plain} for number, token in enumerate(tokens) if kinds[number] == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": CUTS[facts["tokenizer.ggml.pre"]],
        "post_processor": None,
        "decoder": BYTES,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": facts["tokenizer.ggml.merges"],
        },
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

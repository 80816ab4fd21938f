"""A minimal model folder, made of real files: config.json, tokenizer.json and a whole safetensors file."""

import json
import struct
from pathlib import Path

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int | bytes]]) -> None:
    """Write tensors: name -> (data type, shape, their bytes or the number of zeros)."""
    header, content = {"__metadata__": {"format": "pt"}}, b""
    for name, (data_type, shape, size) in tensors.items():
        data = bytes(size) if isinstance(size, int) else size
        header[name] = {"dtype": data_type, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def write_tokenizer(path: Path) -> None:
    """Write a byte-level tokenizer without merges: every byte is a token, before all of them <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(path))


@pytest.fixture
def model(tmp_path):
    """A model folder that a test may damage."""
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder / "tokenizer.json")
    safetensors(folder / "model.safetensors", {"a": ("BF16", [10, 4], 80), "b": ("F32", [2], 8)})
    return folder

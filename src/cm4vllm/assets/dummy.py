"""Dummy models: the architecture of a real one without its weights, which vLLM fills with random numbers.

They rehearse the performance of a model that cannot be downloaded. Sizes are those of the catalogue; what it does not
state (the base of the positions' angles, epsilons) keeps the defaults of transformers, and changes no amount of work.
The tokenizer is made here: each byte of UTF-8 is a token, and the rest of the vocabulary is never used in a text, so
that prompts made here have other lengths than with the model's own. Token ids of the model's own dataset fit it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.records.weights.checkpoint import DUMMY_MARK
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue

#: The ids that begin and end a text. The real tokenizer's are others; what an answer costs does not depend on them.
_BEGIN, _END = ("<s>", 0), ("</s>", 1)
TOKENIZER = "made here: one token for each byte of UTF-8"


def known_model(name: str) -> str:
    """Return the catalogue's name of a model, given the name of the model or of its benchmark.

    Raises UsageError for an unknown name, and for a model without an architecture of its own in the catalogue.
    """
    known = catalogue()
    key = known.benchmarks[name].model if name in known.benchmarks else name
    if key not in known.models:
        raise UsageError(
            f"the architecture of {name!r} is not known", remedy=nearest(name, [*known.benchmarks, *known.models])
        )
    if not known.models[key].config:
        raise UsageError(
            f"{key} has no architecture of its own in the catalogue",
            cause=f"it was quantised from {known.models[key].base}",
            remedy=f"take that one: _dummy.{known.models[key].base}; vLLM's --quantization=fp8 "
            "quantises its random weights when it starts",
        )
    return key


def require_layers(model: str, layers: int | None) -> None:
    """Refuse a number of layers that a model of the catalogue does not have. Raises UsageError."""
    whole = _layers(model)
    if layers is not None and not 0 < layers <= whole:
        raise UsageError(
            f"--dummy_layers={layers} is not usable",
            cause=f"{model} has {whole} layers",
            remedy=f"give 1 to {whole}, or leave it out for all",
        )


def dummy_name(model: str, layers: int | None) -> str:
    """Return the name under which a dummy is served and shown: never that of the model itself."""
    return f"{model}-dummy" + (f"-{layers}-layers" if layers is not None else "")


def words_of(model: str, layers: int | None) -> str:
    """Return in words which architecture a dummy has."""
    whole = _layers(model)
    return f"architecture of {model}" + (f", {layers} of its {whole} layers" if layers is not None else "")


def make(model: str, layers: int | None, folder: Path) -> None:
    """Write the configuration and the tokenizer of a dummy of a model of the catalogue to `folder`."""
    config: dict[str, Any] = {
        "tie_word_embeddings": False,
        **catalogue().model(model).config,
        "bos_token_id": _BEGIN[1],
        "eos_token_id": _END[1],
        DUMMY_MARK: words_of(model, layers),
    }
    if layers is not None:
        config[_layers_key(config)] = layers
    with staged_folder(folder) as staging:
        write_json(staging / "config.json", config)
        write_text(staging / "tokenizer.json", _tokenizer(int(config["vocab_size"])))
        write_json(
            staging / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": _BEGIN[0],
                "eos_token": _END[0],
                "model_max_length": read_architecture(config).max_positions,
                "clean_up_tokenization_spaces": False,
            },
        )


def _layers(model: str) -> int:
    """Return the number of layers of a model of the catalogue that generate tokens."""
    config = catalogue().model(model).config
    return int(config[_layers_key(config)])


def _layers_key(config: Mapping[str, Any]) -> str:
    return next(key for key in ("num_hidden_layers", "decoder_layers") if key in config)


def _tokenizer(size: int) -> str:
    """Return a byte-level tokenizer with `size` tokens, as JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    names = [_BEGIN[0], _END[0], *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<unused-{number}>" for number in range(len(names), size)]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BEGIN[0]} $A", pair=f"{_BEGIN[0]} $A $B", special_tokens=[_BEGIN]
    )
    tokenizer.add_special_tokens([_BEGIN[0], _END[0]])
    return json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":"), ensure_ascii=False) + "\n"

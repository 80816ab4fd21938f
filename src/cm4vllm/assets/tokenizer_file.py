"""A model's tokenizer, read from its tokenizer.json for texts of any length, and the texts of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cm4vllm.common.errors import ModelError
from cm4vllm.records.weights.config_json import json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a tokenizer.json, which then neither cuts texts nor fills them up. Raises ModelError."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(
            f"cannot read the tokenizer {path}", cause=str(error), remedy="copy or download the model again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


#: The corrections that transformers makes in a decoded text where a tokenizer asks for clean_up_tokenization_spaces.
_CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


class Detokenizer:
    """Decodes token ids with a model folder's tokenizer.json, leaving special tokens out unless they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = read_tokenizer(folder / "tokenizer.json")
        path = folder / "tokenizer_config.json"
        self._clean_up = path.exists() and json_object(path).get("clean_up_tokenization_spaces") is True

    def decode(self, ids: Sequence[Sequence[int]], *, special_tokens: bool = False) -> list[str]:
        """Return the text of each sequence of ids."""
        texts: list[str] = self._tokenizer.decode_batch([list(i) for i in ids], skip_special_tokens=not special_tokens)
        return [_without_spacing(text) for text in texts] if self._clean_up else texts


def _without_spacing(text: str) -> str:
    for spaced, joined in _CLEAN_UP:
        text = text.replace(spaced, joined)
    return text

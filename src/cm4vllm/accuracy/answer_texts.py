"""From token ids to the text that is scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cm4vllm.common.errors import ModelError

__all__ = ["Detokenizer"]

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
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise ModelError(
                f"cannot read the tokenizer {path}",
                cause=str(error),
                remedy="the model's folder must hold its tokenizer.json",
            ) from error
        self._clean_up = _asks_for_clean_up(folder / "tokenizer_config.json")

    def decode(self, ids: Sequence[Sequence[int]], *, special_tokens: bool = False) -> list[str]:
        """Return the text of each sequence of ids."""
        texts: list[str] = self._tokenizer.decode_batch([list(i) for i in ids], skip_special_tokens=not special_tokens)
        return [_cleaned(text) for text in texts] if self._clean_up else texts


def _asks_for_clean_up(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a tokenizer's configuration", cause=str(error)) from error
    return config.get("clean_up_tokenization_spaces") is True


def _cleaned(text: str) -> str:
    for spaced, joined in _CLEAN_UP:
        text = text.replace(spaced, joined)
    return text

"""From token ids to the text that is scored."""

from collections.abc import Sequence
from pathlib import Path

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.records.weights.config_json import json_object

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
        self._clean_up = _asks_for_clean_up(folder / "tokenizer_config.json")

    def decode(self, ids: Sequence[Sequence[int]], *, special_tokens: bool = False) -> list[str]:
        """Return the text of each sequence of ids."""
        texts: list[str] = self._tokenizer.decode_batch([list(i) for i in ids], skip_special_tokens=not special_tokens)
        return [_without_spacing(text) for text in texts] if self._clean_up else texts


def _asks_for_clean_up(path: Path) -> bool:
    return path.exists() and json_object(path).get("clean_up_tokenization_spaces") is True


def _without_spacing(text: str) -> str:
    for spaced, joined in _CLEAN_UP:
        text = text.replace(spaced, joined)
    return text

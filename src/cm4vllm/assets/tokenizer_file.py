"""A model's tokenizer, read from its tokenizer.json for texts of any length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cm4vllm.common.errors import ModelError

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

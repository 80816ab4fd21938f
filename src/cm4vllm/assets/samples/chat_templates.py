"""The tokens of a conversation with a picture: by the model's own chat template, tokenizer and picture processor.

A server counts the same: the template's text with one placeholder, which stands for as many tokens as the picture has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ModelError
from cm4vllm.common.files import text_of
from cm4vllm.records.weights.config_json import json_object, section, whole

if TYPE_CHECKING:
    from jinja2 import Template


#: How many times as long as wide a picture may be (smart_resize of transformers' qwen2_vl).
_MOST_ASPECT = 200
_AGAIN = "give the whole folder of a model that reads pictures, as Qwen3-VL"
_CHUNK = 512


@dataclass(frozen=True)
class PictureGrid:
    """The grid by which a picture is cut (preprocessor_config.json): squares of `factor` pixels, each a token."""

    factor: int
    least_pixels: int
    most_pixels: int

    @classmethod
    def of(cls, folder: Path) -> PictureGrid:
        """Read the settings of a model's picture processor. Raises ModelError if it is not of Qwen's kind."""
        path = folder / "preprocessor_config.json"
        config = json_object(path, "pictures are cut as it says")
        size = section(config, "size")
        patch, merge = whole(config, "patch_size"), whole(config, "merge_size")
        least = whole(config, "min_pixels") or whole(size, "shortest_edge")
        most = whole(config, "max_pixels") or whole(size, "longest_edge")
        if not (patch and merge and least and most):
            raise ModelError(
                f"{path} does not say how a picture is cut",
                cause="it needs patch_size, merge_size, and the least and most pixels",
                remedy=_AGAIN,
            )
        return cls(patch * merge, least, most)

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of a picture, resized as smart_resize of transformers does it. Raises ModelError."""
        if max(width, height) > _MOST_ASPECT * min(width, height):
            raise ModelError(
                f"a picture of {width} x {height} pixels cannot be read",
                cause=f"it is more than {_MOST_ASPECT} times as long as wide",
            )
        factor, pixels = self.factor, width * height
        sizes = [round(size / factor) * factor for size in (height, width)]
        if sizes[0] * sizes[1] > self.most_pixels:
            scale = math.sqrt(pixels / self.most_pixels)
            sizes = [max(factor, math.floor(size / scale / factor) * factor) for size in (height, width)]
        elif sizes[0] * sizes[1] < self.least_pixels:
            scale = math.sqrt(self.least_pixels / pixels)
            sizes = [math.ceil(size * scale / factor) * factor for size in (height, width)]
        return sizes[0] * sizes[1] // factor**2


class ChatTokens:
    """Counts the tokens of conversations of a system's text, and a user's text with one picture after it."""

    def __init__(self, folder: Path) -> None:
        self._template = _template(folder)
        self._grid = PictureGrid.of(folder)
        self._tokenizer = read_tokenizer(folder / "tokenizer.json")

    def count(self, conversations: Sequence[tuple[str, str, tuple[int, int]]]) -> Iterator[int]:
        """Yield the tokens of each: of a system's text, a user's text, and width and height of the picture."""
        for start in range(0, len(conversations), _CHUNK):
            chunk = conversations[start : start + _CHUNK]
            texts = [self._text(system, user) for system, user, _ in chunk]
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            for encoding, (_, _, size) in zip(encodings, chunk, strict=True):
                yield len(encoding.ids) - 1 + self._grid.tokens(*size)

    def _text(self, system: str, user: str) -> str:
        """Return a conversation as the template writes it."""
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "text", "text": user}, {"type": "image"}]},
        ]
        return self._template.render(messages=messages, add_generation_prompt=True)


def _template(folder: Path) -> Template:
    """Return a model's chat template, from the file in which it is published. Raises ModelError."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    path = folder / "chat_template.jinja"
    text: Any = text_of(path) if path.is_file() else ""
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not text and (folder / name).is_file():
            text = json_object(folder / name).get("chat_template")
    if not isinstance(text, str) or not text:
        raise ModelError(f"{folder} has no chat template", cause="samples are asked for as messages", remedy=_AGAIN)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    return environment.from_string(text)

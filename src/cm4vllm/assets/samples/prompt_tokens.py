"""The tokens of prompts: whether a model's tokenizer made those of a dataset, the ids that it makes, and their number.

A conversation with a picture is counted as a server counts it: the text of the model's own chat template with one
placeholder, which stands for as many tokens as the picture has.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import DatasetError, ModelError
from cm4vllm.common.files import text_of
from cm4vllm.records.weights.checkpoint import read_checkpoint
from cm4vllm.records.weights.config_json import json_object, section, whole_number

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer


#: Rows that are decoded, spread over the dataset, beside the last one.
_COMPARED = 64
#: The part of a prompt, from where the row's text begins in it, that is this text where the prompt was cut.
_CUT = 0.9
#: Prompts that are tokenised at a time.
_CHUNK = 1024


def beyond(rows: Sequence[Mapping[str, Any]], model: Path) -> str:
    """Return in words which token id of rows the vocabulary of the model in a folder lacks; empty where it has all.

    Raises ModelError.
    """
    vocabulary = read_checkpoint(model).vocabulary
    for number, row in enumerate(rows if vocabulary is not None else ()):
        if (largest := max(row["tok_input"])) >= (vocabulary or 0):
            return f"sample {number} has token id {largest}, and the model's vocabulary has {vocabulary}"
    return ""


def misread_prompts(rows: Sequence[Mapping[str, Any]], model: Path) -> str:
    """Return in words how a model reads the prompts of rows otherwise than their text is; empty where it does not.

    `model` is its folder. Some rows are decoded by its tokenizer: the prompt must have the row's text in it, by its
    letters and digits, because spaces and cases depend on the tokenizer. A prompt may be cut. Raises ModelError.
    """
    if why := beyond(rows, model):
        return why
    tokenizer = read_tokenizer(model / "tokenizer.json")
    for number in sorted({*range(0, len(rows), max(1, len(rows) // _COMPARED)), len(rows) - 1}):
        text, ids = _text(rows[number]), rows[number]["tok_input"]
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if text and not _holds(decoded, text, tokenizer):
            return f"sample {number} reads {_cut(decoded)!r} by the model's tokenizer, and its text is {_cut(text)!r}"
    return ""


def with_token_ids(rows: Sequence[Mapping[str, Any]], model: Path, name: str, why: str) -> list[dict[str, Any]]:
    """Return the rows with the token ids that a model's tokenizer makes of their texts.

    A row whose `instruction` is a template with {input}, as those of cnn_eval.json, has its text in that. `name` is the
    dataset's, `why` what misread() says of it. Raises DatasetError for a row without a text, ModelError.
    """
    tokenizer = read_tokenizer(model / "tokenizer.json")
    if (lacking := next((number for number, row in enumerate(rows) if not _text(row)), None)) is not None:
        raise DatasetError(
            f"{name} was tokenised for another model, and sample {lacking} has no text to tokenise again",
            cause=why,
            remedy="give the dataset that belongs to the model, or one whose rows have their prompt as input",
        )
    made: list[dict[str, Any]] = []
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        encodings = tokenizer.encode_batch([_prompt(row) for row in chunk])
        made += [{**row, "tok_input": encoding.ids} for row, encoding in zip(chunk, encodings, strict=True)]
    return _without_second_begin(made, tokenizer.encode("").ids)


def chat_prompt(model: Path, text: str) -> str:
    """Return a user's text up to the begin of the answer, as a model's chat template writes it; as it is without one.

    `model` is its folder. Raises ModelError for a template that cannot be used.
    """
    from jinja2 import TemplateError

    if not (source := _template_text(model)):
        return text
    try:
        return _compiled(source).render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)
    except TemplateError as error:
        raise ModelError(f"the chat template of {model} cannot be used", cause=str(error)) from error


def message(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> str:
    """Return the message of a prompt, for a server that adds its chat template: what has the row's text in it.

    Where the prompt has a template itself, that is the part between two special tokens; else all without those. The
    text may have been cut in the prompt.
    """
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    wanted = _letters(text)
    for is_special, part in groupby(ids, special.__contains__):
        decoded = "" if is_special else tokenizer.decode(list(part))
        if wanted and _contains(letters := _letters(decoded), wanted):
            return text if letters == wanted else decoded.strip()
    return tokenizer.decode(list(ids)).strip()


def _without_second_begin(rows: list[dict[str, Any]], added: list[int]) -> list[dict[str, Any]]:
    """Return rows whose prompts begin once with what the tokenizer adds to each: their texts may begin so."""
    for row in rows if added else ():
        if row["tok_input"][: 2 * len(added)] == [*added, *added]:
            row["tok_input"] = row["tok_input"][len(added) :]
    return rows


def _text(row: Mapping[str, Any]) -> str:
    """Return the text of a row, empty where it has none."""
    text = row.get("input")
    return text if isinstance(text, str) else ""


def _prompt(row: Mapping[str, Any]) -> str:
    """Return the prompt of a row as text."""
    return next(_templates(row.get("instruction")), "{input}").replace("{input}", _text(row))


def _templates(instruction: Any) -> Iterator[str]:
    """Yield the templates in the instruction of a row: a text, or texts by the kind of model."""
    for text in instruction.values() if isinstance(instruction, Mapping) else (instruction,):
        if isinstance(text, str) and "{input}" in text:
            yield text


def _holds(prompt: str, text: str, tokenizer: Tokenizer) -> bool:
    """Return True if a prompt has a text in it, as it is or as the tokenizer keeps it.

    They are compared by letters and digits, and a text without any by its signs.
    """
    kept = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    compared = _letters if _letters(text) else _signs
    return any(_contains(compared(prompt), compared(part)) for part in (text, kept))


def _contains(prompt: str, text: str) -> bool:
    """Return True if a prompt has a text in it: whole, or as much of its begin or its end as the prompt was cut to."""
    backwards = prompt[::-1], text[::-1]
    return text in prompt or any(_is_cut_to(*both) for both in ((prompt, text), backwards))


def _is_cut_to(prompt: str, text: str) -> bool:
    begin = prompt.find(text[:_COMPARED])
    rest = prompt[begin:] if begin >= 0 else ""
    same = next((at for at, both in enumerate(zip_longest(rest, text)) if both[0] != both[1]), len(rest))
    return same >= max(_COMPARED, _CUT * len(rest))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _signs(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def _cut(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _COMPARED else f"{words[:_COMPARED]}..."


#: How many times as long as wide a picture may be (smart_resize of transformers' qwen2_vl).
_MOST_ASPECT = 200
_AGAIN = "give the whole folder of a model that reads pictures, as Qwen3-VL"
_CHUNK_CHATS = 512


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
        patch, merge = whole_number(config, "patch_size"), whole_number(config, "merge_size")
        least = whole_number(config, "min_pixels") or whole_number(size, "shortest_edge")
        most = whole_number(config, "max_pixels") or whole_number(size, "longest_edge")
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
        for start in range(0, len(conversations), _CHUNK_CHATS):
            chunk = conversations[start : start + _CHUNK_CHATS]
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
    """Return a model's chat template. Raises ModelError where it has none."""
    if not (text := _template_text(folder)):
        raise ModelError(f"{folder} has no chat template", cause="samples are asked for as messages", remedy=_AGAIN)
    return _compiled(text)


def _template_text(folder: Path) -> str:
    """Return a model's chat template, from the file in which it is published; empty where it has none."""
    path = folder / "chat_template.jinja"
    text: Any = text_of(path) if path.is_file() else ""
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not text and (folder / name).is_file():
            text = json_object(folder / name).get("chat_template")
    return text if isinstance(text, str) else ""


def _compiled(text: str) -> Template:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    ).from_string(text)

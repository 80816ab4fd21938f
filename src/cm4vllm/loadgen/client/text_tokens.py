"""Token ids and counts of answers that are text: by the model's own tokenizer, and compared with the server's."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.loadgen.client.event_stream import AnswerError
from cm4vllm.loadgen.client.text_wire import TextAnswer
from cm4vllm.loadgen.records import RunSettings, TextCounts
from cm4vllm.rules import Logged
from cm4vllm.serving.records import Dialect, Prompts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["MOST_APART", "Encoded", "TextSettings", "Texts", "added_up", "prompt_texts", "require_agreement"]

#: The difference allowed between the counts of a server and of the model's tokenizer, as a part of the server's.
MOST_APART = 0.02
#: Answers of a performance run that are kept to be compared when it is over, and their characters, at most.
_KEPT, _KEPT_CHARACTERS = 1000, 1 << 22


class Encoded:
    """An answer as the bytes that LoadGen logs in the place of token ids; its length is that in tokens."""

    __slots__ = ("_tokens", "data")

    def __init__(self, data: bytes, tokens: int) -> None:
        self.data = data
        self._tokens = tokens

    def __len__(self) -> int:
        return self._tokens


class TextSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's settings for reading answers: the dialect, and the file of the tokenizer.

    With `every` each answer is wanted, as in an accuracy run; otherwise counts alone. It is `logged` as its ids, its
    text, or the indices of its characters among `labels`, in lower case.
    """

    dialect: Dialect
    tokenizer: str
    every: bool
    logged: Logged = Logged.TOKENS
    labels: str = ""


class Texts:
    """Counts and token ids that one worker derives from the texts that it receives."""

    def __init__(self, settings: TextSettings) -> None:
        self._settings = settings
        self._tokenizer = read_tokenizer(Path(settings.tokenizer))
        self._labels = {character: index for index, character in enumerate(settings.labels)}
        self._kept: list[TextAnswer] = []
        self._kept_characters = 0
        self._seen = 0
        self._draw = random.Random(0)  # noqa: S311 - a sample of answers
        self._compared = self._server_tokens = self._tokenizer_tokens = self._apart = 0
        self._prompt_tokens = self._cached_tokens = 0

    @property
    def dialect(self) -> Dialect:
        return self._settings.dialect

    def tokens_of(self, answer: TextAnswer) -> array[int] | Encoded | int:
        """Return the ids of an answer's tokens or what is logged in their place; their number where it is not wanted.

        Raises AnswerError.
        """
        self._prompt_tokens += max(0, answer.prompt_tokens)
        self._cached_tokens += answer.cached_tokens
        if not self._settings.every and self.dialect.usage:
            self._keep(answer)
            return answer.tokens
        ids = self._ids(answer.text)
        self._compare(answer, len(ids))
        if self._settings.logged is not Logged.TOKENS:
            return Encoded(self._logged(answer.text), answer.tokens)
        if not ids:
            raise AnswerError("the answer has no text, so that it has no token ids")
        return array("i", ids) if self._settings.every else len(ids)

    def counts(self) -> TextCounts:
        """Return the counts, with the answers that were kept for them."""
        kept, self._kept = self._kept, []
        for answer in kept:
            self._compare(answer, len(self._ids(answer.text)))
        return TextCounts(
            answers=self._compared,
            server_tokens=self._server_tokens,
            tokenizer_tokens=self._tokenizer_tokens,
            apart=self._apart,
            server_prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_tokens,
        )

    def _logged(self, text: str) -> bytes:
        """Return an answer as the reference logs it."""
        if self._settings.logged is Logged.TEXT:
            return text.encode()
        labels = self._labels
        return array("q", [labels[letter] for letter in text.lower().strip() if letter in labels]).tobytes()

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _compare(self, answer: TextAnswer, count: int) -> None:
        if answer.tokens < 0:
            return
        # The token that ends an answer is in no text; some servers count it, some do not.
        ended = answer.finish_reason == "stop" and answer.tokens > count
        self._compared += 1
        self._server_tokens += answer.tokens
        self._tokenizer_tokens += count
        self._apart += abs(answer.tokens - count - ended)

    def _keep(self, answer: TextAnswer) -> None:
        """Keep an answer for the comparison, so that each has the same chance whenever it comes."""
        self._seen += 1
        if len(self._kept) < _KEPT and self._kept_characters + len(answer.text) <= _KEPT_CHARACTERS:
            self._kept.append(answer)
            self._kept_characters += len(answer.text)
            return
        place = self._draw.randrange(self._seen)
        if place < len(self._kept):
            self._kept_characters += len(answer.text) - len(self._kept[place].text)
            self._kept[place] = answer


def prompt_texts(settings: RunSettings, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Return the prompts of a dataset's rows as text, and how many of them the tokenizer reads as other token ids.

    A conversation has the dataset's own text: the server's chat template is added to it.
    """
    tokenizer = read_tokenizer(settings.model.tokenizer_file)
    texts, changed = [], 0
    for row in rows:
        ids, own = row["tok_input"], str(row.get("input") or "")
        candidates = [own, *_decoded(tokenizer, ids)]
        same = next((text for text in candidates if text and tokenizer.encode(text).ids == ids), None)
        if settings.server.dialect is not None and settings.server.dialect.prompts is Prompts.CHAT:
            same = own or candidates[-1]
        texts.append(next(filter(None, candidates), "") if same is None else same)
        changed += same is None
    return texts, changed


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> Iterator[str]:
    """Give the texts of token ids: without what the tokenizer adds to each text by itself, and as they are."""
    added = tokenizer.encode("").ids
    if added and ids[: len(added)] == added:
        yield tokenizer.decode(ids[len(added) :], skip_special_tokens=False)
    yield tokenizer.decode(ids, skip_special_tokens=False)


def added_up(counts: Iterable[TextCounts | None], *, prompt_tokens: int, prompts_changed: int) -> TextCounts | None:
    """Return the sum of the workers' counts, None if no worker counted.

    Together they sent `prompt_tokens`, of prompts of which `prompts_changed` are read as other token ids.
    """
    total: TextCounts | None = None
    for count in filter(None, counts):
        total = (
            count
            if total is None
            else TextCounts(
                **{name: getattr(total, name) + getattr(count, name) for name in TextCounts.__struct_fields__}
            )
        )
    return None if total is None else replace(total, prompt_tokens=prompt_tokens, prompts_changed=prompts_changed)


def require_agreement(settings: RunSettings, counts: TextCounts | None) -> None:
    """Raise ServerUnsuitable when a server and the model's tokenizer count more than MOST_APART apart."""
    dialect = settings.server.dialect
    if counts is None or dialect is None:
        return
    if counts.difference is not None and counts.difference > MOST_APART:
        raise ServerUnsuitable(
            f"the server counts other tokens than the tokenizer of {settings.model.name}",
            cause=f"they differ by {counts.difference:.1%} over {counts.answers:,} answers ({counts.server_tokens:,} "
            f"and {counts.tokenizer_tokens:,} tokens); {MOST_APART:.0%} is allowed",
            remedy="give the model that it serves, with its own tokenizer, by --vllm_model_name",
        )
    sent, counted = counts.prompt_tokens, counts.server_prompt_tokens
    if dialect.prompts is Prompts.PICTURE and counted != sent:
        raise ServerUnsuitable(
            f"the server counts other tokens of prompts with pictures than {settings.model.name} has",
            cause=f"it counts {counted:,} where the chat template and the sizes of the pictures give {sent:,}: it "
            "reads other prompts, or pictures of other sizes",
            remedy="give the model that it serves by --vllm_model_name, and serve it without other settings of its "
            "picture processor",
        )
    if dialect.prompts is Prompts.TEXT and dialect.usage and abs(counted - sent) > MOST_APART * sent:
        raise ServerUnsuitable(
            f"the server reads prompts as other tokens than the tokenizer of {settings.model.name}",
            cause=f"it counts {counted:,} tokens where the dataset has {sent:,}; {MOST_APART:.0%} is allowed",
            remedy="give the model that it serves, with its own tokenizer, by --vllm_model_name, and a dataset "
            "that was made with that tokenizer by --dataset_path, or --dataset=tiny of run-mlperf,inference",
        )

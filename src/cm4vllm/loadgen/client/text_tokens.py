"""Token ids and counts of answers that are text: by the model's own tokenizer, and compared with the server's."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from cm4vllm.assets.samples.prompt_tokens import message
from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.client import ClientRecord, TextCounts
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import Dialect, Prompts
from cm4vllm.rules import Logged
from cm4vllm.serving.answers.event_stream import AnswerError
from cm4vllm.serving.answers.text_answers import TextAnswer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


#: The difference allowed between the counts of a server and of the model's tokenizer, as a part of the server's.
MOST_APART = 0.02
#: Tokens that a server may add to each text: one that begins it, and one that ends it.
_ADDED = 2
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


#: An answer of one token, the one that ended it: scored as empty, as the references do.
EMPTY = Encoded(b"", 1)


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
        """Load the tokenizer and the labels that the settings name."""
        self._settings = settings
        self._tokenizer = read_tokenizer(Path(settings.tokenizer))
        self._labels = {character: index for index, character in enumerate(settings.labels)}
        self._kept: list[TextAnswer] = []
        self._kept_characters = 0
        self._seen = 0
        self._draw = random.Random(0)  # noqa: S311 - a sample of answers
        self._counts = TextCounts(answers=0, server_tokens=0, tokenizer_tokens=0, apart=0)

    @property
    def dialect(self) -> Dialect:
        """Return the dialect of the server, as the probe observed it."""
        return self._settings.dialect

    def tokens_of(self, answer: TextAnswer) -> array[int] | Encoded | int:
        """Return the ids of an answer's tokens or what is logged in their place; their number where it is not wanted.

        Raises AnswerError.
        """
        tokens = answer.stated.tokens
        if not self._settings.every and self.dialect.usage:
            if not tokens:
                raise AnswerError("the answer has no tokens")
            self._keep(answer)
            return tokens
        ids = self._ids(answer.text)
        self._compare(answer, len(ids))
        if self._settings.logged is not Logged.TOKENS:
            return Encoded(self._logged_text(answer.text), max(1, tokens))
        if not self._settings.every:
            if not ids:
                raise AnswerError("the answer has no text, so that its tokens cannot be counted")
            return len(ids)
        return array("i", ids) if ids else Encoded(b"", tokens) if tokens > 1 else EMPTY

    def counts(self) -> TextCounts:
        """Return the counts, with the answers that were kept for them."""
        kept, self._kept = self._kept, []
        for answer in kept:
            self._compare(answer, len(self._ids(answer.text)))
        return self._counts

    def _logged_text(self, text: str) -> bytes:
        """Return an answer as the reference logs it."""
        if self._settings.logged is Logged.TEXT:
            return text.encode()
        labels = self._labels
        return array("q", [labels[letter] for letter in text.lower().strip() if letter in labels]).tobytes()

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _compare(self, answer: TextAnswer, count: int) -> None:
        """Add the difference between the server's count of tokens and the tokenizer's to the totals."""
        tokens = answer.stated.tokens
        if tokens < 0:
            return
        # The token that ends an answer is in no text; some servers count it, some do not.
        more = tokens - count - (answer.finish_reason == "stop" and tokens > count)
        self._counts = self._counts.plus(
            TextCounts.of_answer(tokens, count, more=more, first=len(self._ids(answer.first)), unsent=answer.unsent)
        )

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


def prompt_texts(settings: RunSettings, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[int], int]:
    """Return the prompts of a dataset's rows as text, and the tokens of each as the tokenizer reads it.

    The last number is how many of them it reads as other token ids. A conversation is the whole prompt, decoded: the
    server's chat template is added to it, with the tokens that the tokenizer adds to a text by itself.
    """
    tokenizer = read_tokenizer(settings.model.tokenizer_file)
    texts, lengths, changed = [], [], 0
    chat = settings.server.dialect is not None and settings.server.dialect.prompts is Prompts.CHAT
    for row in rows:
        ids, own = row["tok_input"], str(row.get("input") or "")
        decoded = [] if chat else list(_decode(tokenizer, ids))
        alike = (text for text in (own, *decoded) if text and tokenizer.encode(text).ids == ids)
        same = message(tokenizer, ids, own) if chat else next(alike, None)
        # The row's text may be a part of the prompt: an article without what is asked about it.
        texts.append(next(filter(None, decoded), own) if same is None else same)
        lengths.append(len(tokenizer.encode(texts[-1], add_special_tokens=not chat).ids))
        changed += same is None
    return texts, lengths, changed


def _decode(tokenizer: Tokenizer, ids: list[int]) -> Iterator[str]:
    """Yield the texts of token ids: without what the tokenizer adds to each text by itself, and as they are."""
    added = tokenizer.encode("").ids
    if added and ids[: len(added)] == added:
        yield tokenizer.decode(ids[len(added) :], skip_special_tokens=False)
    yield tokenizer.decode(ids, skip_special_tokens=False)


def added_up(counts: Iterable[TextCounts | None], *, prompts_changed: int) -> TextCounts | None:
    """Return the sum of the workers' counts, None if no worker counted.

    `prompts_changed` of their prompts are read as other token ids.
    """
    known = [count for count in counts if count is not None]
    return replace(reduce(TextCounts.plus, known), prompts_changed=prompts_changed) if known else None


def require_agreement(settings: RunSettings, client: ClientRecord) -> None:
    """Raise ServerUnsuitable when a server and the model's tokenizer count more than MOST_APART apart."""
    dialect, counts = settings.server.dialect, client.text
    if counts is None or dialect is None:
        return
    if counts.difference is not None and counts.difference > MOST_APART:
        unsent = f"; {counts.unsent}" if counts.unsent else ""
        raise ServerUnsuitable(
            f"the server counts other tokens than the tokenizer of {settings.model.name}",
            cause=f"they differ by {counts.difference:.1%} over {counts.answers:,} answers ({counts.server_tokens:,} "
            f"and {counts.tokenizer_tokens:,} tokens); {MOST_APART:.0%} is allowed{unsent}",
            remedy="have the server send all text that it generates: serve it without parsers of reasoning and tools"
            if unsent
            else "give the model that it serves, with its own tokenizer, by --vllm_model_name",
        )
    if dialect.prompts is not Prompts.TEXT or not dialect.usage:
        return
    sent, counted, least, most = client.prompt_tokens, client.server_prompt_tokens, client.least_more, client.most_more
    added = least is not None and least == most and 0 < least <= _ADDED
    if counted - sent > MOST_APART * sent and not added:
        raise ServerUnsuitable(
            f"the server reads prompts as other tokens than the tokenizer of {settings.model.name}",
            cause=f"it counts {counted:,} tokens where the prompts that were sent have {sent:,} "
            f"({client.more_words}); {MOST_APART:.0%} is allowed",
            remedy="give the model that it serves, with its own tokenizer, by --vllm_model_name, and a dataset "
            "that was made with that tokenizer by --dataset_path, or --dataset=tiny of run-mlperf,inference",
        )

"""Answers that list token ids: the exact ids out of an answer's bytes.

An answer is a JSON document, or a stream of `data: {...}` lines that ends with `data: [DONE]`. Token ids are those the
server lists under `token_ids`; text is never tokenised again. An answer counts only when all of it is understood: it
has one choice, no error, ends with finish_reason `stop` or `length`, lists as many ids as its usage says, and keeps to
the limits that were asked for. Everything else raises AnswerError.

Reading is deferred: while a stream runs, its bytes are only gathered, and searched for the first token.
"""

from __future__ import annotations

import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from cm4vllm.serving.answers.event_stream import AnswerError, EventStream
from cm4vllm.serving.answers.stated import (
    AnswerLimits,
    Choice,
    Decoders,
    Document,
    FinishReason,
    Named,
    Parts,
    Stated,
    decode,
)

#: The first token id of a list. Generated text cannot pass for it: JSON escapes the quotes inside strings.
_FIRST = re.compile(rb'"token_ids"\s*:\s*\[\s*(\d{1,10})\s*[,\]]')
_MOST_ID = 2**31 - 1
_LINE_BEGINS = (b"data:", BOM_UTF8 + b"data:")


class NoTokenIds(AnswerError):
    """An answer of a server that lists no token ids."""


class Answer(NamedTuple):
    """A whole answer: its int32 token ids, why it ended, and the server's statements.

    `first_tokens` came with the first event that had any; 0 in an answer that is no stream.
    """

    tokens: array[int]
    finish_reason: FinishReason
    stated: Stated
    first_tokens: int = 0


class _Choice(Choice, gc=False):
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MOST_ID)]] | None = None


_DECODERS = Decoders(msgspec.json.Decoder(Named[_Choice]), msgspec.json.Decoder(list[Document[_Choice]]))


def whole_answer(body: bytes, prompt_tokens: int, limits: AnswerLimits) -> Answer:
    """Return an answer that is no stream. Raises AnswerError when it does not add up."""
    parts = _IdParts()
    parts.add_one(body)
    return parts.answer(prompt_tokens, limits)


def lists_ids(body: bytes) -> bool:
    """Return True if an answer that is no stream lists token ids. Raises AnswerError."""
    return any(choice.token_ids is not None for choice in decode(body, _DECODERS.one).choices or ())


class _IdParts(Parts[_Choice]):
    """The part of an answer read so far; `first_tokens` came with the first document that had any."""

    __slots__ = ("first_tokens", "tokens")

    def __init__(self) -> None:
        super().__init__(_DECODERS)
        self.tokens = array("i")
        self.first_tokens = 0

    def _add(self, documents: Sequence[Document[_Choice]], raw: bytes) -> None:
        ids: list[int] = []
        first, ended = self.first_tokens, self.reason is not None
        for document in documents:
            choice = self._choice(document, raw)
            if choice is None:
                continue
            listed = choice.token_ids
            if ended or choice.finish_reason is not None:
                self._end(choice.finish_reason, goes_on=bool(listed))
                ended = self.reason is not None
            if listed:
                ids += listed
                first = first or len(listed)
        self.first_tokens = first
        self.tokens.fromlist(ids)

    def answer(self, prompt_tokens: int, limits: AnswerLimits, first_tokens: int = 0) -> Answer:
        """Return the answer, if it is whole and keeps to `limits`. Raises AnswerError."""
        stated, count, reason = self.stated(), len(self.tokens), self.finish_reason()
        if stated.tokens < 0:
            raise AnswerError("the answer has no usage.completion_tokens")
        if not count and not limits.ends_at_once(stated.tokens, reason):
            if stated.tokens:
                raise NoTokenIds("the answer lists no token_ids, so its tokens cannot be known exactly")
            raise AnswerError("the answer has no tokens")
        if count and count != stated.tokens:
            raise AnswerError(
                "the answer's token_ids and its usage.completion_tokens disagree",
                f"it listed {count} ids and reported {stated.tokens}",
            )
        if stated.prompt_tokens != prompt_tokens:
            raise AnswerError(
                "the server counts other prompt tokens than were sent",
                f"{prompt_tokens} were sent, it counts {stated.prompt_tokens}",
            )
        limits.require_kept(prompt_tokens, count, reason)
        return Answer(self.tokens, reason, stated, first_tokens)


class StreamReader(EventStream):
    """Gathers the bytes of one stream, and gives its answer at the end."""

    __slots__ = ("_first", "_parts", "_searched")

    def __init__(self) -> None:
        self._parts = _IdParts()
        super().__init__(self._parts)
        self._searched = 0  # the begin of the first line that has not been searched for a token
        self._first = -1

    @property
    def token_count(self) -> int:
        """The number of tokens in the whole events read so far."""
        return len(self._parts.tokens)

    def feed(self, data: bytes) -> int | None:
        """Process the next bytes. Returns the first token's id when it came just now, None otherwise."""
        self._buffer += data
        return self._first_token() if self._first < 0 else None

    def compact(self) -> None:
        """Reduce whole lines to their tokens."""
        end = self._buffer.rfind(b"\n\n") + 2
        if end < 2:
            end = self._buffer.rfind(b"\n") + 1
        if end:
            self._read(end)

    def finish(self, prompt_tokens: int, limits: AnswerLimits) -> Answer:
        """Return the whole answer. Raises AnswerError when the stream is not whole or does not add up."""
        self._require_whole()
        answer = self._parts.answer(prompt_tokens, limits, self._parts.first_tokens)
        if answer.tokens and answer.tokens[0] != self._first:
            raise AnswerError("the stream's first token could not be read when it came")
        return answer

    def _first_token(self) -> int | None:
        """Return the first token's id if it has come."""
        buffer = self._buffer
        token = _FIRST.search(buffer, self._searched)
        while token is not None:
            begin = max(buffer.rfind(b"\n", 0, token.start()), buffer.rfind(b"\r", 0, token.start())) + 1
            # The events before it, which have none, may name this one: those are read line by line.
            unnamed = not self._name and buffer.find(b"event", 0, begin) < 0
            if unnamed and buffer.startswith(_LINE_BEGINS, begin) and int(token[1]) <= _MOST_ID:
                self._first = int(token[1])
                return self._first
            token = _FIRST.search(buffer, token.end())
        self._searched = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        if self._searched:  # whole lines without it: events that have none, or one in another form
            self.compact()
            if self._parts.tokens:
                self._first = self._parts.tokens[0]
                return self._first
        return None

    def _read(self, end: int) -> None:
        self._searched = 0
        super()._read(end)

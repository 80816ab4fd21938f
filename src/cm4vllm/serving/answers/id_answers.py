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
from typing import Annotated, Any, NamedTuple

import msgspec

from cm4vllm.serving.answers.event_stream import AnswerError, EventStream
from cm4vllm.serving.answers.stated import (
    NO_REASONS,
    AnswerLimits,
    FinishReason,
    Parts,
    Stated,
    decoded,
    finish_reason,
    refuse,
)

__all__ = ["Answer", "NoTokenIds", "StreamReader", "lists_ids", "whole_answer"]

#: The first token id of a list. Generated text cannot pass for it: JSON escapes the quotes inside strings.
_FIRST = re.compile(rb'"token_ids"\s*:\s*\[\s*(\d{1,10})\s*[,\]]')
_MOST_ID = 2**31 - 1
_DONE_LINE = b"data: [DONE]\n\n"
_BETWEEN = b"\n\ndata: "
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


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MOST_ID)]] | None = None
    finish_reason: str | None = None


class _Document(msgspec.Struct, gc=False):
    """A whole answer, or one event of a stream. `message` is that of an error without a name."""

    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    message: Any = None


class _Named(_Document, gc=False):
    """A document with the name of the model: of each event it would cost a fifteenth of the whole reading."""

    model: Any = None


class _Name(msgspec.Struct, gc=False):
    """The name of the model alone."""

    model: Any = None


_decoder = msgspec.json.Decoder(_Named)
_decode_list = msgspec.json.Decoder(list[_Document]).decode
_decode_name = msgspec.json.Decoder(_Name).decode


def whole_answer(body: bytes, prompt_tokens: int, limits: AnswerLimits) -> Answer:
    """Return an answer that is no stream. Raises AnswerError when it does not add up."""
    parts = _IdParts()
    parts.add_one(body)
    return parts.answer(prompt_tokens, limits)


def lists_ids(body: bytes) -> bool:
    """Return True if an answer that is no stream lists token ids. Raises AnswerError."""
    return any(choice.token_ids is not None for choice in decoded(body, _decoder).choices or ())


class _IdParts(Parts):
    """The part of an answer read so far; the answer's documents are added in order."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        super().__init__()
        self.tokens = array("i")

    def add_one(self, raw: bytes) -> None:
        """Take the next document with the name of its model. Raises AnswerError."""
        document = decoded(raw, _decoder)
        self.add((document,))
        self.take_model(document.model)

    def add(self, documents: Sequence[_Document]) -> None:
        """Take the next documents. Raises AnswerError."""
        extend = self.tokens.extend
        for document in documents:
            if document.error:
                refuse(document.error)
            if document.usage is not None:
                self.take_usage(document.usage)
            choices = document.choices
            if not choices:
                refuse(document.message)
                continue
            choice = choices[0]
            if choice.index or len(choices) > 1:
                raise AnswerError("the answer has more than one choice")
            if self.reason is not None and (choice.token_ids or choice.finish_reason not in (*NO_REASONS, self.reason)):
                raise AnswerError("the answer goes on after its finish_reason")
            if choice.token_ids:
                extend(choice.token_ids)
            if choice.finish_reason not in NO_REASONS:
                self.reason = choice.finish_reason

    def answer(self, prompt_tokens: int, limits: AnswerLimits, first_tokens: int = 0) -> Answer:
        """Return the answer, if it is whole and keeps to `limits`. Raises AnswerError."""
        stated, count, reason = self.stated(), len(self.tokens), finish_reason(self.reason)
        if stated.tokens < 0:
            raise AnswerError("the answer has no usage.completion_tokens")
        if not count and stated.tokens:
            raise NoTokenIds("the answer lists no token_ids, so its tokens cannot be known exactly")
        if not count:
            raise AnswerError("the answer has no tokens")
        if count != stated.tokens:
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

    __slots__ = ("_first", "_first_tokens", "_parts", "_searched")

    def __init__(self) -> None:
        super().__init__()
        self._parts = _IdParts()
        self._searched = 0  # the begin of the first line that has not been searched for a token
        self._first = -1
        self._first_tokens = 0

    @property
    def token_count(self) -> int:
        """The number of tokens in the whole events read so far."""
        return len(self._parts.tokens)

    def feed(self, data: bytes) -> int | None:
        """Take the next bytes. Returns the first token's id when it came just now, None otherwise."""
        self._buffer += data
        if self._first < 0:
            return self._first_token()
        return None

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
        answer = self._parts.answer(prompt_tokens, limits, self._first_tokens)
        if answer.tokens[0] != self._first:
            raise AnswerError("the stream's first token could not be read when it came")
        return answer

    def _first_token(self) -> int | None:
        """Return the first token's id if it has come."""
        buffer = self._buffer
        token = _FIRST.search(buffer, self._searched)
        while token is not None:
            begin = max(buffer.rfind(b"\n", 0, token.start()), buffer.rfind(b"\r", 0, token.start())) + 1
            if buffer.startswith(_LINE_BEGINS, begin) and int(token[1]) <= _MOST_ID:
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

    def _read_lines(self, raw: bytes) -> None:
        documents = self._documents_of_plain_events(raw)
        if documents is None:
            super()._read_lines(raw)
            return
        if not self._first_tokens:
            self._first_tokens = next((len(ids) for document in documents if (ids := _ids(document))), 0)
        self._parts.add(documents)

    def _add(self, data: bytes) -> None:
        self._parts.add_one(data)
        if not self._first_tokens:
            self._first_tokens = len(self._parts.tokens)

    def _documents_of_plain_events(self, raw: bytes) -> list[_Document] | None:
        """Return the events in `raw`, decoded at once, where each line is an event in vLLM's form; None otherwise."""
        done = raw.endswith(_DONE_LINE)
        events = raw[6 : -len(_DONE_LINE) if done else None].removesuffix(b"\n\n")
        if self._done or self._name or self._parts_of_event or not raw.startswith(b"data: {") or b"\r" in events:
            return None
        joined = events.replace(_BETWEEN, b",")
        if b"\n" in joined:
            return None
        try:
            documents = _decode_list(b"[%b]" % joined)
        except Exception:  # what is wrong is found line by line
            return None
        if len(documents) != (len(events) - len(joined)) // (len(_BETWEEN) - 1) + 1:
            return None  # a line with more than one document
        # Of the first event and of the last: those between are the same server's.
        parts = self._parts
        if not parts.models:
            end = events.find(_BETWEEN)
            parts.take_model(_decode_name(events[: end if end >= 0 else None]).model)
        if done and (begin := events.rfind(_BETWEEN)) >= 0:
            parts.take_model(_decode_name(events[begin + len(_BETWEEN) :]).model)
        self._done = done
        return documents


def _ids(document: _Document) -> list[int]:
    """Return the token ids of an event."""
    return (document.choices and document.choices[0].token_ids) or []

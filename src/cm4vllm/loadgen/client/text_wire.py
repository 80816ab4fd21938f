"""Answers of servers that give text and no token ids: requests, and text, counts and end out of an answer's bytes.

The formats are those of OpenAI's completions and conversations. An answer must be what wire asks of one, but
for the ids: it has one choice, no error, ends with finish_reason `stop` or `length`, and keeps to the limits, as far as
the server counts its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from cm4vllm.loadgen.client.event_stream import AnswerError, EventStream, error_message, error_words
from cm4vllm.loadgen.client.wire import AnswerLimits, FinishReason, Sampling, drawn, finish_reason
from cm4vllm.serving.records import Dialect, Prompts
from cm4vllm.serving.text_servers import text_body

__all__ = ["TextAnswer", "TextReader", "text_completion_body", "whole_text"]


class TextAnswer(NamedTuple):
    """A whole answer: its text, what the server counts of it (-1: it does not), and why it ended.

    `cached_tokens` are tokens of the prompt that the server took from a cache.
    """

    text: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    finish_reason: FinishReason


def text_completion_body(sampling: Sampling, dialect: Dialect, prompt: str | Sequence[int]) -> bytes:
    """Return the JSON body that asks for one answer to `prompt`, in the dialect of the server."""
    return msgspec.json.encode(text_body(dialect, sampling.model, prompt, drawn(sampling), streamed=sampling.streamed))


class _Part(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int = -1
    prompt_tokens: int = -1
    prompt_tokens_details: _Details | None = None


class _Document(msgspec.Struct, gc=False):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Document).decode


def whole_text(body: bytes, prompt_tokens: int, limits: AnswerLimits, dialect: Dialect) -> TextAnswer:
    """Return an answer that is no stream. Raises AnswerError when it is not whole."""
    parts = _Parts()
    parts.add(body)
    return parts.answer(prompt_tokens, limits, dialect)


class _Parts:
    """The part of an answer read so far; the answer's documents are added in order."""

    __slots__ = ("pieces", "reason", "usage")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.reason: str | None = None
        self.usage: _Usage | None = None

    def add(self, raw: bytes) -> None:
        """Take the next document. Raises AnswerError."""
        try:
            document = _decode(raw)
        except Exception:  # msgspec raises more than its own errors: RecursionError, UnicodeDecodeError
            raise AnswerError(error_message(raw) or "the answer is not a completion in JSON") from None
        if document.error is not None:
            raise AnswerError(error_words(document.error) or "the server answered with an error")
        if document.usage is not None:
            self.usage = document.usage
        if not document.choices:
            return
        choice = document.choices[0]
        if choice.index or len(document.choices) > 1:
            raise AnswerError("the answer has more than one choice")
        begun = len(self.pieces)
        self._add_texts(choice)
        if self.reason is not None and (len(self.pieces) > begun or choice.finish_reason not in (None, self.reason)):
            raise AnswerError("the answer goes on after its finish_reason")
        if choice.finish_reason is not None:
            self.reason = choice.finish_reason

    def _add_texts(self, choice: _Choice) -> None:
        """Add the texts of a choice; what a model writes while it reasons is generated and counted like the rest."""
        part = choice.delta or choice.message
        if part is None:
            texts = (choice.reasoning_content or choice.reasoning, choice.text)
        else:
            texts = (part.reasoning_content or part.reasoning, part.content)
        self.pieces += filter(None, texts)

    def answer(self, prompt_tokens: int, limits: AnswerLimits, dialect: Dialect) -> TextAnswer:
        """Return the answer, if it is whole and keeps to `limits`. Raises AnswerError."""
        reason = finish_reason(self.reason)
        usage = (self.usage if dialect.usage else None) or _Usage()
        text, count = "".join(self.pieces), usage.completion_tokens
        if dialect.usage:
            _require_counts(usage, prompt_tokens, limits, dialect, reason)
        elif not text:
            raise AnswerError("the answer has no text")
        cached = (usage.prompt_tokens_details or _Details()).cached_tokens or 0
        return TextAnswer(text, count, usage.prompt_tokens, cached, reason)


def _require_counts(
    usage: _Usage, prompt_tokens: int, limits: AnswerLimits, dialect: Dialect, reason: FinishReason
) -> None:
    """Raise AnswerError for an answer that does not keep to what was asked for, as the server itself counts it."""
    count = usage.completion_tokens
    if count < 0:
        raise AnswerError("the answer has no usage.completion_tokens")
    if not count:
        raise AnswerError("the answer has no tokens")
    if dialect.prompts is Prompts.IDS and usage.prompt_tokens != prompt_tokens:
        raise AnswerError("the server counts other prompt tokens than were sent")
    limits.require_kept(max(prompt_tokens, usage.prompt_tokens), count, reason)


class TextReader(EventStream):
    """Gathers the bytes of one stream, and gives its answer at the end."""

    __slots__ = ("_begun", "_dialect", "_parts")

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect
        self._parts = _Parts()
        self._begun = False

    @property
    def token_count(self) -> int:
        """The number of pieces of text in the whole events read so far."""
        return len(self._parts.pieces)

    def feed(self, data: bytes) -> int | None:
        """Take the next bytes. Returns 0 when the first text came just now, None otherwise: its token is not known."""
        self._buffer += data
        if self._begun:
            return None
        self.compact()
        self._begun = bool(self._parts.pieces)
        return 0 if self._begun else None

    def compact(self) -> None:
        """Reduce whole lines to their texts."""
        self._read(self._buffer.rfind(b"\n") + 1)

    def finish(self, prompt_tokens: int, limits: AnswerLimits) -> TextAnswer:
        """Return the whole answer. Raises AnswerError when the stream is not whole."""
        self._require_whole(done=self._dialect.done)
        return self._parts.answer(prompt_tokens, limits, self._dialect)

    def _add(self, data: bytes) -> None:
        self._parts.add(data)

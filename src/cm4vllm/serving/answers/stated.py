"""The parts of every answer beside its tokens: its end, its limits, the name of its model, its usage.

Documents are decoded strictly first, which is fast. What that refuses is decoded again by Python's own reader, which
takes what servers write that is no JSON (NaN, Infinity, a byte order mark). A value that is not needed is not judged,
and one that is null is not stated.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec

from cm4vllm.serving.answers.event_stream import AnswerError, NotJson, cleaned, error_message, error_words

__all__ = ["NO_REASONS", "AnswerLimits", "FinishReason", "Parts", "Stated", "decoded", "finish_reason", "refuse"]

#: The ends of a whole answer: a token that ends it, or the length that was asked for. "abort", "error" and whatever
#: else a server may say stand for an answer that was cut.
FinishReason = Literal["stop", "length"]
#: The values of a finish_reason that stand for none: some servers write an empty text, or the word.
NO_REASONS = (None, "", "null")
#: The words of text-generation-inference for an end by a token, or by a text that was asked for
#: (huggingface/text-generation-inference, docs/openapi.json, FinishReason).
_SAME = {"eos_token": "stop", "stop_sequence": "stop"}
#: The places of a usage that say how many tokens of the prompt came from a cache: of OpenAI, DeepSeek and Moonshot.
_CACHED = (("prompt_tokens_details", "cached_tokens"), ("prompt_cache_hit_tokens", ""), ("cached_tokens", ""))
#: Bytes of a document that is no JSON that are shown.
_BEGIN = 60

T = TypeVar("T")


class AnswerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the length of an answer in tokens: those of the request, and the server's own."""

    min_tokens: int
    max_tokens: int
    max_model_len: int

    def require_kept(self, prompt_tokens: int, tokens: int, reason: FinishReason) -> None:
        """Raise AnswerError for an answer of `tokens` that is too short, too long, or cut before its length."""
        if tokens < self.min_tokens:
            raise AnswerError("the answer has fewer tokens than min_tokens")
        if tokens > self.max_tokens:
            raise AnswerError("the answer has more tokens than max_tokens")
        if reason == "length" and tokens < self.max_tokens and prompt_tokens + tokens < self.max_model_len:
            raise AnswerError("the answer ends with finish_reason 'length' before max_tokens and the model's length")


def finish_reason(named: str | None) -> FinishReason:
    """Return the reason that a whole answer has for its end. Raises AnswerError for every other."""
    if named is None:
        raise AnswerError("the answer has no finish_reason")
    known = _SAME.get(named, named)
    if known not in ("stop", "length"):
        raise AnswerError(f"the answer was cut: its finish_reason is {cleaned(named)!r}")
    return cast(FinishReason, known)


class Stated(NamedTuple):
    """A server's statements about one answer: the names of its model, and counts of tokens (-1: it states none).

    `cached_tokens` are those of the prompt that it took from a cache, `reasoning_tokens` those of the answer that are
    reasoning; both are 0 where it states none.
    """

    prompt_tokens: int = -1
    tokens: int = -1
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    models: tuple[str, ...] = ()


class Parts:
    """The part of an answer read so far, but for its tokens: its end, its usage, and the names of its model."""

    __slots__ = ("models", "reason", "usage")

    def __init__(self) -> None:
        self.reason: str | None = None
        self.usage: dict[str, Any] = {}
        self.models: tuple[str, ...] = ()

    def take_usage(self, usage: Any) -> None:
        """Take a usage; one whose counts are null states nothing."""
        if isinstance(usage, dict) and usage.get("completion_tokens") is not None:
            self.usage = usage

    def take_model(self, name: Any) -> None:
        """Take the name that a document gives to the model; some begin with an empty one."""
        if isinstance(name, str) and name and name not in self.models and len(self.models) < 2:
            self.models += (name,)

    def stated(self) -> Stated:
        """Return what the server states. Raises AnswerError where a count of tokens is no number of tokens."""
        usage = self.usage
        prompt, tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        cached = reasoning = 0
        for outer, inner in _CACHED:
            if part := usage.get(outer):
                cached = max(cached, _lenient_count(part, inner))
        if part := usage.get("completion_tokens_details"):
            reasoning = _lenient_count(part, "reasoning_tokens")
        return Stated(
            _count("prompt_tokens", prompt), _count("completion_tokens", tokens), cached, reasoning, self.models
        )


def refuse(error: Any) -> None:
    """Raise AnswerError for the error that a document has; an empty one is none."""
    if error:
        raise AnswerError(error_words(error))


def _count(name: str, value: Any) -> int:
    """Return a count of tokens, -1 where it is not stated. 12.0 and "12" are 12. Raises AnswerError."""
    if type(value) is int and value >= 0:
        return value
    if value is None:
        return -1
    try:
        number = float(value)
        count = int(number)
    except (TypeError, ValueError, OverflowError):
        number = count = -1
    if isinstance(value, bool) or count != number or count < 0:
        raise AnswerError(f"the answer's usage.{name} is no number of tokens", cleaned(repr(value)))
    return count


def _lenient_count(part: Any, name: str) -> int:
    """Return a count, with a name that of a field; 0 where it is not stated, or is none."""
    value = part.get(name) if name and isinstance(part, dict) else part
    try:
        return max(0, _count(name, value))
    except AnswerError:
        return 0


def decoded(raw: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> T:
    """Return a decoded answer or event. Raises NotJson."""
    try:
        return decoder.decode(raw)
    except Exception as error:  # msgspec raises more than its own errors: RecursionError, UnicodeDecodeError
        first = str(error)
    try:
        return msgspec.convert(json.loads(raw), decoder.type)
    except Exception as error:
        if "token_ids" in f"{first} {error}":
            raise AnswerError("the answer's token_ids are not 32-bit integers of 0 or more") from None
        message, begin = error_message(raw), cleaned(bytes(raw[:_BEGIN]).decode(errors="replace"))
        raise NotJson(message or "the answer is not a completion in JSON", "" if message else repr(begin)) from None

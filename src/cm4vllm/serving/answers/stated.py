"""The parts of every answer beside its tokens: its end, its limits, the name of its model, its usage.

Documents are decoded strictly first, which is fast. What that refuses is decoded again by Python's own reader, which
takes what servers write that is no JSON (NaN, Infinity, a byte order mark), and without what is empty, of whatever
kind. A value that is not needed is not judged, and one that is null or empty is not stated.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec

from cm4vllm.serving.answers.event_stream import AnswerError, NotJson, error_message, error_words, printable_beginning

#: The ends of a whole answer: a token that ends it, or the length that was asked for. "abort", "error" and whatever
#: else a server may say stand for an answer that was cut.
FinishReason = Literal["stop", "length"]
#: The words of other servers for these ends, in lower case: text-generation-inference (docs/openapi.json), Together,
#: Anthropic, Cohere and Gemini, Mistral.
_SAME = {
    **dict.fromkeys(("eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("max_tokens", "model_length"), "length"),
}
#: An error that is a whole document, by its kind or its status. JSON escapes the quotes inside strings, so that no
#: generated text can pass for it.
_ERROR_DOCUMENT = re.compile(
    rb'"(?:object|type)"\s*:\s*"\w*error"|"(?:code|status|statusCode)"\s*:\s*"?[45]\d\d\b', re.IGNORECASE
)
#: Parts of the names of tokens that came from a cache: cached_tokens (OpenAI), prompt_cache_hit_tokens (DeepSeek),
#: cache_read_input_tokens (Anthropic). Those that were put into one, or were not found in it, are others.
_CACHED, _NOT_CACHED = ("cach", "token"), ("creat", "writ", "miss", "stor")
#: Bytes of a document that is no JSON that are shown.
_BEGIN = 60

T = TypeVar("T")


class AnswerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the length of an answer in tokens: those of the request, and the server's own.

    With `empty` an answer may have no tokens but the one that ended it, which not all servers count.
    """

    min_tokens: int
    max_tokens: int
    max_model_len: int
    empty: bool = False

    def require_kept(self, prompt_tokens: int, tokens: int, reason: FinishReason) -> None:
        """Raise AnswerError for an answer of `tokens` that is too short, too long, or cut before its length."""
        if tokens < self.min_tokens and not self.ends_at_once(tokens, reason):
            raise AnswerError("the answer has fewer tokens than min_tokens")
        if tokens > self.max_tokens:
            raise AnswerError("the answer has more tokens than max_tokens")
        if reason == "length" and tokens < self.max_tokens and prompt_tokens + tokens < self.max_model_len:
            raise AnswerError("the answer ends with finish_reason 'length' before max_tokens and the model's length")

    def ends_at_once(self, tokens: int, reason: FinishReason) -> bool:
        """Return True for an answer of `tokens` that is empty, where that is an answer."""
        return self.empty and tokens <= 1 and reason == "stop"


class Choice(msgspec.Struct, gc=False):
    """The fields of a choice that all servers have."""

    index: Any = None
    finish_reason: Any = None


C = TypeVar("C", bound=Choice)


class Document(msgspec.Struct, Generic[C], gc=False):
    """A whole answer, or one event of a stream. `message` is that of an error without a name, or of something else."""

    choices: list[C] | None = None
    usage: Any = None
    error: Any = None
    message: Any = None


class Named(Document[C], Generic[C], gc=False):
    """A document with the name of the model: of each event it would cost a fifteenth of the whole reading."""

    model: Any = None


class _Name(msgspec.Struct, gc=False):
    """The name of the model alone."""

    model: Any = None


_NAME = msgspec.json.Decoder(_Name)


class Decoders(NamedTuple, Generic[C]):
    """The decoders of one document, and of a list of them."""

    one: msgspec.json.Decoder[Named[C]]
    many: msgspec.json.Decoder[list[Document[C]]]


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


class Parts(ABC, Generic[C]):
    """The part of an answer read so far: its end, its usage, the name of its model; subclasses have its tokens.

    `said` are words of the server that are the reason where the answer does not go on.
    """

    __slots__ = ("_decoders", "_last", "models", "reason", "said", "usage")

    def __init__(self, decoders: Decoders[C]) -> None:
        self.reason: str | None = None
        self.said = ""
        self.usage: dict[str, Any] = {}
        self.models: tuple[str, ...] = ()
        self._decoders = decoders
        self._last = b""

    def add_one(self, raw: bytes) -> None:
        """Process the next document. Raises NotJson, AnswerError."""
        document = decode(raw, self._decoders.one)
        self._take_model(document.model)
        self._add((document,), raw)

    def add_all(self, documents: list[bytes], joined: bytes) -> bool:
        """Process the next documents, two at least; `joined` has them with commas between.

        The name of the model is read of the first one and the last: those between are the same server's. Returns
        False, and takes nothing, where they cannot be read all at once. Raises AnswerError.
        """
        try:
            read = self._decoders.many.decode(b"[%b]" % joined)
            if len(read) != len(documents):  # an event with more than one document
                return False
            if not self.models:
                self._take_model(_NAME.decode(documents[0]).model)
        except Exception:  # what is wrong is found line by line
            return False
        self._last = documents[-1]
        self._add(read, joined)
        return True

    @abstractmethod
    def _add(self, documents: Sequence[Document[C]], raw: bytes) -> None:
        """Process the next documents, which are in `raw`. Raises AnswerError."""

    def _choice(self, document: Document[C], raw: bytes) -> C | None:
        """Process what a document has beside tokens; return its choice, None where it has none. Raises AnswerError."""
        if document.error and not _is_nothing(document.error):
            raise AnswerError(error_words(document.error))
        usage = document.usage
        if usage and isinstance(usage, dict):  # one without a count of tokens states nothing
            count = usage.get("completion_tokens")
            if type(count) is int or not _is_nothing(count):
                self.usage = usage
        choices = document.choices
        if not choices:
            if document.message is not None:
                self._take_message(document.message, raw)
            return None
        choice = choices[0]
        if len(choices) > 1 or (choice.index and not _is_zero(choice.index)):
            raise AnswerError("the answer has more than one choice")
        return choice

    def _end(self, named: Any, *, goes_on: bool) -> None:
        """Record the finish_reason of a choice that has tokens where it `goes_on`. Raises AnswerError."""
        reason = named if named in ("stop", "length") else _reason(named)
        if self.reason is not None and (goes_on or reason not in (None, self.reason)):
            raise AnswerError("the answer goes on after its finish_reason")
        self.reason = reason or self.reason

    def _take_message(self, message: Any, raw: bytes) -> None:
        """Process a message without an answer: an error, or a word of a server that goes on. Raises AnswerError."""
        words = "" if _is_nothing(message) else error_words(message)
        if words and _ERROR_DOCUMENT.search(raw):
            raise AnswerError(words)
        self.said = words or self.said

    def _take_model(self, name: Any) -> None:
        """Record the name that a document gives to the model; some begin with an empty one."""
        if isinstance(name, str) and name and name not in self.models and len(self.models) < 2:
            self.models += (name,)

    def finish_reason(self) -> FinishReason:
        """Return the reason that the whole answer has for its end. Raises AnswerError for every other."""
        if self.reason is None:
            raise AnswerError(self.said or "the answer has no finish_reason")
        if self.reason not in ("stop", "length"):
            raise AnswerError(f"the answer was cut: its finish_reason is {printable_beginning(self.reason)!r}")
        return cast(FinishReason, self.reason)

    def stated(self) -> Stated:
        """Return the server's statements on the answer. Raises AnswerError for a count that is no number of tokens."""
        usage = self.usage
        prompt, tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        # The counts of a usage that are totals have no parts; others may be parts of them.
        parts = any(usage[name] for name in usage if name not in ("prompt_tokens", "completion_tokens", "total_tokens"))
        counts = _count("prompt_tokens", prompt), _count("completion_tokens", tokens)
        return Stated(*counts, *(_parts_of(usage) if parts else (0, 0)), self.named())

    def named(self) -> tuple[str, ...]:
        """Return the names of the model, two at most. Raises NotJson."""
        if self._last:
            self._take_model(decode(self._last, _NAME).model)
        return self.models


def _parts_of(usage: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens out of a cache, and those of reasoning, among the counts of a usage and objects of such."""
    cached = reasoning = 0
    for outer, value in usage.items():
        for inner, count in value.items() if isinstance(value, dict) else (("", value),):
            name = f"{outer}.{inner}".lower()
            if all(word in name for word in _CACHED) and not any(word in name for word in _NOT_CACHED):
                cached = max(cached, _lenient_count(count))
            elif "reasoning" in name:
                reasoning = max(reasoning, _lenient_count(count))
    return cached, reasoning


def _reason(named: Any) -> str | None:
    """Return a finish_reason as OpenAI names it where it is one of these, in lower case; None where it is none."""
    if not named or _is_nothing(named):
        return None
    word = str(named).strip().lower()
    return _SAME.get(word, word)


def _is_nothing(value: Any) -> bool:
    """Return True if a value stands for none: null, false, a word for it, or an object that has only such or zeros."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "null", "none")
    if isinstance(value, dict):
        return all(not each or (isinstance(each, str) and _is_nothing(each)) for each in value.values())
    return value is None or value is False or value == []


def _is_zero(index: Any) -> bool:
    """Return True for an index of 0 in any form: 0.0, or text."""
    try:
        return float(index) == 0
    except (TypeError, ValueError):
        return False


def _count(name: str, value: Any) -> int:
    """Return a count of tokens, -1 where it is not stated. 12.0 and "12" are 12. Raises AnswerError."""
    if type(value) is int and value >= 0:
        return value
    if _is_nothing(value):
        return -1
    try:
        number = float(value)
        count = int(number)
    except (TypeError, ValueError, OverflowError):
        number = count = -1
    if isinstance(value, bool) or count != number or count < 0:
        raise AnswerError(f"the answer's usage.{name} is no number of tokens", printable_beginning(repr(value)))
    return count


def _lenient_count(value: Any) -> int:
    """Return a count; 0 where it is not stated, or is none."""
    try:
        return max(0, _count("", value))
    except AnswerError:
        return 0


def decode(raw: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> T:
    """Return a decoded answer or event. Raises NotJson."""
    try:
        return decoder.decode(raw)
    except Exception as error:  # msgspec raises more than its own errors: RecursionError, UnicodeDecodeError
        first = str(error)
    try:
        return msgspec.convert(json.loads(raw, object_hook=_without_empty) or {}, decoder.type)
    except Exception as error:
        if "token_ids" in f"{first} {error}":
            raise AnswerError("the answer's token_ids are not 32-bit integers of 0 or more") from None
        message, begin = error_message(raw), printable_beginning(bytes(raw[:_BEGIN]).decode(errors="replace"))
        raise NotJson(message or "the answer is not a completion in JSON", "" if message else repr(begin)) from None


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that state something; a number does, and so does a list of ids."""
    return {
        name: value for name, value in fields.items() if value or type(value) in (int, float) or name == "token_ids"
    }

"""The completions protocol: a request's bytes, and the exact token ids out of an answer's bytes.

An answer is a JSON document, or a stream of `data: {...}` lines that ends with `data: [DONE]`. Token ids are those the
server lists under `token_ids`; text is never tokenised again. An answer counts only when all of it is understood: it
has one choice, no error, ends with finish_reason `stop` or `length`, lists as many ids as its usage says, and keeps to
the limits that were asked for. Everything else raises AnswerError.

Reading is deferred: while a stream runs, its bytes are only gathered, and searched for the first token.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec

from cm4vllm.loadgen.client.event_stream import AnswerError, EventStream, cleaned, error_message, error_words
from cm4vllm.serving.records import Api

__all__ = [
    "Answer",
    "AnswerLimits",
    "FinishReason",
    "Sampling",
    "StreamReader",
    "completion_body",
    "drawn",
    "finish_reason",
    "most_bytes",
    "whole_answer",
]

#: Bytes of an answer at most, beside those of its prompt and tokens, and for each of these: vLLM sends about 250 for a
#: token that comes alone. A server that never ends an answer must not fill the memory.
_MOST_BYTES, _BYTES_OF_A_TOKEN = 1 << 20, 1 << 12

#: The first token id of a list. Generated text cannot pass for it: JSON escapes the quotes inside strings.
_FIRST = re.compile(rb'"token_ids"\s*:\s*\[\s*(\d{1,10})\s*[,\]]')
_MOST_ID = 2**31 - 1
_DONE_LINE = b"data: [DONE]\n\n"
_BETWEEN = b"\n\ndata: "

#: The ends of a whole answer: a token that ends it, or the length that was asked for. "abort", "error" and whatever
#: else a server may say stand for an answer that was cut.
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """Sampling and sending of tokens: `stream_interval` 0 asks for a whole answer, k for a chunk every k tokens.

    Greedy without more, as in the reference (mlcommons/inference language/llama3.1-8b/SUT_VLLM.py). `top_k` -1 takes
    all tokens; without a `seed` the server draws as it likes. `stop` are texts that end an answer, which keeps them.
    """

    model: str
    max_tokens: int
    min_tokens: int
    stream_interval: int
    api: Api = Api.COMPLETIONS
    temperature: float = 0
    top_p: float = 1
    top_k: int = 1
    seed: int | None = 42
    stop: tuple[str, ...] = ()

    @property
    def streamed(self) -> bool:
        return self.stream_interval > 0


def drawn(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters of a request that say how tokens are drawn, and how many."""
    asked: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    if sampling.seed is not None:
        asked["seed"] = sampling.seed
    if sampling.stop:
        asked |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return asked


def completion_body(sampling: Sampling, prompt: Sequence[int]) -> bytes:
    """Return the JSON body that asks for one completion of the token ids `prompt`."""
    asked = drawn(sampling)
    if sampling.stream_interval > 1:
        asked["stream_interval"] = sampling.stream_interval
    body: dict[str, Any] = {"model": sampling.model}
    if sampling.api is Api.COMPLETIONS:
        body |= {"prompt": list(prompt), **asked, "return_token_ids": True}
    else:
        # A text that ends an answer is found in text.
        body |= {"token_ids": list(prompt), "sampling_params": {**asked, "detokenize": bool(sampling.stop)}}
    if sampling.streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


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
    if named not in ("stop", "length"):
        raise AnswerError(f"the answer was cut: its finish_reason is {cleaned(named)!r}")
    return cast(FinishReason, named)


class Answer(NamedTuple):
    """A whole answer: its int32 token ids, and why it ended."""

    tokens: array[int]
    finish_reason: FinishReason


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MOST_ID)]] | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int = -1
    prompt_tokens: int = -1


class _Document(msgspec.Struct, gc=False):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice]
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Document).decode
_decode_list = msgspec.json.Decoder(list[_Document]).decode


def most_bytes(limits: AnswerLimits, prompt_tokens: int) -> int:
    """Return how many bytes an answer may have at most; a prompt of `prompt_tokens` may be repeated in it."""
    return _MOST_BYTES + _BYTES_OF_A_TOKEN * (limits.max_tokens + prompt_tokens)


def whole_answer(body: bytes, prompt_tokens: int, limits: AnswerLimits) -> Answer:
    """Return an answer that is no stream. Raises AnswerError when it does not add up."""
    parts = _Parts()
    parts.add([_document(body)])
    return parts.answer(prompt_tokens, limits)


def _document(raw: bytes | bytearray) -> _Document:
    """Return a decoded answer or event. Raises AnswerError."""
    try:
        return _decode(raw)
    except Exception as error:  # msgspec raises more than its own errors: RecursionError, UnicodeDecodeError
        if "token_ids" in str(error):
            raise AnswerError("the answer's token_ids are not 32-bit integers of 0 or more") from None
        raise AnswerError(error_message(raw) or "the answer is not a completion in JSON") from None


class _Parts:
    """The part of an answer read so far; the answer's documents are added in order."""

    __slots__ = ("reason", "tokens", "usage")

    def __init__(self) -> None:
        self.tokens = array("i")
        self.reason: str | None = None
        self.usage: _Usage | None = None

    def add(self, documents: Sequence[_Document]) -> None:
        """Take the next documents. Raises AnswerError."""
        extend = self.tokens.extend
        for document in documents:
            if document.error is not None:
                raise AnswerError(error_words(document.error) or "the server answered with an error")
            if document.usage is not None:
                self.usage = document.usage
            if not document.choices:
                continue
            choice = document.choices[0]
            if choice.index or len(document.choices) > 1:
                raise AnswerError("the answer has more than one choice")
            if self.reason is not None and (choice.token_ids or choice.finish_reason not in (None, self.reason)):
                raise AnswerError("the answer goes on after its finish_reason")
            if choice.token_ids:
                extend(choice.token_ids)
            if choice.finish_reason is not None:
                self.reason = choice.finish_reason

    def answer(self, prompt_tokens: int, limits: AnswerLimits) -> Answer:
        """Return the answer, if it is whole and keeps to `limits`. Raises AnswerError."""
        usage, count, reason = self.usage or _Usage(), len(self.tokens), finish_reason(self.reason)
        if usage.completion_tokens < 0:
            raise AnswerError("the answer has no usage.completion_tokens")
        if not count:
            raise AnswerError(
                "the answer lists no token_ids, so its tokens cannot be known exactly"
                if usage.completion_tokens
                else "the answer has no tokens"
            )
        if count != usage.completion_tokens:
            raise AnswerError("the answer's token_ids and its usage.completion_tokens disagree")
        if usage.prompt_tokens != prompt_tokens:
            raise AnswerError("the server counts other prompt tokens than were sent")
        limits.require_kept(prompt_tokens, count, reason)
        return Answer(self.tokens, reason)


class StreamReader(EventStream):
    """Gathers the bytes of one stream, and gives its answer at the end."""

    __slots__ = ("_first", "_parts", "_searched")

    def __init__(self) -> None:
        super().__init__()
        self._parts = _Parts()
        self._searched = 0  # the begin of the first line that has not been searched for a token
        self._first = -1

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
        answer = self._parts.answer(prompt_tokens, limits)
        if answer.tokens[0] != self._first:
            raise AnswerError("the stream's first token could not be read when it came")
        return answer

    def _first_token(self) -> int | None:
        """Return the first token's id if it has come."""
        buffer = self._buffer
        token = _FIRST.search(buffer, self._searched)
        while token is not None:
            begin = max(buffer.rfind(b"\n", 0, token.start()), buffer.rfind(b"\r", 0, token.start())) + 1
            if buffer.startswith(b"data:", begin) and int(token[1]) <= _MOST_ID:
                self._first = int(token[1])
                return self._first
            token = _FIRST.search(buffer, token.end())
        self._searched = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        return None

    def _read(self, end: int) -> None:
        self._searched = 0
        super()._read(end)

    def _read_lines(self, raw: bytes) -> None:
        documents = self._documents_of_plain_events(raw)
        if documents is not None:
            self._parts.add(documents)
        else:
            super()._read_lines(raw)

    def _add(self, data: bytes) -> None:
        self._parts.add([_document(data)])

    def _documents_of_plain_events(self, raw: bytes) -> list[_Document] | None:
        """Return the events in `raw`, decoded at once, where each line is an event in vLLM's form; None otherwise."""
        done = raw.endswith(_DONE_LINE)
        events = raw[6 : -len(_DONE_LINE) if done else None].removesuffix(b"\n\n")
        if self._done or not raw.startswith(b"data: {") or b"\r" in events:
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
        self._done = done
        return documents

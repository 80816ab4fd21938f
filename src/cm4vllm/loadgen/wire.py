"""The completions protocol: a request's bytes, and the exact token ids out of an answer's bytes.

An answer is a JSON document, or a stream of `data: {...}` events that ends with `data: [DONE]`. Token ids are those the
server lists under `token_ids`; text is never tokenised again. Their count must equal `usage.completion_tokens`, and
`usage.prompt_tokens` the length of the prompt, or the answer counts as failed.

Reading is deferred: while a stream runs, its bytes are only gathered, and looked through for the first token. A literal
`"token_ids"` cannot come from generated text, because JSON escapes the quotes inside strings. So the lists are found by
a pattern; where an answer holds more such keys than the pattern finds, it is decoded as JSON instead.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cm4vllm.serving.records import Api

__all__ = ["AnswerError", "Sampling", "StreamReader", "completion_body", "error_message", "whole_answer"]

#: Bytes at the end of what has come that are left as they are: more than the events with usage and [DONE] have.
TAIL_BYTES = 1024

_KEY = b'"token_ids"'
_IDS = re.compile(rb'"token_ids":\s*(?:\[\s*([\d,\s]*)\]|null)')
_FIRST = re.compile(rb'"token_ids":\s*\[\s*(\d+)\s*[,\]]')
_NUMBER = re.compile(rb"\s*:\s*(\d+)")
_ERROR = re.compile(rb'"error"\s*:\s*\{')
_LAST_EVENT = b"data: [DONE]\n\n"
_decode_list = msgspec.json.Decoder(list[int]).decode
_TOO_WIDE = "the answer's token_ids are not 32-bit integers"
_DONE = re.compile(rb"(?:^|\n)data:\s*\[DONE\]\s*$")


class AnswerError(Exception):
    """An answer that cannot be counted; the text says why, the same for all answers with the same fault."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn and sent: `stream_interval` 0 asks for a whole answer, k for a chunk every k tokens.

    Greedy as in the reference (mlcommons/inference language/llama3.1-8b/SUT_VLLM.py).
    """

    model: str
    max_tokens: int
    min_tokens: int
    stream_interval: int
    api: Api = Api.COMPLETIONS

    @property
    def streamed(self) -> bool:
        return self.stream_interval > 0


def completion_body(sampling: Sampling, prompt: Sequence[int]) -> bytes:
    """Return the JSON body that asks for one completion of the token ids `prompt`."""
    drawn: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": 0,
        "top_p": 1,
        "top_k": 1,
        "seed": 42,
    }
    if sampling.stream_interval > 1:
        drawn["stream_interval"] = sampling.stream_interval
    body: dict[str, Any] = {"model": sampling.model}
    if sampling.api is Api.COMPLETIONS:
        body |= {"prompt": list(prompt), **drawn, "return_token_ids": True}
    else:
        body |= {"token_ids": list(prompt), "sampling_params": {**drawn, "detokenize": False}}
    if sampling.streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int = -1
    prompt_tokens: int = -1


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def whole_answer(body: bytes, prompt_tokens: int) -> array[int]:
    """Return the token ids of an answer that is no stream, as int32. Raises AnswerError when it does not add up."""
    try:
        answer = _decode_answer(body)
    except msgspec.DecodeError as error:
        raise AnswerError("the answer is not a completion in JSON") from error
    if answer.error is not None:
        raise AnswerError(error_message(body) or "the server answered with an error")
    usage = answer.usage or _Usage()
    try:
        tokens = array("i", (answer.choices[0].token_ids if answer.choices else None) or ())
    except OverflowError:
        raise AnswerError(_TOO_WIDE) from None
    return _checked(tokens, usage.completion_tokens, usage.prompt_tokens, prompt_tokens)


def _checked(tokens: array[int], counted: int, prompt_counted: int, prompt_tokens: int) -> array[int]:
    """Return `tokens`, if they are as many as the server says. Raises AnswerError."""
    if counted == len(tokens) > 0 and prompt_counted == prompt_tokens:
        return tokens
    if counted < 0:
        raise AnswerError("the answer has no usage.completion_tokens")
    if len(tokens) != counted:
        if not tokens:
            raise AnswerError("the answer lists no token_ids, so its tokens cannot be known exactly")
        raise AnswerError("the answer's token_ids and its usage.completion_tokens disagree")
    if not tokens:
        raise AnswerError("the answer has no tokens")
    raise AnswerError("the server counts other prompt tokens than were sent")


class StreamReader:
    """Gathers the bytes of one stream, whatever pieces they come in, and gives its token ids at the end."""

    __slots__ = ("_buffer", "_error", "_has_first", "_plain", "_tokens")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._tokens = array("i")
        # Whether the pattern finds all lists; a server does not change the way it writes in the middle of an answer.
        self._has_first = self._plain = False
        self._error = ""

    def feed(self, data: bytes) -> int | None:
        """Take the next bytes. Returns the first token's id when it came just now, None otherwise."""
        self._buffer += data
        if not self._has_first:
            return self._first()
        return None

    def compact(self) -> None:
        """Reduce whole events to their tokens, but for the last ones: what counts and ends the stream is among them."""
        end = self._end_of_events(len(self._buffer) - TAIL_BYTES)
        if end > 0:
            self._reduce(end)
            del self._buffer[:end]

    def finish(self, prompt_tokens: int) -> array[int]:
        """Return all token ids as int32. Raises AnswerError when the stream is not whole or does not add up."""
        rest = self._buffer
        self._reduce(len(rest))
        try:
            if self._error:
                raise AnswerError(self._error)
            if not rest.endswith(_LAST_EVENT) and not _DONE.search(rest):
                raise AnswerError("the stream ended without [DONE]")
            counted, prompt_counted = (_last_number(key, rest) for key in (b'"completion_tokens"', b'"prompt_tokens"'))
            return _checked(self._tokens, counted, prompt_counted, prompt_tokens)
        except AnswerError as error:
            # What the server says of an answer that does not add up tells more than that.
            raise AnswerError(error_message(bytes(rest)) or str(error)) from None

    def _first(self) -> int | None:
        """Return the first token's id if it has come."""
        found = _FIRST.search(self._buffer)
        if found is not None:
            token = int(found[1])
            self._plain = self._finds_all(_IDS.findall(self._buffer), len(self._buffer))
        else:
            end = self._end_of_events(len(self._buffer))
            whole = bytes(self._buffer[:end])
            if whole.count(_KEY) == len(_IDS.findall(whole)):
                return None
            listed = next(filter(None, map(_listed, _documents(whole))), None)
            if not listed:
                return None
            token = listed[0]
        self._has_first = True
        return token

    def _finds_all(self, lists: list[bytes], end: int) -> bool:
        """Tell whether `lists`, found by the pattern in the first `end` bytes, are all that are there."""
        return self._buffer.count(_KEY, 0, end) == len(lists)

    def _end_of_events(self, limit: int) -> int:
        """Return where the last whole event before `limit` ends, 0 where there is none."""
        for blank in (b"\n\n", b"\r\n\r\n"):
            at = self._buffer.rfind(blank, 0, limit)
            if at >= 0:
                return at + len(blank)
        return 0

    def _reduce(self, end: int) -> None:
        """Take up the first `end` bytes: whole events, or what there is of them when the answer is over."""
        raw = self._buffer
        lists = _IDS.findall(raw, 0, end)
        if not self._plain and lists:
            self._plain = self._finds_all(lists, end)
        try:
            if self._plain:
                self._tokens.extend(_decode_list(b"[%b]" % b",".join(filter(None, lists))))
            else:
                for document in _documents(bytes(raw[:end])):
                    self._tokens.extend(_listed(document))
        except (msgspec.DecodeError, TypeError, OverflowError):
            self._error = self._error or _TOO_WIDE


def error_message(raw: bytes) -> str:
    """Return what an error document or error event in `raw` says, or an empty string when there is none."""
    if raw.rfind(b'"error"') < 0 or not _ERROR.search(raw):
        return ""
    for document in _documents(raw):
        error = document.get("error")
        if isinstance(error, dict):
            return f"the server answered: {error.get('message', error)}"
    return ""


def _documents(raw: bytes) -> Iterator[dict[str, Any]]:
    """Give the JSON objects of whole events, or of a whole document."""
    for line in raw.splitlines() if raw.lstrip().startswith(b"data:") else [raw]:
        try:
            document = msgspec.json.decode(line.removeprefix(b"data:").strip())
        except msgspec.DecodeError:
            continue
        if isinstance(document, dict):
            yield document


def _listed(document: dict[str, Any]) -> list[int]:
    """Return the token ids of an answer or event that has been decoded."""
    choices = document.get("choices") or [{}]
    return choices[0].get("token_ids") or []


def _last_number(key: bytes, raw: bytearray) -> int:
    """Return the number of the last `key` in `raw`, -1 where there is none."""
    at = raw.rfind(key)
    found = _NUMBER.match(raw, at + len(key)) if at >= 0 else None
    return int(found[1]) if found else -1

"""The completions protocol of vLLM: a request's bytes, and the exact token ids out of an answer's bytes.

An answer is a JSON document, or a stream of `data: {...}` events that ends with `data: [DONE]`. Token ids are those the
server lists under `token_ids` (request field `return_token_ids`); text is never tokenised again. Their count must equal
`usage.completion_tokens`, and `usage.prompt_tokens` the length of the prompt, or the answer counts as failed.

Reading is deferred: while a stream runs, its bytes are only gathered, and looked through for the first token. A literal
`"token_ids":[` cannot come from generated text, because JSON escapes the quotes inside strings.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = ["AnswerError", "AnswerReader", "Sampling", "completion_body", "error_message"]

#: Raw bytes of a stream that are kept before they are reduced to token ids: bounds memory over thousands of streams.
COMPACT_BYTES = 64 * 1024

_IDS = re.compile(rb'"token_ids":\s*\[([\d,\s]*)\]')
_FIRST = re.compile(rb'"token_ids":\s*\[\s*(\d+)\s*[,\]]')
_COMPLETION = re.compile(rb'"completion_tokens":\s*(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens":\s*(\d+)')
_ERROR = re.compile(rb'"error":\s*\{')
_LAST_EVENT = b"data: [DONE]\n\n"
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

    @property
    def streamed(self) -> bool:
        return self.stream_interval > 0


def completion_body(sampling: Sampling, prompt: Sequence[int]) -> bytes:
    """Return the JSON body that asks for one completion of the token ids `prompt`."""
    body: dict[str, Any] = {
        "model": sampling.model,
        "prompt": list(prompt),
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": 0,
        "top_p": 1,
        "top_k": 1,
        "seed": 42,
        "return_token_ids": True,
    }
    if sampling.streamed:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if sampling.stream_interval > 1:
            body["stream_interval"] = sampling.stream_interval
    return msgspec.json.encode(body)


class AnswerReader:
    """Gathers the bytes of one answer, whatever pieces they come in, and gives its token ids at the end."""

    __slots__ = ("_buffer", "_completion", "_error", "_has_first", "_prompt", "_prompt_tokens", "_streamed", "_tokens")

    def __init__(self, *, streamed: bool, prompt_tokens: int) -> None:
        self._streamed = streamed
        self._prompt_tokens = prompt_tokens
        self._buffer = bytearray()
        self._tokens = array("i")
        self._has_first = not streamed
        self._completion: int | None = None
        self._prompt: int | None = None
        self._error = ""

    def feed(self, data: bytes) -> int | None:
        """Take the next bytes. Returns the first token's id when it came just now, None otherwise."""
        buffer = self._buffer
        buffer += data
        if self._has_first:
            if self._streamed and len(buffer) > COMPACT_BYTES:
                self._compact()
            return None
        found = _FIRST.search(buffer)
        if found is None:
            return None
        self._has_first = True
        return int(found[1])

    def finish(self) -> array[int]:
        """Return all token ids as int32. Raises AnswerError when the answer is not whole or does not add up."""
        rest = bytes(self._buffer)
        self._reduce(rest)
        if self._error:
            raise AnswerError(self._error)
        if self._streamed and not _DONE.search(rest):
            raise AnswerError("the stream ended without [DONE]")
        if self._completion is None:
            raise AnswerError("the answer has no usage.completion_tokens")
        if len(self._tokens) != self._completion:
            if not self._tokens:
                raise AnswerError("the answer lists no token_ids, so its tokens cannot be known exactly")
            raise AnswerError("the answer's token_ids and its usage.completion_tokens disagree")
        if not self._tokens:
            raise AnswerError("the answer has no tokens")
        if self._prompt != self._prompt_tokens:
            raise AnswerError("the server counts other prompt tokens than were sent")
        return self._tokens

    def _compact(self) -> None:
        """Reduce all whole events to what is counted of them, and keep the bytes of the event under way."""
        end = self._buffer.rfind(b"\n\n", 0, len(self._buffer) - len(_LAST_EVENT)) + 2
        if end >= 2:
            self._reduce(bytes(self._buffer[:end]))
            del self._buffer[:end]

    def _reduce(self, raw: bytes) -> None:
        for found in _IDS.finditer(raw):
            listed = found[1].strip()
            if listed:
                try:
                    self._tokens.extend(map(int, listed.split(b",")))
                except (ValueError, OverflowError):
                    self._error = self._error or "the answer's token_ids are not 32-bit integers"
        self._completion = _last_number(_COMPLETION, raw, self._completion)
        self._prompt = _last_number(_PROMPT, raw, self._prompt)
        self._error = self._error or error_message(raw)


def error_message(raw: bytes) -> str:
    """Return what an error document or error event in `raw` says, or an empty string when there is none."""
    if not _ERROR.search(raw):
        return ""
    for line in raw.splitlines():
        try:
            document = msgspec.json.decode(line.removeprefix(b"data:").strip())
        except msgspec.DecodeError:
            continue
        error = document.get("error") if isinstance(document, dict) else None
        if isinstance(error, dict):
            return f"the server answered: {error.get('message', error)}"
    return ""


def _last_number(pattern: re.Pattern[bytes], raw: bytes, otherwise: int | None) -> int | None:
    numbers = pattern.findall(raw)
    return int(numbers[-1]) if numbers else otherwise

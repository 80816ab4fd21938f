"""The events of a stream, `data: {...}` lines that end with `data: [DONE]`, and the errors in a server's answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

__all__ = ["AnswerError", "EventStream", "cleaned", "error_message", "error_words", "refusal_words"]

#: Characters of a server's own words that are kept of them.
_MOST_TEXT = 300


class AnswerError(Exception):
    """An answer that cannot be counted; the text says why, the same for all answers with the same fault."""


class EventStream(ABC):
    """The bytes of one stream, whatever pieces they come in, read as events line by line.

    What is wrong with them is raised at the end of the stream.
    """

    __slots__ = ("_buffer", "_done", "_error")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._done = False
        self._error = ""

    def _read(self, end: int) -> None:
        """Take up the first `end` bytes: whole lines."""
        raw = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        if self._error:
            return
        try:
            self._read_lines(raw)
        except AnswerError as error:
            self._error = str(error)

    def _read_lines(self, raw: bytes) -> None:
        """Take up whole lines. Raises AnswerError."""
        for line in raw.splitlines():
            data = _event_data(line)
            if data is None:
                continue
            if self._done:
                raise AnswerError("the stream goes on after [DONE]")
            if data == b"[DONE]":
                self._done = True
            else:
                self._add(data)

    @abstractmethod
    def _add(self, data: bytes) -> None:
        """Take up the document of one event. Raises AnswerError."""

    def _require_whole(self, *, done: bool = True) -> None:
        """Take up what is left. Raises AnswerError for a stream that is wrong, or with `done` has no [DONE]."""
        self._read(len(self._buffer))
        if self._error:
            raise AnswerError(self._error)
        if done and not self._done:
            raise AnswerError("the stream ended without [DONE]")


def _event_data(line: bytes) -> bytes | None:
    """Return the data of a line of a stream; None for the other parts of an event. Raises AnswerError."""
    if not line or line.startswith(b":"):
        return None  # the end of an event, or a comment
    field, _, value = line.partition(b":")
    if field == b"data":
        return value.strip(b" \t")
    if field == b"event" and b"error" in value.lower():
        raise AnswerError("the server sent an error event")
    if field not in (b"event", b"id", b"retry"):
        raise AnswerError(error_message(line) or "a line of the stream is no event")
    return None


def _fields(raw: bytes | bytearray) -> dict[str, Any]:
    """Return the fields of a JSON object; none of anything else."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except Exception:  # whatever a server may have sent
        return {}


def error_message(raw: bytes | bytearray) -> str:
    """Return the message of an error document in `raw`; empty where none can be read."""
    return error_words(_fields(raw).get("error"))


def refusal_words(raw: bytes) -> str:
    """Return the message in the body of an answer with an error status: its `error`, or the `detail` of FastAPI."""
    fields = _fields(raw)
    return error_words(fields.get("error") or fields.get("detail")).removeprefix("the server answered: ")


def error_words(error: Any) -> str:
    """Return the message of an `error` object; empty without one."""
    if error is None:
        return ""
    message = error.get("message", error) if isinstance(error, dict) else error
    return f"the server answered: {cleaned(str(message))}"


def cleaned(text: str) -> str:
    """Return the beginning of a server's text in printable characters."""
    return "".join(char if char.isprintable() else " " for char in text[:_MOST_TEXT])

"""The events of a stream, `data: {...}` lines that end with `data: [DONE]`, and the errors in a server's answers.

Read as the standard of server-sent events has it (HTML, section 9.2): a byte order mark at the beginning, comments,
fields of other names, events without data and data of several lines are legal. An event whose name is of another kind
than a message may hold anything, and is passed over. Servers that send several documents without an empty line between
them are read too.
"""

from codecs import BOM_UTF8
from typing import Any, Protocol

import msgspec

#: Characters of a server's own words that are kept of them.
_MOST_TEXT = 300
_DONE_EVENT = b"data: [DONE]\n\n"


class AnswerError(Exception):
    """An answer that cannot be counted; the text says why, the same for all answers with the same fault.

    `detail` has the numbers of this answer, where there are any.
    """

    def __init__(self, words: str, detail: str = "") -> None:
        super().__init__(words)
        self.detail = detail


class NotJson(AnswerError):
    """A document of an answer that is no completion in JSON."""


class Gathered(Protocol):
    """The processed part of an answer. `said` are messages of the server that have not ended it so far."""

    said: str

    def add_one(self, raw: bytes) -> None:
        """Process the next document. Raises NotJson where it is none, AnswerError where its answer is not whole."""

    def add_all(self, documents: list[bytes], joined: bytes) -> bool:
        """Process the next documents, two at least; `joined` has them with commas between.

        Returns False, and processes nothing, where they cannot be read all at once. Raises AnswerError.
        """


class EventStream:
    """The bytes of one stream, whatever pieces they come in, read as events line by line, and many usual ones at once.

    What is wrong with them is raised at the end of the stream.
    """

    __slots__ = ("_begun", "_buffer", "_done", "_error", "_gathered", "_name", "_parts_of_event")

    def __init__(self, gathered: Gathered) -> None:
        self._buffer = bytearray()
        self._begun = self._done = False
        self._error: AnswerError | None = None
        self._gathered = gathered
        self._name = b""  # of the present event
        self._parts_of_event: list[bytes] = []  # the lines of a document that is not whole yet

    @property
    def done(self) -> bool:
        """Return True when [DONE] has come."""
        return self._done

    def _read(self, end: int) -> None:
        """Process the first `end` bytes: whole lines."""
        raw = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        if self._error is not None:
            return
        if not self._begun and raw:
            self._begun, raw = True, raw.removeprefix(BOM_UTF8)
        try:
            if not self._read_usual(raw):
                self._read_lines(raw)
        except AnswerError as error:
            self._error = error

    def _read_usual(self, raw: bytes) -> bool:
        """Process several events of a line of data and an empty line each; return False where `raw` is anything else.

        Raises AnswerError.
        """
        if self._done or self._name or self._parts_of_event or not raw.startswith(b"data: {"):
            return False
        done = raw.endswith(_DONE_EVENT)
        documents = raw[6 : -len(_DONE_EVENT) if done else None].removesuffix(b"\n\n").split(b"\n\ndata: ")
        joined = b",".join(documents)
        usual = len(documents) > 1 and b"\n" not in joined and b"\r" not in joined
        if not usual or not self._gathered.add_all(documents, joined):
            return False
        self._done = done
        return True

    def _read_lines(self, raw: bytes) -> None:
        """Process whole lines. Raises AnswerError."""
        for line in raw.splitlines():
            if line.startswith(b"data:"):
                self._take(line[5:].strip(b" \t"))
            elif line:
                self._take_field(line)
            elif self._name or self._parts_of_event:
                self._end_event()

    def _take_field(self, line: bytes) -> None:
        """Process a line that has no data. Raises AnswerError."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.strip(b" \t").lower()
            if b"error" in self._name:
                raise AnswerError("the server sent an error event")
        elif field == b"error" and (words := error_words(_fields(value))):  # as llama.cpp's server names it
            raise AnswerError(words)
        elif line.startswith((b"{", b"[", b"<")):  # a document in JSON or HTML in the place of a stream
            raise AnswerError(error_message(line) or "a line of the stream is no event")

    def _take(self, data: bytes) -> None:
        """Process the data of a line: a document, or a part of one. Raises AnswerError."""
        if not data or data.startswith(b":"):  # a gateway may pass a comment on as data
            return
        if data == b"[DONE]":
            self._end_event()
            self._done = True
        elif self._name not in (b"", b"message"):
            return
        elif self._done:
            raise AnswerError("the stream goes on after [DONE]")
        elif self._parts_of_event:
            self._parts_of_event.append(data)
        else:
            try:
                self._gathered.add_one(data)
            except NotJson:
                self._parts_of_event.append(data)

    def _end_event(self) -> None:
        """Process a document of several lines. Raises AnswerError."""
        parts, self._name, self._parts_of_event = self._parts_of_event, b"", []
        if parts:
            self._gathered.add_one(b"\n".join(parts))

    def _require_whole(self, *, done: bool = True) -> None:
        """Process the remaining bytes. Raises AnswerError for a stream that is wrong, or with `done` has no [DONE]."""
        self._read(len(self._buffer))
        if self._error is not None:
            raise self._error
        self._end_event()
        if done and not self._done:
            raise AnswerError(self._gathered.said or "the stream ended without [DONE]")


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
    if not error:
        return ""
    message = (error.get("message") or error) if isinstance(error, dict) else error
    return f"the server answered: {printable_beginning(str(message))}"


def printable_beginning(text: str) -> str:
    """Return the beginning of a server's text in printable characters."""
    return "".join(char if char.isprintable() else " " for char in text[:_MOST_TEXT])

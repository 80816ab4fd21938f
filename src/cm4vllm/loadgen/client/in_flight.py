"""A request of the client while it is in flight: its attempts, its response, its end."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from cm4vllm.loadgen.client.connection import Connection, Server
from cm4vllm.loadgen.client.text_tokens import EMPTY, Encoded, Texts
from cm4vllm.loadgen.client.wire import most_bytes
from cm4vllm.loadgen.client.worker_messages import Counts
from cm4vllm.serving.answers.event_stream import AnswerError, printable_beginning, refusal_words
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits, FinishReason
from cm4vllm.serving.answers.text_answers import TextReader, whole_text

#: Retries of a request of whose response nothing has arrived; LoadGen's clock runs on.
MAX_RETRIES = 2
#: Of a worker's first streams these, and then each of so many, are read token by token to their ends, at the cost of a
#: wake-up for each token: the time from the last token to the end is known of them.
_TIMED_FIRST, _TIMED_EVERY = (0, 7, 63), 512
#: Pieces of a stream, of about 250 bytes each, that are reduced to their tokens before the stream ends.
PIECES_TO_COMPACT = 16

#: One request: the key that comes back with its answer, its JSON, the length of its prompt in tokens, and when it was
#: issued (time.monotonic_ns).
Request = tuple[int, bytes | memoryview, int, int]


#: A whole answer: the key of its request, its int32 token ids, or only their number where the ids are not wanted, or
#: what is logged in their place, and why it ended.
Completion: TypeAlias = "tuple[int, array[int] | Encoded | int, FinishReason]"


class Sink(Protocol):
    """Receives the answers; called in the event loop's thread."""

    def first_token(self, key: int, token: int) -> None:
        """The first token of `key` arrived; at most once for each key, and only for streamed answers.

        `token` is 0 where the server gives text, the first of which arrived, and -1 where nothing of it is known.
        """

    def completed(self, completions: Sequence[Completion]) -> None:
        """These answers are whole: all that were completed in one iteration of the event loop."""

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """The request can not be answered; called once, and never together with `completed`."""


class Sender(Protocol):
    """The client of requests, as far as they need it."""

    counts: Counts
    end_lags: array[float]
    limits: AnswerLimits
    sink: Sink
    streamed: bool
    texts: Texts | None

    def complete(self, request: InFlightRequest, tokens: array[int] | Encoded | int, reason: FinishReason) -> None:
        """Process a complete answer."""

    def fail(self, request: InFlightRequest, cause: str) -> None:
        """Process the failure of a request."""

    def release(self, connection: Connection, server: Server) -> None:
        """Keep a connection that can be used again."""

    def retry(self, request: InFlightRequest) -> None:
        """Send a request again."""

    def send_on_new_connection(self, request: InFlightRequest) -> None:
        """Send a request again whose kept connection was closed."""

    def retry_later(self, request: InFlightRequest, seconds: float) -> bool:
        """Return True if a request is sent again after the seconds that a busy server asked for."""


class InFlightRequest:
    """One request with all its attempts. It ends exactly once, complete or failed, whatever a server sends.

    All code that reads bytes of a server is inside a `try` that ends the request: there is no complete list of what
    such bytes can raise (UnicodeDecodeError, RecursionError, ValueError for a number of too many digits, ...).
    """

    __slots__ = (
        "_body",
        "_client",
        "_reader",
        "_room",
        "_timed",
        "_tokens_seen",
        "abandoned",
        "connection",
        "first_token_at",
        "first_token_seen",
        "json",
        "key",
        "last_token_at",
        "prompt_tokens",
        "retries",
        "server",
        "waited_s",
    )

    def __init__(self, client: Sender, request: Request, server: Server) -> None:
        """Take the client, the request (key, body, length of its prompt) and the server that it goes to."""
        self.key, self.json, self.prompt_tokens, _ = request
        self.server = server
        self.retries = 0
        self.first_token_seen = self.abandoned = False
        self.first_token_at = self.last_token_at = self.waited_s = 0.0
        self.connection: Connection | None = None
        self._client = client
        self._reader = _reader(client)
        self._body = b""
        self._room = most_bytes(client.limits, self.prompt_tokens)
        number = client.counts.requests
        self._timed = client.streamed and (number in _TIMED_FIRST or number % _TIMED_EVERY == _TIMED_EVERY - 1)
        self._tokens_seen = 0

    def body_received(self, status: int, data: bytes) -> bool:
        """Process a part of the body; return False if no more of it is wanted."""
        self._room -= len(data)
        if self._room < 0:
            self.abandon("the answer has more bytes than its tokens can have")
        if self.abandoned:
            return False
        reader = self._reader
        if status != 200 or reader is None:
            self._body = self._body + data if self._body else data
            return False
        try:
            first = reader.feed(data)
            if self._timed:
                self._note_token(reader)
        except Exception as error:
            self.abandon(_unreadable_answer(error))
            return False
        if first is not None:
            self.first_token_seen = True
            self.first_token_at = time.monotonic()
            self._client.sink.first_token(self.key, first)
        return self.first_token_seen and not self._timed

    def _note_token(self, reader: StreamReader | TextReader) -> None:
        """Note when the last token came."""
        reader.compact()
        if reader.token_count != self._tokens_seen:
            self._tokens_seen, self.last_token_at = reader.token_count, time.monotonic()

    def read_ahead(self) -> None:
        """Reduce the collected bytes to their tokens, where there are many."""
        connection = self.connection
        if connection is not None and connection.collected >= PIECES_TO_COMPACT:
            self.token_count()

    def token_count(self) -> int:
        """Return how many tokens of a stream have arrived; reads all that has been collected."""
        connection, reader = self.connection, self._reader
        if connection is None or reader is None:
            return 0
        connection.hand_over()
        try:
            reader.compact()
        except Exception as error:
            self.abandon(_unreadable_answer(error))
        return reader.token_count

    def response_ended(self, connection: Connection, status: int, *, cut: bool = False) -> None:
        """Check the whole answer, and report it, or its failure, to the client."""
        self.server.in_flight -= 1
        self.connection = None
        answer = self._answer(connection, status, cut=cut) if not self.abandoned else None
        if answer is None:
            connection.close()  # more may follow of a response that was not understood
        else:
            self._client.release(connection, self.server)
            self._client.complete(self, *answer)

    def connection_failed(self, cause: str, *, answered: bool, kept: bool = False) -> None:
        """Send the request again if nothing of its answer had come, else report its failure."""
        self.server.in_flight -= 1
        self.connection = None
        if kept and not self.abandoned:
            self._client.send_on_new_connection(self)
        elif not self.abandoned:
            self._retry_or_fail(f"{cause} in the middle of an answer" if answered else cause, again=not answered)

    def abandon(self, cause: str) -> None:
        """Fail the request; a later response to it is ignored."""
        if self.abandoned:
            return
        self.abandoned = True
        self._client.fail(self, cause)
        if self.connection is not None:
            self.connection.close()

    def _answer(
        self, connection: Connection, status: int, *, cut: bool
    ) -> tuple[array[int] | Encoded | int, FinishReason] | None:
        """Return the tokens of the whole answer and why it ended; None where the request failed or is sent again."""
        if status != 200:
            message = refusal_words(self._body)
            self._body = b""
            cause = f"HTTP status {status}" + (f": {message}" if message else "")
            # 5xx and 429 (too many requests) may pass; any other refusal would be repeated.
            again = status >= 500 or status == 429
            if not (again and self._client.retry_later(self, connection.retry_after_s)):
                self._retry_or_fail(cause, again=again)
            return None
        if connection.encoding:
            self._client.fail(
                self,
                f"the answer is compressed ({printable_beginning(connection.encoding)}), and was asked for as it is",
            )
            return None
        if self.last_token_at:
            self._client.end_lags.append((time.monotonic() - self.last_token_at) * 1e3)
        try:
            return self._read()
        except AnswerError as error:
            self._client.fail(self, f"{error}: the server closed the connection" if cut else str(error))
        except Exception as error:
            self._client.fail(self, _unreadable_answer(error))
        return None

    def _read(self) -> tuple[array[int] | Encoded | int, FinishReason]:
        """Read the whole answer. Raises AnswerError when it does not add up."""
        client, reader = self._client, self._reader
        limits, texts = client.limits, client.texts
        tokens: array[int] | Encoded | int
        if texts is None:
            if isinstance(reader, StreamReader):
                listed = reader.finish(self.prompt_tokens, limits)
            else:
                listed = whole_answer(self._body, self.prompt_tokens, limits)
            client.counts.take(listed.stated, self.prompt_tokens, listed.first_tokens)
            tokens, reason = listed.tokens or EMPTY, listed.finish_reason
        else:
            if isinstance(reader, TextReader):
                answer = reader.finish(self.prompt_tokens, limits)
            else:
                answer = whole_text(self._body, self.prompt_tokens, limits, texts.dialect)
            tokens, reason = texts.tokens_of(answer), answer.finish_reason
            client.counts.take(answer.stated, self.prompt_tokens, 0)
        if reader is not None and not self.first_token_seen:
            # Its tokens have no text, or it has only the one that ended it: it came with the end, at the latest.
            self.first_token_seen = True
            self.first_token_at = time.monotonic()
            client.sink.first_token(self.key, -1)
        return tokens, reason

    def _retry_or_fail(self, cause: str, *, again: bool) -> None:
        """Send the request again, at most MAX_RETRIES times, or report its failure."""
        if again and self.retries < MAX_RETRIES:
            self.retries += 1
            self._client.retry(self)
        else:
            self._client.fail(self, cause)


def _reader(client: Sender) -> StreamReader | TextReader | None:
    if not client.streamed:
        return None
    return StreamReader() if client.texts is None else TextReader(client.texts.dialect)


def _unreadable_answer(error: Exception) -> str:
    return f"the answer cannot be read: {type(error).__name__}"

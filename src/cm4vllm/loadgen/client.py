"""The asynchronous client: many completions at once over kept-alive connections, in one event loop.

It knows nothing of LoadGen: requests come in as (key, body index) pairs through `submit`, answers leave through a Sink.
So it can run in a thread beside LoadGen, or in a process of its own.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cm4vllm.loadgen.connection import Address, Connection
from cm4vllm.loadgen.wire import AnswerError, AnswerReader, error_message

__all__ = ["Client", "Completion", "Counts", "Request", "Sink"]

#: uvicorn, vLLM's HTTP server, closes connections that are idle for 5 s; one about to be closed must not be used.
REUSE_WITHIN_S = 4.0
#: Times a request is sent again when nothing of its answer had come; LoadGen's clock runs on.
MAX_RETRIES = 2
#: Mean pause before the first and the second retry.
RETRY_PAUSE_S = (0.05, 0.25)
#: Seconds that the server may take to accept a connection.
CONNECT_S = 10.0
#: A server that sends nothing at all for so long, on any connection, with requests open, is taken for stuck.
STALL_S = 600.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, serialised once: `data` is the whole HTTP request, `prompt_tokens` the length of its prompt."""

    data: bytes
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer: the `key` it was submitted with and its int32 token ids."""

    key: int
    tokens: array[int]


@dataclass(slots=True)
class Counts:
    """What the client saw so far. `failures` counts the kinds of failure by their cause."""

    requests: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Sink(Protocol):
    """Where answers go; called in the event loop's thread."""

    def first_token(self, key: int, token: int) -> None:
        """The first token of `key` came; at most once for each key, and only for streamed answers."""

    def completed(self, completions: Sequence[Completion]) -> None:
        """These answers are whole: all that were finished in one turn of the event loop."""

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """The request can not be answered; called once, and never together with `completed`."""


class Client:
    """Sends what is submitted, at most `max_in_flight` requests at a time (None: no bound), in order of arrival."""

    def __init__(
        self, address: Address, sink: Sink, *, streamed: bool, max_in_flight: int | None = None,
        stall_s: float = STALL_S,
    ) -> None:
        self.counts = Counts()
        self.in_flight = 0
        self.streamed = streamed
        self.sink = sink
        self.heard_at = 0.0
        self._address = address
        self._max_in_flight = max_in_flight
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._incoming: deque[tuple[int, Request]] = deque()
        self._woken = False
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._open: set[_Exchange] = set()
        self._done: list[Completion] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = self._loop.call_later(min(1.0, stall_s), self._watch_stall)

    @property
    def waiting(self) -> int:
        """Requests submitted but not sent yet."""
        return len(self._incoming)

    def submit(self, requests: Iterable[tuple[int, Request]]) -> None:
        """Take requests; safe to call from any thread."""
        self._incoming.extend(requests)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._send_waiting)

    def close(self) -> None:
        """Close all connections. To be called in the event loop's thread, with nothing being connected."""
        self._watch.cancel()
        for connection in self._connections:
            connection.close()

    def _send_waiting(self) -> None:
        # Cleared before the queue is read: what is appended from now on wakes the loop again.
        self._woken = False
        while self._incoming and (self._max_in_flight is None or self.in_flight < self._max_in_flight):
            key, request = self._incoming.popleft()
            if not self._open:
                self.heard_at = self._loop.time()
            self.counts.requests += 1
            self.counts.prompt_tokens += request.prompt_tokens
            self.in_flight += 1
            exchange = _Exchange(self, key, request)
            self._open.add(exchange)
            self._send(exchange)

    def _send(self, exchange: _Exchange) -> None:
        if exchange.abandoned:
            return
        connection = self._reusable()
        if connection is not None:
            connection.send(exchange)
            return
        task = self._loop.create_task(self._connect_and_send(exchange))
        self._tasks.add(task)  # the loop itself keeps tasks only weakly
        task.add_done_callback(self._tasks.discard)

    async def _connect_and_send(self, exchange: _Exchange) -> None:
        address = self._address
        connection = Connection(self._connections.discard)
        self._connections.add(connection)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=address.tls, server_hostname=address.server_name
                )
        except OSError as error:
            self._connections.discard(connection)
            reason = error.strerror or type(error).__name__
            exchange.broken(f"cannot connect to the server: {reason}", answered=False)
            return
        if connection.open:
            connection.send(exchange)
        else:
            exchange.broken("the server closed the connection", answered=False)

    def _reusable(self) -> Connection | None:
        """Return the connection used last, or None when there is none that the server surely keeps open."""
        oldest = self._loop.time() - REUSE_WITHIN_S
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    # Called by exchanges

    def retry(self, exchange: _Exchange) -> None:
        """Send the exchange again after a short pause."""
        self.counts.retries += 1
        pause = RETRY_PAUSE_S[exchange.retries - 1] * random.uniform(0.5, 1.5)  # noqa: S311 - spreads the load
        self._loop.call_later(pause, self._send, exchange)

    def release(self, connection: Connection) -> None:
        """Keep a connection whose answer is whole for the next request."""
        if connection.open:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)

    def complete(self, exchange: _Exchange, tokens: array[int]) -> None:
        """Hand over a whole answer, together with the others of this turn of the event loop."""
        self.counts.completed += 1
        self.counts.completion_tokens += len(tokens)
        if not self._done:
            self._loop.call_soon(self._hand_over)
        self._done.append(Completion(exchange.key, tokens))
        self._leave(exchange)

    def fail(self, exchange: _Exchange, cause: str) -> None:
        """Give a request up."""
        self.counts.failed += 1
        self.counts.failures[cause] += 1
        self.sink.failed(exchange.key, cause, first_token_seen=exchange.first_token_seen)
        self._leave(exchange)

    def _leave(self, exchange: _Exchange) -> None:
        self._open.discard(exchange)
        self.in_flight -= 1
        if self._incoming and not self._woken:
            self._woken = True
            self._loop.call_soon(self._send_waiting)

    def _hand_over(self) -> None:
        done, self._done = self._done, []
        self.sink.completed(done)

    def _watch_stall(self) -> None:
        self._watch = self._loop.call_later(min(1.0, self._stall_s), self._watch_stall)
        if self._open and self._loop.time() - self.heard_at > self._stall_s:
            for exchange in list(self._open):
                exchange.abandon(f"the server sent nothing for {self._stall_s:g} s")


class _Exchange:
    """One request through all its tries, until it is answered or given up."""

    __slots__ = ("_client", "_reader", "_refusal", "abandoned", "first_token_seen", "key", "request", "retries")

    def __init__(self, client: Client, key: int, request: Request) -> None:
        self.key = key
        self.request = request.data
        self.retries = 0
        self.first_token_seen = False
        self._client = client
        self._reader = AnswerReader(streamed=client.streamed, prompt_tokens=request.prompt_tokens)
        self._refusal = bytearray()
        self.abandoned = False

    def body(self, status: int, data: bytes) -> None:
        client = self._client
        client.heard_at = client._loop.time()
        if self.abandoned:
            return
        if status != 200:
            self._refusal += data
            return
        first = self._reader.feed(data)
        if first is not None:
            self.first_token_seen = True
            client.sink.first_token(self.key, first)

    def ended(self, connection: Connection, status: int) -> None:
        if self.abandoned:
            return
        self._client.release(connection)
        if status != 200:
            message = error_message(bytes(self._refusal)).removeprefix("the server answered: ")
            self._refusal.clear()
            cause = f"HTTP status {status}" + (f": {message}" if message else "")
            # 5xx and 429 (too many requests) may pass; any other refusal would be repeated.
            self._give_up(cause, again=status >= 500 or status == 429)
            return
        try:
            tokens = self._reader.finish()
        except AnswerError as error:
            self._client.fail(self, str(error))
            return
        if self._client.streamed and not self.first_token_seen:
            self._client.fail(self, "the stream had no first token")
            return
        self._client.complete(self, tokens)

    def broken(self, cause: str, *, answered: bool) -> None:
        if not self.abandoned:
            self._give_up(f"{cause} in the middle of an answer" if answered else cause, again=not answered)

    def abandon(self, cause: str) -> None:
        """Give the request up from outside; what may still come for it is ignored."""
        self.abandoned = True
        self._client.fail(self, cause)

    def _give_up(self, cause: str, *, again: bool) -> None:
        if again and self.retries < MAX_RETRIES:
            self.retries += 1
            self._client.retry(self)
        else:
            self._client.fail(self, cause)

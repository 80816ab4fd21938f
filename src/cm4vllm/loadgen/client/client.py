"""The asynchronous client: many completions at once over kept-alive connections, in one event loop.

It knows nothing of LoadGen: requests come in through `submit`, answers leave through a Sink. It runs in the worker
processes, and alone in tests and benchmarks.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from cm4vllm.loadgen.client.connection import STEP_S, Address, Connection, Server
from cm4vllm.loadgen.client.in_flight import Completion, InFlightRequest, Request, Sink
from cm4vllm.loadgen.client.stream_poller import StreamPoller
from cm4vllm.loadgen.client.text_tokens import Encoded, Texts
from cm4vllm.loadgen.client.worker_messages import Counts
from cm4vllm.records.server import Api
from cm4vllm.serving.answers.stated import AnswerLimits, FinishReason
from cm4vllm.serving.probing.media_apis import FORM

#: uvicorn, vLLM's HTTP server, closes connections that are idle for 5 s; one about to be closed must not be used.
REUSE_WITHIN_S = 4.0
#: Seconds between two checks of the spare connections, and how many are opened then at most: handshakes delay the
#: reading of tokens.
SPARE_INTERVAL_S, SPARE_AT_A_TIME = 0.1, 2
#: Mean pause before the first and the second retry on the same server, in s; another server is used at once.
RETRY_PAUSE_S = (0.05, 0.25)
#: Seconds of one wait that a busy server may ask a patient client for, and of all waits of a request.
LONGEST_WAIT_S, MOST_WAITED_S = 60.0, 600.0
#: Seconds that a server may take to accept a connection.
CONNECT_S = 10.0
#: Seconds during which a server that did not answer is avoided, where there is another.
AVOID_S = 2.0
#: Seconds between two steps of reducing streams to their tokens, and in which each stream is reduced once. This bounds
#: the memory of long answers; a few streams at a time, so that no step takes long.
COMPACT_INTERVAL_S, COMPACT_ALL_S = 0.01, 0.5
#: Seconds without a byte, or without a token, from any server after which the open requests fail. Nothing of a whole
#: answer arrives before its last token.
STALL_STREAMED_S, STALL_WHOLE_S = 600.0, 3600.0
#: A stream came whole when it has this many tokens and takes less than this time for each after the first one: no
#: server computes a token in it.
AT_ONCE_TOKENS, AT_ONCE_S = 8, 20e-6


class Client:
    """Sends what is submitted, at most `max_in_flight` requests at a time (None: no bound), in order of arrival.

    The requests ask for answers within `limits`, for a chunk every `stream_interval` tokens or 0 for whole answers. Of
    several servers the one with the fewest open requests is used. `sent` is called with the time at which a request
    was issued, when it is written to a connection for the first time, or one is being opened for it. After `prepare`,
    `spare` connections to each server are kept open beside those in use, so that no handshake counts as the server's
    time to the first token. So many `clients` open connections side by side. A `patient` client, whose times are not
    measured, asks again when a busy server says. With `texts` the servers give text alone, which it turns into tokens.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        sink: Sink,
        *,
        limits: AnswerLimits,
        stream_interval: int,
        max_in_flight: int | None = None,
        api: Api = Api.COMPLETIONS,
        stall_s: float | None = None,
        sent: Callable[[int], None] | None = None,
        spare: int = 0,
        clients: int = 1,
        patient: bool = False,
        texts: Texts | None = None,
    ) -> None:
        """Take the servers' addresses and the sink that gets tokens and ends.

        `max_in_flight` bounds the open requests (None: no bound).
        """
        self.counts = Counts()
        self.texts = texts
        self.end_lags = array("d")
        self.in_flight = 0
        self.streamed = stream_interval > 0
        self.limits = limits
        self.sink = sink
        self._sent = sent
        self._spare = spare
        self._patient = patient
        content_type = FORM if api is Api.TRANSCRIPTIONS else "application/json"
        self._servers = [Server(address, address.head(api.path, content_type), clients) for address in addresses]
        self._max_in_flight = max_in_flight
        self._stall_s = stall_s or (STALL_STREAMED_S if self.streamed else STALL_WHOLE_S)
        self._loop = asyncio.get_running_loop()
        # With several tokens a chunk there are too few chunks for polling to save time.
        self._poller = StreamPoller() if stream_interval == 1 else None
        self._incoming: deque[Iterator[Request]] = deque()
        self._connections: set[Connection] = set()
        self._open: set[InFlightRequest] = set()
        self._done: list[Completion] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._filling = False
        # The number of pieces and ends received, and of tokens and ends, each with the time of its last change.
        self._last_received = self._last_progress = (0, self._loop.time())
        self._check_timer = self._loop.call_later(0, self._check_servers)
        self._to_compact: Iterator[InFlightRequest] = iter(())
        self._compact_timer = self._loop.call_later(COMPACT_INTERVAL_S, self._compact_some) if self.streamed else None
        self._spare_timer: asyncio.TimerHandle | None = None

    async def prepare(self) -> None:
        """Open the spare connections, and renew them from now on."""
        await asyncio.gather(*(self._open_spare(server) for server in self._servers for _ in range(self._spare)))
        if self._spare:
            self._spare_timer = self._loop.call_later(SPARE_INTERVAL_S, self._keep_spare)

    def submit(self, requests: Iterable[Request]) -> None:
        """Submit requests, which are drawn from the iterable only as they are sent."""
        self._incoming.append(iter(requests))
        self._send_waiting()

    def close(self) -> None:
        """Close all connections; what is still open is neither answered nor failed."""
        for request in self._open:
            request.abandoned = True
        for task in self._tasks:
            task.cancel()
        self._check_timer.cancel()
        for timer in (self._compact_timer, self._spare_timer):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            if connection.open:
                connection.close()
        if self._poller is not None:
            self._poller.close()

    def _send_waiting(self) -> None:
        """Send the requests that wait, as far as the bound of open requests allows."""
        self._filling = False
        incoming, limit, counts = self._incoming, self._max_in_flight, self.counts
        only = self._servers[0] if len(self._servers) == 1 else None
        while incoming and (limit is None or self.in_flight < limit):
            issued = next(incoming[0], None)
            if issued is None:
                incoming.popleft()
                continue
            request = InFlightRequest(self, issued, only or self._choose(None))
            counts.requests += 1
            counts.prompt_tokens += request.prompt_tokens
            self.in_flight += 1
            self._open.add(request)
            self._send(request)
            if self._sent is not None:
                self._sent(issued[3])

    def _send(self, request: InFlightRequest) -> None:
        """Send a request on an idle connection of its server, or on one that is opened for it."""
        server = request.server
        server.in_flight += 1
        connection = server.reusable(self._loop.time() - REUSE_WITHIN_S)
        if connection is not None:
            request.connection = connection
            connection.send(request, server.request(request.json))
            if len(server.idle) + server.opening < self._spare:
                self._start_task(self._open_spare(server))
            return
        self._start_task(self._connect_and_send(request, server))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself keeps tasks only weakly
        task.add_done_callback(self._tasks.discard)

    def _choose(self, failed: Server | None) -> Server:
        """Return the server with the fewest open requests among those that respond; `failed` is the last choice."""
        if len(self._servers) == 1:
            return self._servers[0]
        now = self._loop.time()
        return min(self._servers, key=lambda server: (server is failed or server.avoid_until > now, server.in_flight))

    async def _connect(self, server: Server, *, in_steps: bool) -> Connection:
        """Return a new connection, which may be closed again already. Raises OSError."""
        connection = Connection(self._connections.discard, self._poller)
        self._connections.add(connection)
        self.counts.connections += 1
        if in_steps:
            await server.openings.acquire()
        begin = self._loop.time()
        try:
            async with asyncio.timeout(CONNECT_S):
                await server.address.connect(connection)
        except OSError:
            self._connections.discard(connection)
            raise
        finally:
            if in_steps:  # the system has completed the connection; the server accepts it later
                self._loop.call_later(STEP_S, server.openings.release)
            self.counts.longest_connect_s = max(self.counts.longest_connect_s, self._loop.time() - begin)
        return connection

    async def _open_spare(self, server: Server) -> None:
        """Open one more connection to a server in advance; a failure is left to the next request."""
        server.opening += 1
        try:
            self.release(await self._connect(server, in_steps=True), server)
        except OSError:
            pass  # the next request will find out, and report why
        finally:
            server.opening -= 1

    def _keep_spare(self) -> None:
        """Replace, at each interval, connections that have been idle for too long."""
        self._spare_timer = self._loop.call_later(SPARE_INTERVAL_S, self._keep_spare)
        now = self._loop.time()
        for server in self._servers:
            server.drop_older(now - REUSE_WITHIN_S)
            if now >= server.avoid_until:
                # Others take their place before they are too old.
                missing = self._spare - server.count_younger(now - REUSE_WITHIN_S / 2, self._spare) - server.opening
                for _ in range(min(SPARE_AT_A_TIME, missing)):
                    self._start_task(self._open_spare(server))

    async def _connect_and_send(self, request: InFlightRequest, server: Server) -> None:
        """Open a connection to a server and send a request on it; report what fails."""
        try:
            # Without a bound requests, and so connections, come at the run's rate.
            connection = await self._connect(server, in_steps=self._max_in_flight is not None)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            request.connection_failed(f"cannot connect to the server: {reason}", answered=False)
            return
        if connection.open and not request.abandoned:
            request.connection = connection
            connection.send(request, server.request(request.json))
        else:
            self.release(connection, server)
            request.connection_failed(connection.closed_because, answered=False)

    # Called by the requests

    def retry(self, request: InFlightRequest) -> None:
        """Send the request again: at once to another server, after a short pause to the same one."""
        self.counts.retries += 1
        failed = request.server
        failed.avoid_until = self._loop.time() + AVOID_S
        request.server = self._choose(failed)
        # random: spreads the load
        pause = RETRY_PAUSE_S[request.retries - 1] * random.uniform(0.5, 1.5)  # noqa: S311
        self._loop.call_later(pause if request.server is failed else 0, self._send_again, request)

    def send_on_new_connection(self, request: InFlightRequest) -> None:
        """Send at once a request that met a connection which the server had closed: no retry, nothing was refused."""
        request.server.in_flight += 1
        self._start_task(self._connect_and_send(request, request.server))

    def retry_later(self, request: InFlightRequest, seconds: float) -> bool:
        """Send the request again when a busy server asks for it; return False where the client is not patient."""
        if not self._patient or not seconds or request.waited_s >= MOST_WAITED_S:
            return False
        self.counts.retries += 1
        pause = min(seconds, LONGEST_WAIT_S)
        request.waited_s += pause
        # random: spreads the load
        self._loop.call_later(pause * random.uniform(1.0, 1.2), self._send_again, request)  # noqa: S311
        return True

    def _send_again(self, request: InFlightRequest) -> None:
        if not request.abandoned:
            self._send(request)

    def release(self, connection: Connection, server: Server) -> None:
        """Keep a connection whose answer is whole for the next request."""
        if connection.open:
            connection.idle_since = self._loop.time()
            server.idle.append(connection)

    def complete(self, request: InFlightRequest, tokens: array[int] | Encoded | int, reason: FinishReason) -> None:
        """Report a whole answer, together with all answers of this iteration of the event loop."""
        counts = self.counts
        counts.completed += 1
        length = tokens if isinstance(tokens, int) else len(tokens)
        counts.completion_tokens += length
        if length >= AT_ONCE_TOKENS and request.first_token_seen:
            counts.at_once += time.monotonic() - request.first_token_at < length * AT_ONCE_S
        counts.at_length += reason == "length"
        if not self._done:
            self._loop.call_soon(self._report_completed)
        self._done.append((request.key, tokens, reason))
        self._forget(request)

    def fail(self, request: InFlightRequest, cause: str) -> None:
        """Report that a request failed."""
        self.counts.failed += 1
        self.sink.failed(request.key, cause, first_token_seen=request.first_token_seen)
        self._forget(request)

    def _forget(self, request: InFlightRequest) -> None:
        """Remove a request that has ended from the open ones, and send the next that waits."""
        self._open.discard(request)
        self.in_flight -= 1
        if self._incoming and not self._filling:
            self._filling = True
            self._loop.call_soon(self._send_waiting)

    def _report_completed(self) -> None:
        done, self._done = self._done, []
        self.sink.completed(done)

    def _compact_some(self) -> None:
        """Have some of the open streams reduce their bytes to tokens, so that each of them does every COMPACT_ALL_S."""
        self._compact_timer = self._loop.call_later(COMPACT_INTERVAL_S, self._compact_some)
        for _ in range(1 + int(len(self._open) * COMPACT_INTERVAL_S / COMPACT_ALL_S)):
            request = next(self._to_compact, None)
            if request is None:
                self._to_compact = iter(list(self._open))
                return
            request.read_ahead()

    def _check_servers(self) -> None:
        """Drop connections that servers have closed, and fail the open requests when nothing arrives any more."""
        self._check_timer = self._loop.call_later(min(self._stall_s / 4, 15.0), self._check_servers)
        for server in self._servers:
            server.drop_older(self._loop.time() - REUSE_WITHIN_S)
        if missing := self._stall_in_words():
            for request in list(self._open):
                request.abandon(f"the server sent {missing} for {self._stall_s:g} s")

    def _stall_in_words(self) -> str:
        """Return the words for an answer that no server has sent for too long; empty where all is well."""
        counts, now = self.counts, self._loop.time()
        if not self._open:
            self._last_received = self._last_progress = (0, now)
            return ""
        received = counts.completed + counts.failed + sum(connection.pieces for connection in self._connections)
        if received != self._last_received[0]:
            self._last_received = (received, now)
        elif now - self._last_received[1] >= self._stall_s:
            return "nothing"
        if now - self._last_progress[1] >= self._stall_s:
            # Comments that keep a connection alive are no progress. Reading all streams takes too long for each check.
            work = (
                counts.completed
                + counts.failed
                + counts.completion_tokens
                + sum(request.token_count() for request in list(self._open))
            )
            if work == self._last_progress[0]:
                return "no token"
            self._last_progress = (work, now)
        return ""

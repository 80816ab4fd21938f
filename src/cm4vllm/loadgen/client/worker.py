"""A worker process: `python -m cm4vllm.loadgen.client.worker SOCKET MEMORY`, its settings as JSON on standard input.

It carries the connections to the servers. Queries come and answers leave over the socket pair whose end is the file
descriptor SOCKET; the bodies of the queries lie in the memory behind the file descriptor MEMORY (worker_messages). It
ends when the other end is closed, or with its parent.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import uvloop

from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import Address, resolve
from cm4vllm.loadgen.client.in_flight import Completion, Request
from cm4vllm.loadgen.client.process_metrics import ProcessMetrics, stop_garbage_collection
from cm4vllm.loadgen.client.text_tokens import Encoded, Texts
from cm4vllm.loadgen.client.wire import SPARE
from cm4vllm.loadgen.client.worker_messages import COUNT, HEADER, REQUEST, Kind, Stats, WorkerSettings
from cm4vllm.serving.answers.stated import FinishReason

_READ_BYTES = 1 << 18


def main(argv: Sequence[str]) -> int:
    """Work until the other end of the socket pair is closed; return the process's exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerSettings)
    with socket.socket(fileno=int(argv[1])) as peer, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        peer.setblocking(False)
        runner.run(_work(settings, _Link(peer), _SharedBodies(int(argv[2]))))
    return 0


async def _work(settings: WorkerSettings, link: _Link, bodies: _SharedBodies) -> None:
    """Connect to the servers and send the queries that come over the link, until it is closed."""
    addresses = await _resolve(settings, link)
    if not addresses:
        return
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end_with_traceback)
    texts = Texts(settings.text) if settings.text is not None else None
    stop_garbage_collection()
    metrics = ProcessMetrics(settings.name)
    metrics.measure_loop_lag(loop)
    # Where requests wait for others to end, as they are meant to, neither their lag nor a handshake counts.
    at_once = settings.max_in_flight is None
    client = Client(
        addresses,
        _RecordSink(link, settings),
        limits=settings.limits,
        api=settings.api,
        stream_interval=settings.stream_interval,
        max_in_flight=settings.max_in_flight,
        sent=metrics.add_issue_lag if at_once else None,
        spare=SPARE if at_once else 0,
        clients=settings.workers,
        patient=settings.patient,
        texts=texts,
    )
    await client.prepare()
    await link.send_record(Kind.READY)
    await link.read(lambda records: client.submit(map(bodies.request, REQUEST.iter_unpack(records))))
    client.close()
    stats = Stats(
        counts=client.counts,
        process=metrics.record(client.end_lags),
        text=texts.counts() if texts is not None else None,
    )
    await link.send_record(Kind.STATS, msgspec.json.encode(stats))


def _end_with_traceback(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the process: the fault may have lost a query, for which LoadGen would wait for ever."""
    loop.default_exception_handler(context)
    sys.stderr.flush()
    os._exit(1)


async def _resolve(settings: WorkerSettings, link: _Link) -> list[Address]:
    """Return the addresses of all servers; report one that cannot be reached, and return an empty list."""
    addresses = []
    for endpoint in settings.endpoints:
        try:
            addresses.append(await resolve(endpoint, settings.ca_file, settings.access.headers()))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            await link.send_record(Kind.UNREACHABLE, msgspec.json.encode((endpoint, reason)))
            return []
    return addresses


class _SharedBodies:
    """The memory in which LoadGen's process writes the bodies of the queries; it only ever grows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._view = memoryview(b"")

    def request(self, record: tuple[int, int, int, int, int]) -> Request:
        """Return the request that a REQUEST record describes."""
        key, offset, length, prompt_tokens, issued_ns = record
        end = offset + length
        if end > len(self._view):
            size = os.fstat(self._descriptor).st_size
            self._view = memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ))
        return key, self._view[offset:end], prompt_tokens, issued_ns


class _Link:
    """The worker's end of the socket pair: whole records in, bytes out as fast as the other end takes them."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._out = bytearray()
        self._blocked = False

    def write(self, data: bytes) -> None:
        """Send `data` now, or keep in order what the socket does not take."""
        self._out += data
        if not self._blocked:
            self._flush()

    async def send_record(self, kind: Kind, text: bytes = b"") -> None:
        """Write one record and wait until all that was written has left."""
        self.write(HEADER.pack(0, kind, len(text)) + text)
        while self._out:
            await asyncio.sleep(0.001)

    async def read(self, take: Callable[[bytes], None]) -> None:
        """Hand whole REQUEST records to `take` as they come, until the other end is closed."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        partial = b""

        def readable() -> None:
            """Read records from LoadGen's process; the end of the connection ends the worker."""
            nonlocal partial
            try:
                data = self._peer.recv(_READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                closed.set()
                loop.remove_reader(self._peer)
                return
            data = partial + data if partial else data
            whole = len(data) - len(data) % REQUEST.size
            partial = data[whole:]
            if whole:
                take(data[:whole])

        loop.add_reader(self._peer, readable)
        await closed.wait()

    def _flush(self) -> None:
        """Send what waits for LoadGen's process, as far as the socket takes it."""
        loop = asyncio.get_running_loop()
        try:
            sent = self._peer.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:
            # LoadGen's process is gone, and this one is about to be killed.
            self._out.clear()
            return
        del self._out[:sent]
        if bool(self._out) != self._blocked:
            self._blocked = not self._blocked
            if self._blocked:
                loop.add_writer(self._peer, self._flush)
            else:
                loop.remove_writer(self._peer)


class _RecordSink:
    """The client's sink: each answer becomes a record."""

    def __init__(self, link: _Link, settings: WorkerSettings) -> None:
        self._link = link
        self._access = settings.access
        self._first = Kind.FIRST if settings.text is None else Kind.FIRST_TEXT

    def first_token(self, key: int, token: int) -> None:
        """Report the first token of a query at once; a negative token stands for a first text."""
        # At once, not with the others of this turn: LoadGen's clock runs until it arrives.
        self._link.write(HEADER.pack(key, self._first if token >= 0 else Kind.FIRST_TEXT, token))

    def completed(self, completions: Sequence[Completion]) -> None:
        """Report whole answers."""
        self._link.write(b"".join([part for completion in completions for part in _record(*completion)]))

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """Report a failed query with its cause, without secrets."""
        # The answer of a server may repeat the key.
        text = self._access.without_secrets(cause).encode(errors="replace")
        self._link.write(HEADER.pack(key, Kind.FAILED_LATE if first_token_seen else Kind.FAILED, len(text)) + text)


def _record(key: int, tokens: array[int] | Encoded | int, reason: FinishReason) -> tuple[bytes, ...]:
    """Return the parts of the record of a whole answer."""
    cut = reason == "length"
    if isinstance(tokens, array):
        return HEADER.pack(key, Kind.DONE_AT_LENGTH if cut else Kind.DONE, len(tokens)), tokens.tobytes()
    if isinstance(tokens, int):
        return (HEADER.pack(key, Kind.COUNTED_AT_LENGTH if cut else Kind.COUNTED, tokens),)
    kind, size = Kind.ENCODED_AT_LENGTH if cut else Kind.ENCODED, COUNT.size + len(tokens.data)
    return HEADER.pack(key, kind, size), COUNT.pack(len(tokens)), tokens.data


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

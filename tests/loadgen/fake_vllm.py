"""A test peer: an HTTP server on loopback that speaks vLLM's /v1/completions with known tokens, and misbehaves.

It copies the field layout of vLLM 0.32: one HTTP chunk for each event, `prompt_token_ids` in the first event alone, a
last event without choices for the usage, and `data: [DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from types import TracebackType
from typing import Any


class Fault(Enum):
    NONE = auto()
    STATUS_500 = auto()
    STATUS_400 = auto()
    CLOSE_BEFORE = auto()
    CLOSE_MIDSTREAM = auto()
    STALL_THEN_CLOSE = auto()
    STALL = auto()
    WRONG_USAGE = auto()
    WRONG_PROMPT = auto()
    NO_IDS = auto()
    NO_DONE = auto()
    ERROR_EVENT = auto()
    ABORTED = auto()


def prompt(index: int) -> list[int]:
    """Return the prompt of sample `index` in the tests' dataset."""
    return [1 + (index * 37 + position * 11) % 700 for position in range(3 + index % 40)]


def expected_tokens(prompt: list[int], max_tokens: int, min_tokens: int) -> list[int]:
    """Return the tokens that the peer answers `prompt` with."""
    count = min_tokens + (sum(prompt) * 7919) % max(1, max_tokens - min_tokens + 1)
    return [(sum(prompt) * 31 + 97 * i + i * i) % 768 for i in range(max(1, count))]


@dataclass
class Behaviour:
    """`fault` gives the fault of the n-th request (from 0); `split` cuts the answers into pieces of n bytes.

    `metrics` gives the page at /metrics and at all other places: there is none where it is empty. Each connection is
    accepted (with TLS: its handshake begins) after `accept_s`. `raw` gives the bytes of the whole n-th answer, None for
    the usual one. `pages` are those at other paths. The n-th request waits while `held` is true of n and of the number
    of events that have been sent to it.
    A page that is None is not answered: the connection is closed, or with `hangs_s` first left open for so long.
    A connection is closed after `answers_each` answers, 0 for never, which nothing announces; with `cut` not even TLS
    does, as where a process is killed. `usage` and `model` are
    more in the usage of the n-th answer, and the name of its model. `first_tokens` come with the first event.
    """

    fault: Callable[[int], Fault] = lambda number: Fault.NONE
    token_delay_s: float = 0.0
    tokens_per_chunk: int = 1
    split: int = 0
    text: str = "w"
    metrics: Callable[[], str] = str
    pages: dict[str, str | None] = field(default_factory=dict)
    hangs_s: float = 0.0
    unix: str = ""
    certificate: str = ""
    accept_s: float = 0.0
    raw: Callable[[int, dict[str, Any]], bytes | None] = lambda number, body: None
    held: Callable[[int, int], bool] = lambda number, events: False
    answers_each: int = 0
    cut: bool = False
    usage: Callable[[int], dict[str, Any]] = lambda number: {}
    model: Callable[[int], str] = lambda number: ""
    first_tokens: int = 1


@dataclass
class FakeVllm:
    """Use as a context manager; `endpoint` is its base URL. `served_by` has the client's port of each request."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    served_by: list[int] = field(default_factory=list)
    connections: int = 0
    most_in_flight: int = 0
    port: int = 0
    _in_flight: int = 0

    @property
    def endpoint(self) -> str:
        if self.behaviour.unix:
            return f"unix://{self.behaviour.unix}"
        return f"http{'s' if self.behaviour.certificate else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeVllm:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and drop all its connections, as when its process dies."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        writers: list[asyncio.StreamWriter] = []
        talks: set[asyncio.Task[None]] = set()
        accepted: set[socket.socket] = set()  # and not in the hands of a task that has begun

        def accept(listener: socket.socket) -> None:
            # Not asyncio.start_server, nor sock_accept: both lose what is being accepted while they end.
            try:
                conn, _ = listener.accept()
            except BlockingIOError:
                return
            conn.setblocking(False)
            self.connections += 1
            accepted.add(conn)
            task = asyncio.create_task(begin(conn))
            talks.add(task)
            task.add_done_callback(talks.discard)

        async def begin(conn: socket.socket) -> None:
            accepted.discard(conn)
            try:
                await asyncio.sleep(self.behaviour.accept_s)
                reader, writer = await self._accepted(conn)
            except (asyncio.CancelledError, OSError):
                conn.close()
                return
            writers.append(writer)
            await self._talk(reader, writer)

        with self._listener() as listener:
            listener.setblocking(False)
            self.port = self.port or (0 if self.behaviour.unix else listener.getsockname()[1])
            self._loop.add_reader(listener, accept, listener)
            started.set()
            await self._stop.wait()
            self._loop.remove_reader(listener)
            for task in list(talks):
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            for conn in accepted:
                conn.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)  # the transports close in the next turn of the loop

    def _listener(self) -> socket.socket:
        if not self.behaviour.unix:
            return socket.create_server(("127.0.0.1", self.port), backlog=2048)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.behaviour.unix)
        listener.listen(128)
        return listener

    async def _accepted(self, conn: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader(limit=2**20)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls = None
        if self.behaviour.certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self.behaviour.certificate)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, conn, ssl=tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = count(1)
        try:
            while True:
                await self._one(reader, writer)
                if next(answers) == self.behaviour.answers_each:
                    if self.behaviour.cut:
                        writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                    break
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        finally:
            # Once: before Python 3.11.3 a TLS transport that is closed twice cannot be aborted.
            if not writer.is_closing():
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(5):  # as uvicorn: an idle connection is closed
            head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET "):
            path = head.split(b" ", 2)[1].decode()
            page = self.behaviour.pages.get(path, self.behaviour.metrics())
            if page is None:
                await asyncio.sleep(self.behaviour.hangs_s)
                writer.transport.abort()
                raise ConnectionResetError
            await self._write(writer, http(page.encode(), "200 OK" if page else "404 Not Found"))
            return
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        body = json.loads(await reader.readexactly(length))
        number = len(self.bodies)
        self.bodies.append(body)
        self.paths.append(head.split(b" ", 2)[1].decode())
        if "token_ids" in body:  # the token-only endpoint
            body = {**body, **body["sampling_params"], "prompt": body["token_ids"]}
        self.served_by.append(0 if self.behaviour.unix else writer.get_extra_info("peername")[1])
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await self._let_go(number, 0)
            raw = self.behaviour.raw(number, body)
            if raw is not None:
                await self._write(writer, raw)
            else:
                await self._answer(number, body, self.behaviour.fault(number), writer)
        finally:
            self._in_flight -= 1

    async def _let_go(self, number: int, events: int) -> None:
        while self.behaviour.held(number, events):
            await asyncio.sleep(0.005)

    async def _answer(self, number: int, body: dict[str, Any], fault: Fault, writer: asyncio.StreamWriter) -> None:
        if fault is Fault.CLOSE_BEFORE:
            writer.transport.abort()
            raise ConnectionResetError
        if fault in (Fault.STATUS_500, Fault.STATUS_400):
            status = "500 Internal Server Error" if fault is Fault.STATUS_500 else "400 Bad Request"
            content = json.dumps({"error": {"message": "made to fail", "code": int(status[:3])}}).encode()
            await self._write(writer, http(content, status))
            return
        tokens = expected_tokens(body["prompt"], body["max_tokens"], body.get("min_tokens", 2))
        if body.get("stream"):
            await self._stream(number, body, tokens, fault, writer)
        else:
            await self._whole(number, body, tokens, fault, writer)

    async def _whole(
        self, number: int, body: dict[str, Any], tokens: list[int], fault: Fault, writer: asyncio.StreamWriter
    ) -> None:
        await asyncio.sleep(self.behaviour.token_delay_s * len(tokens))
        tokens, reason = _ended(body, tokens, fault)
        choice = _choice(body, tokens, reason, self.behaviour.text, first=True)
        if fault is Fault.NO_IDS:
            choice["token_ids"] = None
        usage = {**_usage(body, tokens, fault), **self.behaviour.usage(number)}
        model = self.behaviour.model(number) or body["model"]
        content = _compact({"id": "cmpl-1", "model": model, "choices": [choice], "usage": usage})
        if fault is Fault.CLOSE_MIDSTREAM:
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content[:40])
            await writer.drain()
            writer.close()
            raise ConnectionResetError
        await self._write(writer, http(content))

    async def _stream(
        self, number: int, body: dict[str, Any], tokens: list[int], fault: Fault, writer: asyncio.StreamWriter
    ) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await self._write(writer, head)
        for index, event in enumerate(stream_events(body, tokens, self.behaviour, fault, number)):
            if index == 1 and fault in (Fault.CLOSE_MIDSTREAM, Fault.STALL_THEN_CLOSE, Fault.STALL):
                await asyncio.sleep({Fault.STALL_THEN_CLOSE: 0.3, Fault.STALL: 3600}.get(fault, 0))
                writer.transport.abort()
                raise ConnectionResetError
            if index:
                await self._let_go(number, index)
            await self._write(writer, b"%x\r\n%s\r\n" % (len(event), event))
            if self.behaviour.token_delay_s:
                await asyncio.sleep(self.behaviour.token_delay_s)
        await self._write(writer, b"0\r\n\r\n")

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = self.behaviour.split or len(data)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
            if self.behaviour.split:
                await asyncio.sleep(0.0005)  # so that the pieces arrive apart


def http(content: bytes, status: str = "200 OK", head: bytes = b"") -> bytes:
    """Return an HTTP answer of known length; `head` are further header lines."""
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status.encode(), len(content), head, content)


def answer_content(body: dict[str, Any], tokens: list[int], *, streamed: bool) -> bytes:
    """Return the content of a whole answer of these tokens, or the events of a streamed one."""
    if streamed:
        return b"".join(stream_events(body, tokens, Behaviour(), Fault.NONE))
    reason = _ended(body, tokens, Fault.NONE)[1]
    choice = {"index": 0, "text": "w", "token_ids": tokens, "finish_reason": reason}
    return _compact({"choices": [choice], "usage": _usage(body, tokens, Fault.NONE)})


def stream_events(
    body: dict[str, Any], tokens: list[int], behaviour: Behaviour, fault: Fault, number: int = 0
) -> list[bytes]:
    """Return the events of the n-th answer, a streamed one, each with its `data:` prefix and blank line."""
    tokens, last_reason = _ended(body, tokens, fault)
    step, first = behaviour.tokens_per_chunk, behaviour.first_tokens
    groups = [tokens[:first], *(tokens[i : i + step] for i in range(first, len(tokens), step))]
    events = []
    for index, group in enumerate(groups):
        reason = last_reason if index == len(groups) - 1 else None
        choice = _choice(body, group, reason, behaviour.text, first=index == 0)
        if fault is Fault.NO_IDS:
            choice["token_ids"] = None
        events.append(
            _event(
                {
                    "id": "cmpl-1",
                    "object": "text_completion",
                    "model": behaviour.model(number) or body["model"],
                    "choices": [choice],
                    "usage": None,
                }
            )
        )
    if fault is Fault.ERROR_EVENT:
        events[1:] = [_event({"error": {"message": "the engine died", "type": "InternalServerError", "code": 500}})]
    else:
        usage = {**_usage(body, tokens, fault), **behaviour.usage(number)}
        events.append(_event({"id": "cmpl-1", "choices": [], "usage": usage}))
    if fault is not Fault.NO_DONE:
        events.append(b"data: [DONE]\n\n")
    return events


def _ended(body: dict[str, Any], tokens: list[int], fault: Fault) -> tuple[list[int], str]:
    """Return the tokens of an answer and its finish_reason."""
    if fault is Fault.ABORTED:  # as vLLM ends what was aborted at its side: with HTTP 200, and counts that match
        return tokens[: (len(tokens) + 1) // 2], "abort"
    return tokens, "stop" if len(tokens) < body.get("max_tokens", 0) else "length"


def _choice(body: dict[str, Any], ids: list[int], reason: str | None, text: str, *, first: bool) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text * len(ids),
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "prompt_token_ids": body["prompt"] if first else None,
        "token_ids": ids,
    }


def _usage(body: dict[str, Any], tokens: list[int], fault: Fault) -> dict[str, int]:
    completion = len(tokens) + (1 if fault is Fault.WRONG_USAGE else 0)
    prompt = len(body["prompt"]) - (1 if fault is Fault.WRONG_PROMPT else 0)
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _compact(value) + b"\n\n"


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

"""Right answers on bad ways: hundreds of streams over TCP whose framing, pieces and ends differ, good and broken.

Whatever comes, each request ends once; what counts has all its own tokens; and an answer whose framing is sound counts.
"""

import asyncio
import contextlib
import gzip
import json
import os
import random
import socket
import struct
from collections import Counter

import pytest
import uvloop
from driven_client import LIMITS, Clock, Ledger, all_ended
from fake_vllm import answer_content, expected_tokens, prompt

from cm4vllm.loadgen.client import client as client_module
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve

#: CM4VLLM_FUZZ_STREAMS=5000 tries that many of each kind instead, CM4VLLM_FUZZ_SEED others.
REQUESTS = int(os.environ.get("CM4VLLM_FUZZ_STREAMS", "250"))
SEED = int(os.environ.get("CM4VLLM_FUZZ_SEED", "7"))
STALL_S = 1.5
#: The time of the client goes on in steps of this many seconds: a machine that stands still is no silent server.
STEP_S = 0.01
OK = b"HTTP/1.1 200 OK\r\n"
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\nlink: </y>\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\nx: " + b"y" * 20_000 + b"\r\n\r\n",
)
#: The errors of a server whose client has closed; RuntimeError is uvloop's.
GONE = (OSError, RuntimeError, asyncio.CancelledError)
RESET = struct.pack("ii", 1, 0)


class Answer:
    """The bytes of an answer, whether its framing is sound, and how they are sent and the connection ends."""

    def __init__(self, draw, body, others):
        self.draw, self.body, self.sound, self.then = draw, body, True, "keep"
        self.others = others
        self.raw = getattr(self, draw.choices(list(self.KINDS), list(self.KINDS.values()))[0])()

    def chunks(self, *, extensions=False, trailer=b""):
        draw, parts, rest = self.draw, [], self.body
        while rest:
            size = draw.choice((1, 7, 100, 1000, 70_000))
            piece, rest = rest[:size], rest[size:]
            number = b"%x" % len(piece) if draw.random() < 0.7 else b"%05X" % len(piece)
            name = draw.choice((b";a", b";a=b", b';name="va;l=ue"', b" ;x=1;y=2")) if extensions else b""
            parts.append(number + name + b"\r\n" + piece + b"\r\n")
        return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"

    def chunked(self):
        return OK + b"Transfer-Encoding: chunked\r\n\r\n" + self.chunks()

    def extended(self):
        self.sound = None  # RFC 9112 allows extensions, and a parser may refuse odd ones
        return OK + b"transfer-encoding:chunked\r\n\r\n" + self.chunks(extensions=True)

    def trailed(self):
        trailer = b"x-checksum: 1\r\nx-more: " + b"y" * self.draw.choice((1, 9000)) + b"\r\n"
        return OK + b"Trailer: x-checksum\r\nTRANSFER-ENCODING: chunked\r\n\r\n" + self.chunks(trailer=trailer)

    def measured(self):
        return OK + b"Content-Length: %d\r\nx-long: %b\r\n\r\n%b" % (len(self.body), b"z" * 30_000, self.body)

    def interim(self):
        return b"".join(self.draw.choices(INTERIM, k=self.draw.randint(1, 5))) + self.chunked()

    def closing(self):
        self.then = "close"
        return OK + b"Connection: close\r\n" + self.chunked()[len(OK) :]

    def old(self):
        self.then = "close"
        return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(self.body), self.body)

    def until_closed(self):
        self.sound, self.then = None, "close"
        return self.draw.choice((b"HTTP/1.0 200 OK\r\n\r\n", OK + b"Connection: close\r\n\r\n")) + self.body

    def cut(self):
        self.sound, self.then = False, self.draw.choice(("close", "reset", "half"))
        raw = self.chunked()
        return raw[: self.draw.randrange(len(raw))]

    def silent(self):
        self.sound, self.then = False, "wait"
        raw = self.chunked()
        return raw[: self.draw.randrange(len(raw))]

    def too_short(self):
        self.sound = False
        return OK + b"Content-Length: %d\r\n\r\n%b" % (self.draw.randrange(len(self.body)), self.body)

    def too_long(self):
        self.sound, self.then = False, self.draw.choice(("close", "wait"))
        return OK + b"Content-Length: %d\r\n\r\n%b" % (len(self.body) + self.draw.randint(1, 500), self.body)

    def twice_measured(self):
        self.sound = False
        return OK + b"Content-Length: %d\r\nContent-Length: 3\r\n\r\n%b" % (len(self.body), self.body)

    def packed(self):
        self.sound = False
        self.body = gzip.compress(self.body)
        return OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + self.chunks()

    def followed(self):
        """A second answer right behind the first: that of another request."""
        self.sound = None
        return self.chunked() + OK + b"Content-Length: %d\r\n\r\n%b" % (len(self.others), self.others)

    def upgraded(self):
        self.sound, self.then = False, "close"
        return b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + self.body

    def odd_chunk(self):
        self.sound, self.then = False, "wait"
        size = self.draw.choice((b"-1", b"0x10", b"fffffffffffffffff", b"7fffffffffffffff", b"", b"g", b"1 0", b"\0"))
        return OK + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + self.body

    def odd_head(self):
        self.sound, self.then = False, "wait"
        heads = (
            b"",
            b"\r\n" * 50,
            b"HTTP/2.0 200 OK\r\n\r\n",
            b"HTTP/1.1 999999 x\r\n\r\n",
            b"\x16\x03\x01",
            b"HTTP/1.1 2\xff0 OK\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            OK + b": no name\r\n\r\n",
            OK + b"a b: c\r\n\r\n",
            b"HTTP/1.1 304 x\r\n\r\n",
            b"HTTP/1.1 204 x\r\n\r\n",
        )
        return self.draw.choice(heads) + self.body

    def failed(self):
        self.sound = False
        status = self.draw.choice((302, 400, 401, 404, 408, 413, 429, 500, 502, 503, 599))
        return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(self.body), self.body)

    KINDS = dict.fromkeys(
        tuple(
            (
                "chunked extended trailed measured interim closing old until_closed cut too_short "
                "twice_measured packed followed upgraded failed"
            ).split()
        ),
        4,
    ) | {"silent": 1, "too_long": 1, "odd_chunk": 1, "odd_head": 1}

    def pieces(self):
        """Cut the bytes: whole, at random places, or, of a short answer, one by one."""
        draw, raw = self.draw, self.raw
        if len(raw) < 3000 and draw.random() < 0.15:
            return [raw[at : at + 1] for at in range(len(raw))]
        cuts = sorted(draw.randrange(len(raw) + 1) for _ in range(draw.choice((0, 0, 1, 3, 20))))
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


class HostileServer:
    """Answers each request of a client as it draws, and notes which of them have to count."""

    def __init__(self, streamed):
        self.streamed, self.sound, self.attempts = streamed, {}, Counter()

    async def serve(self, reader, writer):
        sock = writer.get_extra_info("socket")
        try:
            with contextlib.suppress(*GONE, asyncio.IncompleteReadError):
                while await self.answer(reader, writer, sock):
                    pass
            writer.close()
            with contextlib.suppress(*GONE):
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def answer(self, reader, writer, sock):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        ids = tuple(asked["prompt"])
        self.attempts[ids] += 1
        draw = random.Random(f"{SEED} {self.attempts[ids]} {ids}")
        answer = Answer(draw, self.body(asked, draw), self.body(asked, draw, tokens=[4, 4, 4]))
        self.sound[ids] = answer.sound
        for piece in answer.pieces():
            writer.write(piece)
            await writer.drain()
            if draw.random() < 0.3:
                await asyncio.sleep(draw.choice((0, 0, 0.001)))
        if answer.then == "wait":
            await asyncio.sleep(STALL_S * 6)
        elif answer.then == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif answer.then == "half":
            writer.write_eof()
            await asyncio.sleep(0.05)
        return answer.then == "keep"

    def body(self, asked, draw, tokens=None):
        tokens = tokens or expected_tokens(asked["prompt"], asked["max_tokens"], asked["min_tokens"])
        return answer_content(asked, tokens, streamed=self.streamed)


@pytest.mark.parametrize("stream_interval", [0, 1, 16], ids=["whole", "tokens", "chunks"])
def test_each_request_ends_once_and_sound_answers_count(monkeypatch, stream_interval):
    monkeypatch.setattr(client_module, "RETRY_PAUSE_S", (0.0, 0.0))
    hostile, ledger, errors = HostileServer(stream_interval > 0), Ledger(), []

    async def go_on(clock):
        while True:
            await asyncio.sleep(STEP_S)
            clock.now += STEP_S

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        async with await asyncio.start_server(hostile.serve, "127.0.0.1", 0, limit=1 << 22) as server:
            address = await resolve(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            client = Client(
                [address], ledger, limits=LIMITS, stream_interval=stream_interval, max_in_flight=64, stall_s=STALL_S
            )
            going_on = asyncio.create_task(go_on(Clock(client)))
            timeout_s = 30 + REQUESTS / 5
            left = await all_ended(client, ledger, REQUESTS, stream_interval=stream_interval, timeout_s=timeout_s)
            going_on.cancel()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await asyncio.sleep(0.05)
        return left

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == (0, 0)
    assert errors == []
    assert ledger.tokens == {key: expected_tokens(prompt(key), 128, 2) for key in ledger.tokens}
    sound = {key: hostile.sound.get(tuple(prompt(key))) for key in range(REQUESTS)}
    assert {key: ledger.causes[key] for key in ledger.causes if sound[key]} == {}
    assert [key for key in ledger.tokens if sound[key] is False] == []
    assert 0.2 * REQUESTS < len(ledger.tokens) < 0.9 * REQUESTS

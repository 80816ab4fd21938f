"""Streams that have begun, polled together: on real sockets, with the other end under the test's control."""

import asyncio
import socket
import struct

import pytest
import uvloop
from test_connection import TOKENS, Exchange, recorded

from cm4vllm.loadgen.client import stream_poller
from cm4vllm.loadgen.client.connection import Connection
from cm4vllm.loadgen.client.stream_poller import StreamPoller

_, STREAM = recorded()
#: Where the stream's first token has come, and its second chunk begins.
BEGUN = STREAM.rindex(b"\r\n", 0, STREAM.index(b"data:", STREAM.index(b"data:") + 1) - 2) + 2


class Peer:
    """A connection in a poller, and the socket at its other end."""

    def __init__(self, poller, server):
        self.poller = poller
        self.server = server

    async def connect(self, mine):
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(lambda: Connection(lambda _: None, self.poller), sock=mine)

    async def ask(self):
        self.exchange = Exchange()
        self.connection.send(self.exchange, b"request")
        await asyncio.get_running_loop().sock_recv(self.server, 100)

    def say(self, data):
        self.server.sendall(data)

    async def until(self, seen):
        async with asyncio.timeout(10):
            while not seen(self.exchange):
                await asyncio.sleep(0.0002)
        return self.exchange


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    # As servers do: else a piece waits until the one before is acknowledged.
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return mine, server


def with_peer(script, pair=tcp_pair):
    async def main():
        mine, server = pair()
        mine.setblocking(False)
        server.setblocking(False)
        peer = Peer(StreamPoller(), server)
        await peer.connect(mine)
        try:
            await script(peer)
        finally:
            peer.connection.close()
            peer.poller.close()
            server.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def has_first(exchange):
    return exchange.firsts


def has_ended(exchange):
    return exchange.tokens is not None or exchange.cause is not None


@pytest.mark.parametrize("pair", [tcp_pair, socket.socketpair], ids=["TCP", "Unix"])
def test_streams_split_anywhere_follow_each_other_on_one_connection(pair):
    async def script(peer):
        for cut in range(BEGUN, len(STREAM), 29):
            await peer.ask()
            peer.say(STREAM[:cut])
            await peer.until(has_first)
            peer.say(STREAM[cut:])
            exchange = await peer.until(has_ended)
            assert (exchange.tokens, exchange.firsts) == (TOKENS, TOKENS[:1])
            assert peer.connection.open

    with_peer(script, pair)


def test_a_first_token_waits_for_no_poll_and_an_end_does(monkeypatch):
    monkeypatch.setattr(stream_poller, "POLL_INTERVAL_S", 0.5)

    async def script(peer):
        loop = asyncio.get_running_loop()
        await peer.ask()
        begun = loop.time()
        peer.say(STREAM[:BEGUN])
        await peer.until(has_first)
        peer.say(STREAM[BEGUN:])
        await asyncio.sleep(0.1)
        assert not has_ended(peer.exchange) or loop.time() - begun >= 0.5
        assert (await peer.until(has_ended)).tokens == TOKENS

    with_peer(script)


def test_a_stream_that_comes_at_once_is_never_polled():
    async def script(peer):
        peer.poller.add = None
        for _ in range(3):
            await peer.ask()
            peer.say(STREAM)
            assert (await peer.until(has_ended)).tokens == TOKENS

    with_peer(script)


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda server: server.close(), "the server closed the connection"),
        (
            lambda server: (
                server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
                server.close(),
            ),
            "the connection broke: ConnectionResetError",
        ),
        (lambda server: server.sendall(b"no chunk\r\n"), "the answer is not HTTP"),
    ],
    ids=["closed", "reset", "no HTTP"],
)
def test_a_stream_that_breaks_while_polled_is_reported_once(end, cause):
    async def script(peer):
        await peer.ask()
        peer.say(STREAM[:BEGUN])
        await peer.until(has_first)
        await asyncio.sleep(0.01)
        end(peer.server)
        exchange = await peer.until(has_ended)
        assert exchange.cause[0].startswith(cause)
        assert exchange.cause[1]
        assert not peer.connection.open

    with_peer(script)


@pytest.mark.parametrize(
    ("end", "tokens", "cause"),
    [(len(STREAM), TOKENS, None), (BEGUN + 100, None, ("the server closed the connection", True))],
    ids=["whole", "cut off"],
)
def test_what_comes_together_with_the_end_of_the_connection_is_read_to_its_end(end, tokens, cause):
    async def script(peer):
        await peer.ask()
        peer.say(STREAM[:BEGUN])
        await peer.until(has_first)
        peer.say(STREAM[BEGUN:end])
        peer.server.close()
        exchange = await peer.until(has_ended)
        assert (exchange.tokens, exchange.cause) == (tokens, cause)
        async with asyncio.timeout(10):
            while peer.connection.open:
                await asyncio.sleep(0.001)

    with_peer(script)


@pytest.mark.parametrize("short", [1, 479])
def test_pieces_of_every_length_are_read_whole(monkeypatch, short):
    monkeypatch.setattr(stream_poller, "_SMALL", short)
    monkeypatch.setattr(stream_poller, "_LARGE", 2 * short)

    async def script(peer):
        for _ in range(2):
            await peer.ask()
            peer.say(STREAM[:BEGUN])
            await peer.until(has_first)
            for begin in range(BEGUN, len(STREAM), 100):
                peer.say(STREAM[begin : begin + 100])
                await asyncio.sleep(0.003)
            exchange = await peer.until(has_ended)
            assert (exchange.tokens, exchange.firsts) == (TOKENS, TOKENS[:1])

    with_peer(script)


def test_one_stream_that_breaks_leaves_the_others_alone():
    async def script(peer):
        mine, server = tcp_pair()
        mine.setblocking(False)
        server.setblocking(False)
        other = Peer(peer.poller, server)
        await other.connect(mine)
        for client in (peer, other):
            await client.ask()
            client.say(STREAM[:BEGUN])
            await client.until(has_first)
        peer.server.close()
        await peer.until(has_ended)
        other.say(STREAM[BEGUN:])
        assert (await other.until(has_ended)).tokens == TOKENS
        other.connection.close()
        server.close()

    with_peer(script)

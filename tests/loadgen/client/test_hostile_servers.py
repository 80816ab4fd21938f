"""Whatever a server sends, each request ends exactly once, with its own tokens or not at all, and no process ends."""

import asyncio
import json
import time

import pytest
from driven_client import LIMITS, Clock, Ledger, drive, exactly_once
from fake_vllm import Behaviour, FakeVllm, Fault, expected_tokens, http, prompt, stream_events

from cm4vllm.loadgen.client import client as client_module
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve
from cm4vllm.loadgen.client.wire import Sampling, completion_body

LONG_NUMBER = b"9" * 5000


def chunked(pieces, head=b""):
    return (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n%b\r\n" % head
        + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        + b"0\r\n\r\n"
    )


def good(body, tokens=None):
    """Return the right answer to a streamed request, or `tokens` instead."""
    tokens = tokens or expected_tokens(body["prompt"], body["max_tokens"], body["min_tokens"])
    return chunked(stream_events(body, tokens, Behaviour(), Fault.NONE))


def answers_of(raw, keys, *, stream_interval=1):
    """Have `raw` give the answers to the prompts `keys`, by key, None for the right one; return what became of all.

    Each is sent alone, before one that is answered rightly, or on the same connection would be.
    """
    failures, key_of = [], {tuple(prompt(key)): key for key in range(1000)}

    async def script(send, client):
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        client_module.RETRY_PAUSE_S, pauses = (0.001, 0.001), client_module.RETRY_PAUSE_S
        for key in keys:
            await send([key])
            await send([500 + key])
        client_module.RETRY_PAUSE_S = pauses

    def answer(number, body):
        key = key_of[tuple(body["prompt"])]
        return raw(key, body) if key < 500 else None

    with FakeVllm(Behaviour(raw=answer)) as server:
        client, ledger = drive(server, [], script=script, stream_interval=stream_interval, timeout_s=60)
    assert failures == []
    assert client.in_flight == 0
    exactly_once(ledger, [*keys, *(500 + key for key in keys)])
    right = {key: expected_tokens(prompt(key), 128, 2) for key in ledger.tokens}
    assert ledger.tokens == right
    assert all(cause.isprintable() and len(cause) < 400 for cause in ledger.causes.values())
    assert all(key < 500 for key in ledger.causes)
    return server, ledger


# --- Framing --------------------------------------------------------------------------------------------------------


def test_what_comes_behind_an_answer_is_not_the_next_requests():
    behind = [
        lambda body: good(body, [6, 6, 6]),
        lambda body: b"HTTP/1.1 200",
        lambda body: b"xyz",
        lambda body: http(b"", "408 Request Timeout"),
        lambda body: b"\r\n" + good(body, [6, 6, 6]),
    ]
    server, ledger = answers_of(lambda key, body: good(body) + behind[key](body), range(len(behind)))
    assert ledger.causes == {}
    assert server.connections == 1 + 1 + len(behind)


@pytest.mark.parametrize("unasked", [b"HTTP/1.1 200 OK\r\n", http(b"{}"), b"220 mail.example.org ESMTP\r\n"])
def test_what_comes_on_an_idle_connection_closes_it(unasked):
    async def main():
        ports, tasks = [], set()

        async def serve(reader, writer):
            ports.append(writer.get_extra_info("peername")[1])
            while True:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError:
                    break
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                writer.write(good(body))
                task = asyncio.get_running_loop().call_later(0.05, writer.write, unasked)
                tasks.add(task)
            writer.close()

        ledger = Ledger()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = await resolve(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            client = Client([address], ledger, limits=LIMITS, stream_interval=1)
            for key in range(3):
                body = completion_body(Sampling("tiny", 128, 2, 1), prompt(key))
                client.submit([(key, body, len(prompt(key)), 0)])
                async with asyncio.timeout(30):
                    while ledger.events["end", key] == 0 or client._connections:
                        await asyncio.sleep(0.001)
            left = len(client._connections)
            client.close()
            await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
        return ledger, ports, left

    ledger, ports, left = asyncio.run(main())
    assert ledger.tokens == {key: expected_tokens(prompt(key), 128, 2) for key in range(3)}
    assert len(set(ports)) == 4  # one was opened to see whether anything listens
    assert left == 0


def test_an_answer_whose_length_is_not_clear_fails_its_request_alone():
    heads = [
        b"content-length: 3\r\n",
        b"content-length: -1\r\n",
        b"content-length: 9%b\r\n" % LONG_NUMBER,
        b"transfer-encoding: gzip, chunked\r\n",
    ]
    _, ledger = answers_of(
        lambda key, body: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%b\r\n{}" % heads[key], range(len(heads))
    )
    assert sorted(ledger.causes) == list(range(len(heads)))


# --- Answers that never end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream_interval", "piece"),
    [(0, b" " * 65536), (1, b": nothing\n" * 6000), (1, b'data: {"choices":[]}\n\n' * 3000)],
)
def test_an_answer_without_end_is_given_up_before_it_fills_the_memory(stream_interval, piece):
    endless = chunked([piece] * 400)[:-5]  # 25 MB, and the end of the last chunk does not come
    begin = time.monotonic()
    _, ledger = answers_of(lambda key, body: endless, [1], stream_interval=stream_interval)
    assert "more bytes than its tokens can have" in ledger.causes[1]
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("stream_interval", [0, 1])
def test_comments_that_keep_a_connection_alive_are_no_work(stream_interval):
    """A proxy may send them for ever while the engine behind it is stuck."""

    async def main():
        async def serve(reader, writer):
            try:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                while True:
                    writer.write(b"2\r\n:\n\r\n" if stream_interval else b"1\r\n \r\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)
                    clock.now += 0.02
            except (asyncio.IncompleteReadError, ConnectionError):  # the first comes to see whether anything listens
                writer.close()

        ledger = Ledger()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = await resolve(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        client = Client([address], ledger, limits=LIMITS, stream_interval=stream_interval, stall_s=0.3)
        clock = Clock(client)
        body = completion_body(Sampling("tiny", 128, 2, stream_interval), prompt(1))
        client.submit([(1, body, len(prompt(1)), 0)])
        async with asyncio.timeout(30):
            while not ledger.causes or client._connections:
                await asyncio.sleep(0.01)
        left = len(client._connections), client.in_flight, client._servers[0].in_flight
        client.close()
        server.close()
        await asyncio.sleep(0.05)
        return ledger, left

    ledger, left = asyncio.run(main())
    assert ledger.causes == {1: "the server sent no token for 0.3 s"}
    assert left == (0, 0, 0)


def test_a_slow_stream_is_not_taken_for_a_stuck_one():
    key = next(key for key in range(100) if 20 < len(expected_tokens(prompt(key), 128, 2)) < 30)

    async def script(send, client):
        clock, sending = Clock(client), asyncio.create_task(send([key]))
        begin = clock.now
        while not sending.done():  # however long this machine stands still, a token comes every 0.05 s
            clock.now = begin + 0.05 * sum(connection.pieces for connection in client._connections)
            await asyncio.sleep(0.005)
        assert clock.now > begin + 0.9

    with FakeVllm(Behaviour(token_delay_s=0.05)) as server:
        _, ledger = drive(server, [], script=script, stall_s=0.3)
    assert ledger.causes == {}


def test_a_request_that_was_given_up_while_its_connection_was_opened_is_not_sent():
    async def script(send, client):
        [server] = client._servers
        connect = server.address.connect

        async def slowly(connection):
            await asyncio.sleep(0.2)
            await connect(connection)

        server.address.connect = slowly
        sending = asyncio.create_task(send([1]))
        await asyncio.sleep(0.05)
        [exchange] = client._open
        exchange.abandon("given up by the test")
        await sending
        await asyncio.sleep(0.3)
        await send([2])
        assert server.in_flight == 0

    with FakeVllm() as server:
        _, ledger = drive(server, [], script=script)
    exactly_once(ledger, [1, 2])
    assert [body["prompt"] for body in server.bodies] == [prompt(2)]

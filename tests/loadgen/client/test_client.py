"""The client alone, against a server on loopback."""

import asyncio
import time

import pytest
from driven_client import LIMITS, Ledger, drive, exactly_once
from fake_vllm import Behaviour, FakeVllm, Fault, answer_content, expected_tokens, http, prompt

from cm4vllm.loadgen.client import client as client_module
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve
from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.records.server import Api


@pytest.mark.parametrize("stream_interval", [0, 1])
def test_each_request_is_answered_once_with_its_own_tokens(stream_interval):
    with FakeVllm() as server:
        client, ledger = drive(server, range(200), stream_interval=stream_interval)
    exactly_once(ledger, range(200))
    assert ledger.tokens == {key: expected_tokens(prompt(key), 128, 2) for key in range(200)}
    assert ledger.firsts == ({key: tokens[0] for key, tokens in ledger.tokens.items()} if stream_interval else {})
    assert client.in_flight == 0


@pytest.mark.parametrize("fault", [Fault.STATUS_500, Fault.CLOSE_BEFORE])
def test_a_request_is_sent_again_at_most_twice(fault):
    with FakeVllm(Behaviour(fault=lambda n: fault)) as server:
        client, ledger = drive(server, [1])
    assert len(server.bodies) == 3
    assert client.counts.retries == 2
    exactly_once(ledger, [1])
    assert client.counts.failed == 1


def test_a_second_retry_can_still_succeed():
    with FakeVllm(Behaviour(fault=lambda n: (Fault.STATUS_500, Fault.CLOSE_BEFORE, Fault.NONE)[min(n, 2)])) as server:
        client, ledger = drive(server, [1])
    assert ledger.tokens[1] == expected_tokens(prompt(1), 128, 2)
    assert client.counts.retries == 2
    assert client.counts.failed == 0


@pytest.mark.parametrize("fault", [Fault.STATUS_400, Fault.CLOSE_MIDSTREAM, Fault.WRONG_USAGE, Fault.ERROR_EVENT])
def test_what_was_answered_once_is_never_sent_again(fault):
    with FakeVllm(Behaviour(fault=lambda n: fault)) as server:
        client, ledger = drive(server, [1, 2])
    assert len(server.bodies) == 2
    assert client.counts.retries == 0
    exactly_once(ledger, [1, 2])
    assert client.counts.failed == 2


def test_a_server_that_goes_away_fails_what_is_open_and_what_follows_within_seconds():
    with FakeVllm(Behaviour(token_delay_s=10)) as server:  # none ends before the server does

        async def script(send, client):
            sending = asyncio.create_task(send(range(20)))
            while len(server.bodies) < 20:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.stop)
            await sending
            await send(range(20, 30))

        begin = time.monotonic()
        client, ledger = drive(server, [], script=script)
    exactly_once(ledger, range(30))
    assert client.counts.failed == 30
    assert any("cannot connect" in cause for cause in ledger.causes.values())
    assert time.monotonic() - begin < 30


def test_connections_are_used_again_the_last_one_first():
    with FakeVllm() as server:

        async def script(send, client):
            await send(range(4))
            for key in range(4, 12):
                await send([key])

        drive(server, [], script=script)
    assert server.connections == 1 + 4
    assert len(set(server.served_by[4:])) == 1


def test_a_connection_that_the_server_may_close_is_not_used_again(monkeypatch):
    monkeypatch.setattr(client_module, "REUSE_WITHIN_S", 0.2)
    with FakeVllm() as server:

        async def script(send, client):
            await send([1])
            await asyncio.sleep(0.3)
            await send([2])

        client, _ = drive(server, [], script=script)
    assert server.connections == 1 + 2
    assert client.counts.retries == 0


def test_a_server_that_sends_nothing_is_given_up():
    with FakeVllm(Behaviour(fault=lambda n: Fault.STALL)) as server:
        _, ledger = drive(server, [1, 2], stall_s=0.3)
    exactly_once(ledger, [1, 2])
    assert set(ledger.causes.values()) == {"the server sent nothing for 0.3 s"}


def test_requests_beyond_the_bound_wait_in_order():
    with FakeVllm(Behaviour(token_delay_s=0.001)) as server:
        drive(server, range(30), max_in_flight=3)
    assert server.most_in_flight == 3
    assert [body["prompt"] for body in server.bodies] == [prompt(key) for key in range(30)]


def test_an_endpoint_where_nothing_listens_is_an_os_error():
    with FakeVllm() as server:
        endpoint = server.endpoint
    with pytest.raises(OSError, match="onnect"):
        asyncio.run(resolve(endpoint))


def test_of_several_servers_the_one_with_the_fewest_open_requests_is_asked():
    with FakeVllm(Behaviour(token_delay_s=0.01)) as slow, FakeVllm() as fast:
        _, ledger = drive([slow, fast], range(200), max_in_flight=8)
    exactly_once(ledger, range(200))
    assert len(fast.bodies) > 2 * len(slow.bodies) > 0


def test_a_retry_asks_another_server():
    with FakeVllm(Behaviour(fault=lambda n: Fault.STATUS_500)) as broken, FakeVllm() as good:
        client, ledger = drive([broken, good], range(100), max_in_flight=4)
    exactly_once(ledger, range(100))
    assert client.counts.failed == 0
    assert client.counts.retries == len(broken.bodies) < 20


def test_a_server_that_is_gone_does_not_draw_the_requests():
    with FakeVllm() as gone, FakeVllm(Behaviour(token_delay_s=0.001)) as good:

        async def script(send, client):
            await asyncio.to_thread(gone.stop)
            await send(range(100))

        client, ledger = drive([gone, good], [], script=script)
    exactly_once(ledger, range(100))
    assert client.counts.failed == 0


@pytest.mark.parametrize("stream_interval", [0, 1])
def test_a_server_that_restarts_between_requests_loses_none(stream_interval):
    with FakeVllm() as server:

        async def script(send, client):
            await send(range(10))
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(again.__enter__)
            await send(range(10, 20))

        again = FakeVllm(port=server.port)
        client, ledger = drive(server, [], script=script, stream_interval=stream_interval)
        again.stop()
    exactly_once(ledger, range(20))
    assert client.counts.failed == 0
    assert len(again.bodies) == 10


def test_streams_that_something_collected_and_passed_on_whole_are_counted(monkeypatch):
    with FakeVllm() as server:
        _, ledger = drive(server, range(20))
    long = [key for key in range(20) if len(ledger.tokens[key]) >= 8]

    def collected(_, body):
        tokens = expected_tokens(body["prompt"], body["max_tokens"], body["min_tokens"])
        return http(answer_content(body, tokens, streamed=True))

    with FakeVllm(Behaviour(raw=collected)) as server, monkeypatch.context() as patch:
        patch.setattr(client_module, "AT_ONCE_S", 1.0)  # a busy machine may stop between the first token and the end
        client, again = drive(server, range(20))
    assert again.tokens == ledger.tokens
    assert client.counts.at_once == len(long) > 10
    slow, sinks = sorted(long, key=lambda key: len(ledger.tokens[key]))[:3], []

    async def script(send, client):
        sinks.append(client.sink)
        await send(slow)

    # Nothing more comes before the first tokens were read: however busy the machine is, these streams come in pieces.
    behaviour = Behaviour(token_delay_s=0.02, held=lambda _, events: events > 0 and len(sinks[0].firsts) < len(slow))
    with FakeVllm(behaviour) as server:
        client, _ = drive(server, [], script=script)
    assert client.counts.at_once == 0


@pytest.mark.timing
def test_no_handshake_counts_as_time_to_the_first_token(certificate, monkeypatch):
    monkeypatch.setattr(client_module, "REUSE_WITHIN_S", 0.6)
    waits = []

    async def script(send, client):
        await client.prepare()
        for key in range(3):
            if key:
                await asyncio.sleep(1.0)  # what is ready then has been opened meanwhile
            begin = time.monotonic()
            await send([key])
            waits.append(time.monotonic() - begin)

    with FakeVllm(Behaviour(certificate=str(certificate), accept_s=0.3)) as server:
        client, ledger = drive(server, range(3), script=script, ca_file=str(certificate), spare=4)
    exactly_once(ledger, range(3))
    assert max(waits) < 0.25
    assert client.counts.connections > 8


@pytest.mark.timing
def test_spare_connections_are_as_many_as_asked_for(monkeypatch):
    monkeypatch.setattr(client_module, "REUSE_WITHIN_S", 0.6)
    monkeypatch.setattr(client_module, "SPARE_INTERVAL_S", 0.05)
    seen = []

    async def script(send, client):
        await client.prepare()
        for _ in range(7):  # for more than two times as long as one is used
            await asyncio.sleep(0.2)
            seen.append(sum(connection.open for connection in client._connections))
        await send(range(20))

    with FakeVllm() as server:
        _, ledger = drive(server, range(20), script=script, spare=8)
    exactly_once(ledger, range(20))
    assert min(seen) >= 8
    assert max(seen) <= 16  # half of them too old soon


@pytest.mark.parametrize("stream_interval", [0, 1, 16])
@pytest.mark.parametrize("way", ["generate", "unix", "tls"])
def test_every_way_to_a_server_gives_the_same_tokens(tmp_path, certificate, stream_interval, way):
    signed = str(certificate) if way == "tls" else ""
    behaviour = Behaviour(
        tokens_per_chunk=stream_interval or 1, certificate=signed, unix=str(tmp_path / "s") if way == "unix" else ""
    )
    api = Api.GENERATE if way == "generate" else Api.COMPLETIONS
    with FakeVllm(behaviour) as server:
        _, ledger = drive(server, range(20), stream_interval=stream_interval, api=api, ca_file=signed)
    assert ledger.tokens == {key: expected_tokens(prompt(key), 128, 2) for key in range(20)}
    assert set(server.paths) == {api.path}
    assert way != "generate" or server.bodies[0]["sampling_params"]["detokenize"] is False


@pytest.mark.parametrize("stream_interval", [0, 1])
def test_prompts_of_ten_thousand_tokens(stream_interval):
    long = [1 + (7 * place) % 128_000 for place in range(10_000)]

    async def main():
        ledger = Ledger()
        client = Client([await resolve(server.endpoint)], ledger, limits=LIMITS, stream_interval=stream_interval)
        body = completion_body(Sampling("tiny", 128, 2, stream_interval), long)
        client.submit((key, memoryview(body), len(long), 0) for key in range(8))
        async with asyncio.timeout(20):
            while len(ledger.tokens) < 8:
                await asyncio.sleep(0.005)
        client.close()
        await asyncio.sleep(0.02)
        return ledger

    with FakeVllm() as server:
        ledger = asyncio.run(main())
    assert all(body["prompt"] == long for body in server.bodies)
    assert ledger.tokens == dict.fromkeys(range(8), expected_tokens(long, 128, 2))

"""A client that a test drives: what it is asked, all that it says, and its clock."""

import asyncio
from collections import Counter

from fake_vllm import prompt

from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve
from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.records.server import Api
from cm4vllm.serving.answers.stated import AnswerLimits

LIMITS = AnswerLimits(min_tokens=2, max_tokens=128, max_model_len=20_000)


class Ledger:
    """A sink that keeps every event."""

    def __init__(self):
        self.events = Counter()
        self.firsts = {}
        self.tokens = {}
        self.causes = {}
        self.batches = []

    def first_token(self, key, token):
        self.events["first", key] += 1
        self.firsts[key] = token

    def completed(self, completions):
        self.batches.append(len(completions))
        for key, tokens, _ in completions:
            self.events["end", key] += 1
            self.tokens[key] = tokens.tolist()

    def failed(self, key, cause, *, first_token_seen):
        assert first_token_seen == (key in self.firsts)
        self.events["end", key] += 1
        self.causes[key] = cause


class Clock:
    """The event loop of a client, whose time is the test's: a machine that stands still is no server that is silent."""

    def __init__(self, client):
        self.loop, client._loop = client._loop, self
        self.now = self.loop.time()

    def time(self):
        return self.now

    def __getattr__(self, name):
        return getattr(self.loop, name)


def drive(
    servers,
    keys,
    *,
    stream_interval=1,
    timeout_s=30,
    script=None,
    api=Api.COMPLETIONS,
    ca_file="",
    loop=asyncio.new_event_loop,
    **more,
):
    """Send the prompts `keys` and return the client and its ledger when each has ended."""
    servers = servers if isinstance(servers, list) else [servers]
    sampling = Sampling("tiny", 128, 2, stream_interval, api)

    async def main():
        ledger, submitted = Ledger(), 0
        addresses = [await resolve(server.endpoint, ca_file) for server in servers]
        client = Client(addresses, ledger, limits=LIMITS, stream_interval=stream_interval, api=api, **more)

        def request(key):
            body = completion_body(sampling, prompt(key))
            return key, body, len(prompt(key)), 0

        async def send(some):
            nonlocal submitted
            submitted += len(some)
            client.submit([request(key) for key in some])
            while sum(count for (kind, _), count in ledger.events.items() if kind == "end") < submitted:
                await asyncio.sleep(0.005)

        async with asyncio.timeout(timeout_s):
            await (script(send, client) if script else send(keys))
        client.close()
        async with asyncio.timeout(timeout_s):  # with TLS, the other end has to close, too
            while any(hasattr(connection, "_transport") for connection in client._connections):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        return client, ledger

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


async def all_ended(client, ledger, count, *, stream_interval, timeout_s):
    """Send the prompts 0 to `count`; return how many requests are left when each has ended."""
    sampling = Sampling("tiny", 128, 2, stream_interval)
    client.submit((key, completion_body(sampling, prompt(key)), len(prompt(key)), 0) for key in range(count))
    async with asyncio.timeout(timeout_s):
        while sum(number for (kind, _), number in ledger.events.items() if kind == "end") < count:
            await asyncio.sleep(0.003)
    await asyncio.sleep(0.05)
    left = client.in_flight, client._servers[0].in_flight
    client.close()
    await asyncio.sleep(0.05)
    exactly_once(ledger, range(count))
    assert all(cause.isprintable() and 5 < len(cause) < 400 for cause in ledger.causes.values())
    return left


def exactly_once(ledger, keys):
    assert {key: ledger.events["end", key] for key in keys} == dict.fromkeys(keys, 1)
    assert all(count == 1 for count in ledger.events.values())

"""A simulated server with vLLM's API on loopback: the search's model of a server, by the wall clock.

Its times are those of its profile, with seeded noise; its answers depend on their prompts and the seed alone, and mean
nothing. The time of a step begins when the step before is over, so that a machine that is late for a moment catches
up; by how much it was late at most stands in the log and in /metrics.
"""

import argparse
import asyncio
import os
import re
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from cm4vllm.campaign.rehearsal.batching import Batch, step_factors
from cm4vllm.campaign.rehearsal.metrics import Counts, metrics_page
from cm4vllm.campaign.rehearsal.profile import FAULT_FILE, Faults, Kind, Profile, read_profile
from cm4vllm.common.settings import GREATEST
from cm4vllm.records.server import Api

#: A field of a form that asks for a transcript: the most tokens of the answer.
_MOST = re.compile(rb'name="max_completion_tokens"\r\n\r\n(\d+)\r\n')
#: Token ids of answers are below this.
_VOCABULARY = 700
_SLOWER = 10
#: Seconds between two looks whether a server that hangs still does, and whether clients have closed their connections;
#: and by how much a step may be late unreported.
_LOOK_S, _LATE_S = 0.1, 1.0
#: The delay that the server still makes up for; after a longer one, as when the machine slept, it goes on from then.
_BEHIND_S = 5.0


def answer_to(prompt: list[int], count: int) -> list[int]:
    """Return the tokens of the answer of a length to a prompt."""
    first = sum(prompt) * 31
    return [(first + 97 * place) % _VOCABULARY for place in range(count)]


@dataclass
class _Query:
    """A request under way. `interval` is that of its chunks in tokens, 0 for a whole answer.

    A `transcript` is text without token ids; the tokenizer of random weights reads each letter as a token.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    prompt: list[int]
    tokens: list[int]
    at_length: bool
    interval: int
    came: float
    transcript: bool = False
    scheduled: float = 0.0
    first: float = 0.0
    sent: int = 0
    whole: asyncio.Event = field(default_factory=asyncio.Event)


class SimulatedServer:
    """Serves one model under a name until it is ended."""

    def __init__(
        self,
        profile: Profile,
        model: str,
        *,
        seed: int = 0,
        faults: Faults = Faults(),  # noqa: B008 - it is frozen
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        api: Api = Api.COMPLETIONS,
    ) -> None:
        self._path, self._transcribes = api.path, api is Api.TRANSCRIPTIONS
        self._profile, self._model, self._seed, self._faults = profile, model, seed, faults
        self._system = replace(
            profile.server,
            max_num_seqs=max_num_seqs or profile.server.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or profile.server.max_num_batched_tokens,
        )
        self._batch = Batch(self._system, step_factors(np.random.default_rng(seed), profile.server.noise))
        self._queries: dict[int, _Query] = {}
        self._counts = Counts()
        self._came = asyncio.Event()
        self._began = 0.0

    async def serve(self, host: str, port: int) -> None:
        """Serve for ever."""
        self._began = asyncio.get_running_loop().time()
        server = await asyncio.start_server(self._talk, host, port, limit=2**24, backlog=4096)
        print(f"SIMULATED: {self._profile.title}; seed {self._seed}, at {host}:{port}", flush=True)
        async with server, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work())
            tasks.create_task(self._die())

    def _has(self, kind: Kind) -> bool:
        return kind in self._faults.now(asyncio.get_running_loop().time() - self._began)

    async def _die(self) -> None:
        while not self._has(Kind.DIE):
            await asyncio.sleep(_LOOK_S)
        print("SIMULATED: the server dies, as it was asked to", flush=True)
        os._exit(1)

    # --- the engine ---

    async def _work(self) -> None:
        """Compute one step after the other; each ends at its planned time by the wall clock."""
        loop, batch = asyncio.get_running_loop(), self._batch
        due = looked = loop.time()
        while True:
            if loop.time() - looked >= _LOOK_S:
                self._drop_closed()
                looked = loop.time()
            while batch.is_idle or self._has(Kind.HANG):
                self._came.clear()
                if batch.is_idle:
                    await self._came.wait()
                else:
                    await asyncio.sleep(_LOOK_S)
                due = max(due, loop.time())
            begin = due
            took, begun, done = batch.step()
            due = max(due + took * (_SLOWER if self._has(Kind.SLOW) else 1), loop.time() - _BEHIND_S)
            self._note_late(loop.time() - due)
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._hand_out(begin, due, begun, done)

    def _drop_closed(self) -> None:
        """Drop the queries whose clients have closed their connections, as vLLM does."""
        gone = [number for number, query in self._queries.items() if query.reader.at_eof() or query.writer.is_closing()]
        for number in gone:
            self._batch.drop(number)
            self._queries.pop(number).whole.set()

    def _note_late(self, late_s: float) -> None:
        if late_s > self._counts.late_s:
            if late_s > _LATE_S and late_s > 2 * self._counts.late_s:
                print(
                    f"SIMULATED: a step was {late_s:.1f} s late: this machine is too slow for the profile", flush=True
                )
            self._counts.late_s = late_s

    def _hand_out(self, begin: float, now: float, begun: list[int], done: list[int]) -> None:
        """Send what a step has made: the tokens of each answer, as often as its request asks for them."""
        batch, counts, queries = self._batch, self._counts, self._queries
        for number in batch.scheduled:
            query = queries[number]
            query.scheduled = query.scheduled or begin
            counts.queue.add(max(0.0, query.scheduled - query.came))
        counts.generation_tokens += len(batch.answering) + len(done)
        for number in begun:
            query = queries[number]
            if not query.first:
                query.first = now
                counts.prompt_tokens += len(query.prompt)
                counts.prefill.add(now - query.scheduled)
        for number in batch.answering:
            query = queries[number]
            made = len(query.tokens) - batch.left[number]
            if query.interval and (not query.sent or made - query.sent >= query.interval):
                self._send_chunk(query, made)
        for number in done:
            query = queries.pop(number)
            counts.decode.add(now - query.first)
            if query.interval:
                self._send_chunk(query, len(query.tokens))
            else:
                _send(query.writer, self._whole_answer(query))
            query.whole.set()

    def _whole_answer(self, query: _Query) -> dict[str, Any]:
        choice = {
            "index": 0,
            "text": "w" * len(query.tokens),
            "token_ids": query.tokens,
            "prompt_token_ids": query.prompt,
            "finish_reason": "length" if query.at_length else "stop",
        }
        return {"model": self._model, "choices": [choice], "usage": _usage(query)}

    def _send_chunk(self, query: _Query, made: int) -> None:
        """Send the tokens that came since the last chunk; with the last ones the end of the stream."""
        choice: dict[str, Any] = {"index": 0}
        if query.transcript:
            choice["delta"] = {"content": "w" * (made - query.sent)}
        else:
            choice |= {"text": "w", "token_ids": query.tokens[query.sent : made]}
        data = b""
        if not query.sent:
            if not query.transcript:
                choice["prompt_token_ids"] = query.prompt
            data = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        query.sent = made
        ended = made == len(query.tokens)
        choice["finish_reason"] = ("length" if query.at_length else "stop") if ended else None
        data += _event(msgspec.json.encode({"choices": [choice], "usage": None}))
        if ended:
            data += _event(msgspec.json.encode({"choices": [], "usage": _usage(query)})) + _event(b"[DONE]")
            data += b"0\r\n\r\n"
        if not query.writer.is_closing():
            query.writer.write(data)

    # --- its API ---

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path, fields = head.split(" ", 2)[1], head.lower()
                size = int(fields.split("content-length:")[1].split()[0]) if "content-length:" in fields else 0
                body = await reader.readexactly(size)
                while self._has(Kind.HANG):
                    await asyncio.sleep(_LOOK_S)
                await self._answer(path, body, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, IndexError, ValueError):
            writer.close()

    async def _answer(self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path == "/health":
            _send(writer, "")
        elif path == "/version":
            simulated = self._profile.simulation(self._seed, self._faults.text)
            _send(writer, {"version": f"{self._profile.vllm}+simulated", "simulated": simulated})
        elif path == "/metrics":
            _send(writer, self._metrics())
        elif path == "/v1/models":
            _send(writer, {"data": [{"id": self._model, "max_model_len": self._profile.server.max_model_len}]})
        elif path != self._path:
            _send(writer, {"detail": "Not Found"}, status="404 Not Found")
        elif self._has(Kind.RUBBISH):
            choice = {"text": "?", "token_ids": [1, 2], "finish_reason": "stop"}
            _send(writer, {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 7}})
        elif self._transcribes:
            most = _MOST.search(body)
            asked = {"prompt": [zlib.crc32(body)], "stream": True, "max_tokens": int(most[1]) if most else 16}
            await self._complete(asked, reader, writer)
        else:
            await self._complete(msgspec.json.decode(body), reader, writer)

    def _metrics(self) -> str:
        batch = self._batch
        return metrics_page(
            self._counts,
            self._model,
            running=batch.running,
            waiting=batch.waiting,
            kv_cache_usage=min(1.0, batch.used / self._system.kv_tokens),
            preemptions=batch.preemptions,
        )

    async def _complete(
        self, asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        prompt, most = asked["prompt"], int(asked.get("max_tokens", 16))
        room = self._profile.server.max_model_len
        if len(prompt) + most > room:
            message = f"this server's context is {room} tokens; {len(prompt)} of the prompt and {most} are asked for"
            _send(writer, {"error": {"message": message, "code": 400}}, status="400 Bad Request")
            return
        count, counted = self._lengths(
            prompt, most, int(asked.get("min_tokens", 0)), whole=bool(asked.get("ignore_eos"))
        )
        interval = int(asked.get("stream_interval", 1)) if asked.get("stream") else 0
        came = asyncio.get_running_loop().time()
        tokens = answer_to(prompt, count)
        query = _Query(reader, writer, prompt, tokens, count == most, interval, came, self._transcribes)
        self._queries[self._batch.add(counted, count)] = query
        self._came.set()
        await query.whole.wait()

    def _lengths(self, prompt: list[int], most: int, least: int, *, whole: bool) -> tuple[int, int]:
        """Return the tokens of the answer, and those as which the prompt counts: drawn by prompt and seed."""
        data = array("q", prompt).tobytes()
        drawn, counted = (zlib.crc32(data, 2 * self._seed + which + 1) / 2**32 for which in (0, 1))
        count = most if whole else min(most, max(1, least, self._profile.answers.of(drawn)))
        return count, self._profile.prompts.of(counted)


def _usage(query: _Query) -> dict[str, int]:
    return {"prompt_tokens": len(query.prompt), "completion_tokens": len(query.tokens)}


def _event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def _send(writer: asyncio.StreamWriter, value: object, *, status: str = "200 OK") -> None:
    data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    kind = "text/plain" if isinstance(value, str) else "application/json"
    if not writer.is_closing():
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        )


def _bounded_number(least: int, most: int, text: str) -> int:
    """Return the whole number of an argument. Raises ArgumentTypeError for one out of its range."""
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most}")
    return int(text)


def main(arguments: list[str]) -> None:
    """Serve by the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--profile", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=partial(_bounded_number, 0, 65535), required=True)
    parser.add_argument("--seed", type=partial(_bounded_number, 0, GREATEST), default=0)
    parser.add_argument("--faults", default="")
    parser.add_argument("--api", type=Api, default=Api.COMPLETIONS)
    parser.add_argument("--max-num-seqs", type=partial(_bounded_number, 1, GREATEST))
    parser.add_argument("--max-num-batched-tokens", type=partial(_bounded_number, 1, GREATEST))
    options = parser.parse_args(arguments)
    server = SimulatedServer(
        read_profile(options.profile),
        options.served_model_name,
        seed=options.seed,
        faults=Faults.parse(options.faults, Path(path) if (path := os.environ.get(FAULT_FILE)) else None),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        api=options.api,
    )
    asyncio.run(server.serve(options.host, options.port))


if __name__ == "__main__":
    main(sys.argv[1:])

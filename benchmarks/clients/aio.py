"""The usual asynchronous way: aiohttp on uvloop in a thread beside LoadGen, JSON read event by event.

A task for each query and a semaphore that bounds those that are sent, as `vllm bench serve` has it.
"""

import asyncio
import json
from array import array
from collections.abc import Sequence

import aiohttp

from clients.loop_thread import LoopThread
from clients.task import HEADERS


class Aio(LoopThread):
    """Its tasks share one session."""

    def opened(self) -> aiohttp.ClientSession:
        self._free = asyncio.Semaphore(self._task.in_flight if self._task.qps is None else 1 << 30)
        self._tasks: set[asyncio.Task[None]] = set()
        return aiohttp.ClientSession(
            self._task.url,
            headers=HEADERS,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        self._loop.call_soon_threadsafe(self._start, queries)

    def _start(self, queries: Sequence[tuple[int, int]]) -> None:
        for query in queries:
            task = self._loop.create_task(self._one(*query))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, key: int, index: int) -> None:
        body = self._bodies[index % len(self._bodies)]
        tokens = array("i")
        async with self._free, self._open.post("/v1/completions", data=body) as answer:
            if not self._task.streamed:
                tokens.extend((await answer.json())["choices"][0]["token_ids"])
            else:
                async for line in answer.content:
                    if line.startswith(b"data") and b"[DONE]" not in line:
                        for choice in json.loads(line[6:])["choices"]:
                            if not tokens:
                                self._first(key, choice["token_ids"][0])
                            tokens.extend(choice["token_ids"])
        self._done(key, tokens)

"""The usual asynchronous way: aiohttp on uvloop in a thread beside LoadGen, JSON read event by event.

A task for each query and a semaphore that bounds those that are sent, as `vllm bench serve` has it.
"""

import asyncio
import json
import threading
from array import array
from collections.abc import Sequence

import aiohttp
import uvloop

from clients.closed_loop import Done, First
from clients.task import Task, bodies

_HEADERS = {"Content-Type": "application/json"}


class Aio:
    """An event loop in a thread."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._url = f"http://127.0.0.1:{task.port}/v1/completions"
        self._streamed = task.streamed
        self._first, self._done = first, done
        self._bodies = bodies(task)
        self._limit = task.in_flight if task.qps is None else 1 << 30
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        self._loop.call_soon_threadsafe(self._start, queries)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._free = asyncio.Semaphore(self._limit)
        self._tasks: set[asyncio.Task[None]] = set()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        ) as self._session:
            self._ready.set()
            await self._stop.wait()

    def _start(self, queries: Sequence[tuple[int, int]]) -> None:
        for query in queries:
            task = self._loop.create_task(self._one(*query))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, key: int, index: int) -> None:
        body = self._bodies[index % len(self._bodies)]
        tokens = array("i")
        async with self._free, self._session.post(self._url, data=body, headers=_HEADERS) as answer:
            if not self._streamed:
                tokens.extend((await answer.json())["choices"][0]["token_ids"])
            else:
                async for line in answer.content:
                    if line.startswith(b"data") and b"[DONE]" not in line:
                        for choice in json.loads(line[6:])["choices"]:
                            if not tokens:
                                self._first(key, choice["token_ids"][0])
                            tokens.extend(choice["token_ids"])
        self._done(key, tokens)

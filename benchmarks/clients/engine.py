"""The client of cm4vllm by itself: what a worker process runs, without the socket pair to LoadGen's process."""

import asyncio
import os
import threading
from array import array
from collections.abc import Sequence

import uvloop

from clients.closed_loop import Done, First
from clients.task import Task, bodies
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve
from cm4vllm.loadgen.client.in_flight import Completion
from cm4vllm.loadgen.client.process_metrics import stop_garbage_collection
from cm4vllm.serving.answers.stated import AnswerLimits


class Engine:
    """An event loop in a thread, and the client in it."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._task = task
        self._first, self._done = first, done
        self._bodies = bodies(task)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        count, length = len(self._bodies), self._task.prompt_tokens
        self._loop.call_soon_threadsafe(
            self._client.submit, ((key, self._bodies[index % count], length, 0) for key, index in queries)
        )

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        limits = AnswerLimits(min_tokens=1, max_tokens=self._task.tokens, max_model_len=131_072)
        address = await resolve(f"http://127.0.0.1:{self._task.port}")
        self._client = Client(
            [address],
            self,
            limits=limits,
            max_in_flight=self._task.in_flight,
            stream_interval=self._task.interval if self._task.streamed else 0,
        )
        stop_garbage_collection()
        self._ready.set()
        await self._stop.wait()
        self._client.close()

    # The client's sink

    def first_token(self, key: int, token: int) -> None:
        self._first(key, token)

    def completed(self, completions: Sequence[Completion]) -> None:
        for key, tokens, _ in completions:
            if isinstance(tokens, array):  # a number alone is of servers that give text
                self._done(key, tokens)

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        print(cause)
        os._exit(1)  # called in the loop's thread: the main one would wait for ever

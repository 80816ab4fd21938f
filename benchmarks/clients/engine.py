"""The client of cm4vllm by itself: what a worker process runs, without the socket pair to LoadGen's process."""

import os
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from clients.loop_thread import LoopThread
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve
from cm4vllm.loadgen.client.in_flight import Completion
from cm4vllm.loadgen.client.process_metrics import stop_garbage_collection
from cm4vllm.serving.answers.stated import AnswerLimits


class Engine(LoopThread):
    """The client whose answers come to this object."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Client]:
        client = Client(
            [await resolve(self._task.url)],
            self,
            limits=AnswerLimits(min_tokens=1, max_tokens=self._task.tokens, max_model_len=131_072),
            max_in_flight=self._task.in_flight,
            stream_interval=self._task.interval if self._task.streamed else 0,
        )
        stop_garbage_collection()
        yield client
        client.close()

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        count, length = len(self._bodies), self._task.prompt_tokens
        self._loop.call_soon_threadsafe(
            self._open.submit, ((key, self._bodies[index % count], length, 0) for key, index in queries)
        )

    def first_token(self, key: int, token: int) -> None:
        self._first(key, token)

    def completed(self, completions: Sequence[Completion]) -> None:
        for key, tokens, _ in completions:
            if isinstance(tokens, array):  # a number alone is of servers that give text
                self._done(key, tokens)

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        print(cause)
        os._exit(1)  # called in the loop's thread: the main one would wait for ever

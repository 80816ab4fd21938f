"""A client in an event loop of its own, in a thread beside the one that hands the queries over."""

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvloop

from clients.task import Done, First, Task, bodies


class LoopThread:
    """The loop runs from the start until the client is closed; `opened` gives what it has open meanwhile."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._task, self._first, self._done = task, first, done
        self._bodies = bodies(task)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()

    def opened(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.opened() as self._open:
            self._ready.set()
            await self._stop.wait()

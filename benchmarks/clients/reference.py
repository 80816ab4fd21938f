"""The way of the reference (mlcommons/inference, language/llama2-70b/SUT_API.py): a thread, a connection per query.

In Offline alone, whose answers come whole.
"""

import json
import queue
import threading
from array import array
from collections.abc import Sequence

import requests

from clients.task import HEADERS, Done, First, Task, bodies


class Reference:
    """One thread takes queries from a queue and starts a thread for each."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._url = f"{task.url}/v1/completions"
        self._done = done
        self._documents = [json.loads(body) for body in bodies(task)]
        self._free = threading.Semaphore(task.in_flight)
        self._queries: queue.Queue[tuple[int, int] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._dispatch, daemon=True)
        self._thread.start()

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        for query in queries:
            self._queries.put(query)

    def close(self) -> None:
        self._queries.put(None)
        self._thread.join()

    def _dispatch(self) -> None:
        while (query := self._queries.get()) is not None:
            self._free.acquire()
            threading.Thread(target=self._one, args=query, daemon=True).start()

    def _one(self, key: int, index: int) -> None:
        with requests.Session() as session:
            answer = session.post(self._url, headers=HEADERS, json=self._documents[index % len(self._documents)])
        self._free.release()
        self._done(key, array("i", answer.json()["choices"][0]["token_ids"]))

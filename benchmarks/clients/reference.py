"""The way of the reference (mlcommons/inference, language/llama2-70b/SUT_API.py): a thread, a connection per query."""

from __future__ import annotations

import json
import queue
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import requests

from clients.closed_loop import Done, First
from clients.task import Task, bodies

_HEADERS = {"Content-Type": "application/json"}


class Reference:
    """One thread takes queries from a queue and starts a thread for each."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._url = f"http://127.0.0.1:{task.port}/v1/completions"
        self._streamed = task.streamed
        self._first, self._done = first, done
        self._documents = [json.loads(body) for body in bodies(task)]
        # A Server run has no bound; a thread for each of the 24,576 samples of an Offline run would be none either.
        self._free = threading.Semaphore(task.in_flight if task.qps is None else 1 << 30)
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
        document = self._documents[index % len(self._documents)]
        with requests.Session() as session:
            tokens = self._stream(session, key, document) if self._streamed else self._whole(session, document)
        self._free.release()
        self._done(key, tokens)

    def _whole(self, session: requests.Session, document: Any) -> array[int]:
        answer = session.post(self._url, headers=_HEADERS, json=document)
        return array("i", answer.json()["choices"][0]["token_ids"])

    def _stream(self, session: requests.Session, key: int, document: Any) -> array[int]:
        tokens = array("i")
        with session.post(self._url, headers=_HEADERS, json=document, stream=True) as answer:
            for line in answer.iter_lines():
                if line.startswith(b"data") and b"[DONE]" not in line:
                    for choice in json.loads(line[6:])["choices"]:
                        if not tokens:
                            self._first(key, choice["token_ids"][0])
                        tokens.extend(choice["token_ids"])
        return tokens

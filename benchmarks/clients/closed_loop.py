"""Clients without LoadGen: all queries are handed over at once, and a fixed number of them is sent at a time."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from clients.task import Meter, Result, Task

First = Callable[[int, int], None]
Done = Callable[[int, "array[int]"], None]


class Client(Protocol):
    """A client under comparison: made with a task, and two callables for a first token and for a whole answer."""

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        """Take queries, each a key and the number of its body; called on another thread."""

    def close(self) -> None:
        """End all connections."""


def measure(task: Task, make: Callable[[First, Done], Client]) -> Result:
    """Do `task` with the client that `make` returns; return its times and memory, from the first query on."""
    finished = threading.Semaphore(0)
    lock = threading.Lock()
    queries = tokens = 0

    def done(key: int, answer: array[int]) -> None:
        nonlocal queries, tokens
        with lock:  # the reference's way answers on many threads
            queries -= 1
            tokens += len(answer)
            if queries == 0:
                finished.release()

    client = make(lambda key, token: None, done)
    for count in (task.in_flight, task.queries) if task.warm else (task.queries,):
        queries, tokens = count, 0
        meter = Meter()
        client.submit([(key, key) for key in range(count)])
        finished.acquire()
        result = meter.result(count, tokens)
    client.close()
    return result

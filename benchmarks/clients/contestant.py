"""The process of one contestant: `python -m clients.contestant NAME alone|loadgen TASK`, the task as JSON.

Alone, without LoadGen, all queries are handed over at once, and a fixed number of them is sent at a time.
"""

from __future__ import annotations

import gc
import json
import pkgutil
import sys
import threading
from array import array
from dataclasses import asdict
from functools import partial

from clients.task import Client, Meter, Result, Task

#: The classes of the clients, each in a module of its own: no contestant needs what another is made of.
_CLIENTS = {
    "ours": "clients.ours:Ours",
    "engine": "clients.engine:Engine",
    "aiohttp": "clients.aio:Aio",
    "reference": "clients.reference:Reference",
    "endpoints": "clients.endpoints:Endpoints",
}


def measure(name: str, task: Task) -> Result:
    """Have a client do `task` without LoadGen; return its times and memory, from the first query on."""
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

    client: Client = pkgutil.resolve_name(_CLIENTS[name])(task, lambda key, token: None, done)
    for count in (task.in_flight, task.queries) if task.warm else (task.queries,):
        queries, tokens = count, 0
        meter = Meter()
        client.submit([(key, key) for key in range(count)])
        finished.acquire()
        result = meter.result(count, tokens)
    client.close()
    return result


def _perform(name: str, way: str, task: Task) -> Result:
    if way == "alone":
        return measure(name, task)
    if name.startswith("watched"):
        from clients.watched import watched_run

        return watched_run(task, drawn=name == "watched on a terminal")
    from clients import through_loadgen

    return (
        through_loadgen.ours(task)
        if name == "ours"
        else through_loadgen.peer(task, partial(pkgutil.resolve_name(_CLIENTS[name]), task))
    )


if __name__ == "__main__":
    asked = Task(**json.loads(sys.argv[3]))
    gc.freeze()
    print(json.dumps(asdict(_perform(sys.argv[1], sys.argv[2], asked))))

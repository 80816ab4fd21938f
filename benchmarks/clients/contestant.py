"""The process of one contestant: `python -m clients.contestant NAME alone|loadgen TASK`, the task as JSON."""

import gc
import json
import pkgutil
import sys
from dataclasses import asdict

from clients.closed_loop import Client, Done, First, measure
from clients.task import Result, Task

#: The classes of the clients, each in a module of its own: no contestant needs what another is made of.
_CLIENTS = {
    "ours": "clients.ours:Ours",
    "engine": "clients.engine:Engine",
    "aiohttp": "clients.aio:Aio",
    "reference": "clients.reference:Reference",
    "endpoints": "clients.endpoints:Endpoints",
}


def _client(name: str, task: Task, first: First, done: Done) -> Client:
    client: Client = pkgutil.resolve_name(_CLIENTS[name])(task, first, done)
    return client


def _perform(name: str, way: str, task: Task) -> Result:
    if way == "alone":
        return measure(task, lambda first, done: _client(name, task, first, done))
    if name.startswith("watched"):
        from clients.watched import watched_run

        return watched_run(task, drawn=name == "watched on a terminal")
    from clients import through_loadgen

    if name == "ours":
        return through_loadgen.ours(task)
    return through_loadgen.peer(task, lambda first, done: _client(name, task, first, done))


if __name__ == "__main__":
    told_name, told_way, told_task = sys.argv[1], sys.argv[2], Task(**json.loads(sys.argv[3]))
    gc.freeze()
    print(json.dumps(asdict(_perform(told_name, told_way, told_task))))

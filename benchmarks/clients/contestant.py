"""The process of one contestant: `python -m clients.contestant NAME alone|loadgen TASK`, the task as JSON."""

from __future__ import annotations

import gc
import sys

from clients.closed_loop import Client, Done, First, measure
from clients.task import Result, Task, told


def _client(name: str, task: Task, first: First, done: Done) -> Client:
    # Imported here: no contestant needs what another is made of.
    if name == "ours":
        from clients.ours import Ours

        return Ours(task, first, done)
    if name == "engine":
        from clients.engine import Engine

        return Engine(task, first, done)
    if name == "aiohttp":
        from clients.aio import Aio

        return Aio(task, first, done)
    if name == "reference":
        from clients.reference import Reference

        return Reference(task, first, done)
    from clients.endpoints import Endpoints

    return Endpoints(task, first, done)


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
    told_name, told_way, told_task = sys.argv[1], sys.argv[2], told(sys.argv[3])
    gc.freeze()
    print(_perform(told_name, told_way, told_task).to_json())

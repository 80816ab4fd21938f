"""Messages inside the sandboxes: tasks and verdicts of a grader, and what it asks of the process that runs a program.

The two processes have a sandbox each and share one socket, over which they send lines of JSON. Whatever comes from the
program's side is data: values of Python's own types are built again from it, and any other value is an `Opaque`, which
equals nothing. So a program can change its answer, but not the way in which the answer is judged.
"""

import builtins
import importlib.util
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

#: Bytes of one message, and items of one iterator, at most.
_LONGEST = 1 << 26
_MOST_ITEMS = 100_000
_CHUNK = 1 << 16
_COLLECTIONS: Mapping[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "iterator": iter,
    "keys": lambda items: dict.fromkeys(items).keys(),
    "values": lambda items: dict(enumerate(items)).values(),
    "dict": dict,
    "range": lambda items: range(*items),
    "complex": lambda items: complex(*items),
}
_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "Decimal": Decimal,
    "Fraction": Fraction,
}


class Opaque:
    """A value of a type that cannot be sent; equal to itself alone."""


#: What is written of a value, by its kind; the first one that fits counts.
_WRITTEN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (bool | int | float | str | None, lambda value: value),
    (list, lambda items: list(map(encode, items))),
    (dict, lambda items: {"dict": [[encode(key), encode(item)] for key, item in items.items()]}),
    (complex, lambda value: {"complex": [value.real, value.imag]}),
    (range, lambda value: {"range": [value.start, value.stop, value.step]}),
    (bytes | bytearray, lambda value: {type(value).__name__: value.hex()}),
    (Decimal | Fraction, lambda value: {type(value).__name__: str(value)}),
)
_ITERATED: tuple[tuple[type, str], ...] = (
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "frozenset"),
    (Iterator, "iterator"),
    (type({}.keys()), "keys"),
    (type({}.values()), "values"),
)


def encode(value: Any) -> Any:
    """Return a value as JSON can hold it: an object with the name of its type where JSON has none like it."""
    for kind, written in _WRITTEN:
        if isinstance(value, kind):
            return written(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item())
    name = next((name for kind, name in _ITERATED if isinstance(value, kind)), "")
    items = list(islice(value, _MOST_ITEMS + 1)) if name else []
    return {name: list(map(encode, items))} if name and len(items) <= _MOST_ITEMS else {"opaque": None}


def decode(value: Any) -> Any:
    """Return the value that `encode` wrote. Raises ValueError, TypeError for what it cannot have written."""
    if isinstance(value, list):
        return list(map(decode, value))
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name in _FROM_TEXT:
        return _FROM_TEXT[name](content)
    return _COLLECTIONS[name](map(decode, content)) if name in _COLLECTIONS else Opaque()


class Channel:
    """One end of the socket between the process that judges and the one that runs a program."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        sys.set_int_max_str_digits(50_000)  # as lcb_runner sets it

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. Raises OSError where the other end is closed."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._fd, data) :]

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next message. Raises EOFError, TimeoutError, and ValueError for one that is too long or none."""
        read = bytearray()
        while not read.endswith(b"\n"):
            if not select.select([self._fd], [], [], seconds)[0]:
                raise TimeoutError(f"no answer within {seconds} s")
            if not (part := os.read(self._fd, _CHUNK)):
                raise EOFError("the process of the program has ended")
            read += part
            if len(read) > _LONGEST:
                raise ValueError(f"more than {_LONGEST:,} bytes")
        message = json.loads(read)
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def ask(self, action: str, seconds: float | None = None, **arguments: Any) -> Any:
        """Ask the other process for an action and return its result; an exception there is raised here again."""
        self.send({"do": action, **arguments})
        reply = self.receive(seconds)
        if "error" in reply:
            name, text = str(reply["error"]), str(reply.get("text"))
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                raise kind(text)
            raise RuntimeError(f"{name}: {text}")
        return reply.get("value")


def _take_over(fd: int) -> int:
    """Return a descriptor of the same file that no program started from here inherits; `fd` becomes /dev/null."""
    own = os.dup(fd)
    os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    return own


def module_at(path: str) -> ModuleType:
    """Import the file at `path` as a module, without its folder on sys.path. Raises ImportError."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_programs(abilities: Mapping[str, Callable[..., Any]]) -> None:
    """Do the actions that the judging process asks for until it ends. A failure is answered with its exception."""
    channel = Channel(_take_over(0))
    for fd in (1, 2):
        _take_over(fd)
    while True:
        try:
            request = channel.receive()
        except EOFError:
            return
        try:
            reply = {"value": abilities[request.pop("do")](**request)}
        except BaseException as error:  # also what ends a process, as sys.exit()
            reply = {"error": type(error).__name__, "text": str(error)[:1000]}
        channel.send(reply)


def judge_tasks(judged: Callable[[dict[str, str], Channel | None], tuple[bool | None, str]]) -> None:
    """Write a verdict on each task from standard input; a task that has a program comes with the socket to its process.

    A verdict repeats the task's token, which no program gets to see.
    """
    verdicts = os.fdopen(_take_over(1), "w", encoding="utf-8")
    tasks = socket.socket(fileno=_take_over(0))
    while True:
        data, descriptors, _, _ = socket.recv_fds(tasks, _CHUNK, 1)
        read = bytearray(data)
        while data and not read.endswith(b"\n"):
            data = tasks.recv(_CHUNK)
            read += data
        if not data:
            break
        task = json.loads(read)
        token = task.pop("token")
        right, why = judged(task, Channel(descriptors[0]) if descriptors else None)
        for descriptor in descriptors:
            os.close(descriptor)
        print(json.dumps({"right": right, "why": why[:300], "token": token}), file=verdicts, flush=True)
    os._exit(0)  # processes that the official script started may live on

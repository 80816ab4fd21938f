"""Reads streams of single tokens that have begun, all of them together, every millisecond.

LoadGen wants to know when a stream's first token comes and when it ends; a wake-up of the event loop for each token
between them costs more than all that is done with it. So the event loop waits for first tokens alone; from then on a
stream is read here, and its end is told up to `ROUND_S` late, against the server.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Protocol

import httptools

__all__ = ["ROUND_S", "Lane", "Reader"]

#: Seconds between two rounds: the finest step of libuv's timers.
ROUND_S = 0.001
_READ_BYTES = 1 << 18


class Reader(Protocol):
    """One stream."""

    @property
    def feed(self) -> Callable[[memoryview], object]:
        """Takes the bytes that came, which are overwritten when it returns. Raises HttpParserError."""

    def ended_by(self, error: Exception | None) -> None:
        """The other side closed the connection, it broke, or what came is no HTTP; the stream has to leave."""


class Lane:
    """The streams of one event loop that have begun, by their file descriptors."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll()
        self._readers: dict[int, Reader] = {}
        self._room = memoryview(bytearray(_READ_BYTES))
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, descriptor: int, reader: Reader) -> None:
        """Read from `descriptor`, which nobody else does, until it leaves."""
        self._readers[descriptor] = reader
        self._poll.register(descriptor, select.EPOLLIN)
        if self._timer is None:
            self._timer = self._loop.call_later(ROUND_S, self._round)

    def leave(self, descriptor: int) -> None:
        """Read no more from `descriptor`, which is still open."""
        del self._readers[descriptor]
        self._poll.unregister(descriptor)

    def close(self) -> None:
        """Make no more rounds."""
        if self._timer is not None:
            self._timer.cancel()
        self._poll.close()

    def _round(self) -> None:
        self._timer = self._loop.call_later(ROUND_S, self._round) if self._readers else None
        readers, room = self._readers, self._room
        into = [room]
        for descriptor, _ in self._poll.poll(0):
            reader = readers.get(descriptor)
            if reader is None:
                continue  # it left in this round
            try:
                length = os.readv(descriptor, into)
                if length:
                    reader.feed(room[:length])
                    continue
            except BlockingIOError:
                continue
            except (OSError, httptools.HttpParserError) as error:
                reader.ended_by(error)
            else:
                reader.ended_by(None)

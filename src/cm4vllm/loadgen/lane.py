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

__all__ = ["HTTP_ERRORS", "ROUND_S", "Lane", "Reader"]

#: What the parser raises; HttpParserUpgrade, of an answer that asks for another protocol, is no HttpParserError.
HTTP_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)

#: Seconds between two rounds: the finest step of libuv's timers.
ROUND_S = 0.001
#: Bytes of a stream's first read in a round, and of those that follow where it was filled. A chunk of one token fits
#: into the first; up to 512 bytes with its header (33), a `bytes` needs no malloc.
_SMALL, _LARGE = 479, 1 << 18
#: What of a stream is told of, once each time that more has come: then only what has come is looked at again.
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Reader(Protocol):
    """One stream."""

    @property
    def feed(self) -> Callable[[bytes], object]:
        """Takes the bytes that came. Raises HttpParserError."""

    def ended_by(self, error: Exception | None) -> None:
        """The other side closed the connection, it broke, or what came is no HTTP; the stream has to leave."""


class Lane:
    """The streams of one event loop that have begun, by their file descriptors."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll()
        # `feed` is kept beside its reader, whose own memory is seldom in the processor's caches when a round comes.
        self._streams: dict[int, tuple[Callable[[bytes], object], Reader]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, descriptor: int, reader: Reader) -> None:
        """Read from `descriptor`, which nobody else does, until it leaves."""
        self._streams[descriptor] = reader.feed, reader
        self._poll.register(descriptor, _EVENTS)
        if self._timer is None:
            self._timer = self._loop.call_later(ROUND_S, self._round)

    def leave(self, descriptor: int) -> None:
        """Read no more from `descriptor`, which is still open."""
        del self._streams[descriptor]
        self._poll.unregister(descriptor)

    def close(self) -> None:
        """Make no more rounds."""
        if self._timer is not None:
            self._timer.cancel()
        self._poll.close()

    def _round(self) -> None:
        self._timer = self._loop.call_later(ROUND_S, self._round) if self._streams else None
        streams, read = self._streams, os.read
        for descriptor, events in self._poll.poll(0):
            stream = streams.get(descriptor)
            if stream is None:
                continue  # it left in this round
            feed, reader = stream
            try:
                data = read(descriptor, _SMALL)
                if data:
                    feed(data)
                    if len(data) == _SMALL or events != select.EPOLLIN:  # filled, or the other side has ended
                        while descriptor in streams and (data := read(descriptor, _LARGE)):
                            feed(data)
            except BlockingIOError:
                continue
            except (OSError, *HTTP_ERRORS) as error:
                reader.ended_by(error)
            else:
                if not data:
                    reader.ended_by(None)

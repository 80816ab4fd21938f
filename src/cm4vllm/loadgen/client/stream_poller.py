"""Reads streams that have begun by polling all of them every millisecond; each sends one token at a time.

LoadGen needs the times of a stream's first token and of its end. A wake-up of the event loop for each token between
them costs more processor time than all other work on that token. So the event loop waits for first tokens only; from
then on a stream is polled here, and its end is reported up to `POLL_INTERVAL_S` late, to the server's disadvantage.
"""

import asyncio
import os
import select
from collections.abc import Callable
from typing import Protocol

import httptools

#: The errors of the parser; HttpParserUpgrade, of an answer that asks for another protocol, is no HttpParserError.
HTTP_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)

#: Seconds between two polls: the resolution of libuv's timers.
POLL_INTERVAL_S = 0.001
#: Bytes of a stream's first read in a poll, and of further reads where the first was filled. A chunk of one token fits
#: into the first; a `bytes` of up to 512 bytes, header (33) included, needs no malloc.
_SMALL, _LARGE = 479, 1 << 18
#: Edge-triggered: a stream is reported once each time that more has arrived.
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Stream(Protocol):
    """A connection whose bytes the poller reads."""

    def feed(self, data: bytes) -> object:
        """Process bytes that have arrived."""

    def ended_by(self, error: Exception | None) -> None:
        """End the stream: `error` is the reason, None where the other side has closed the connection."""


class StreamPoller:
    """The polled streams of one event loop, by their file descriptors."""

    def __init__(self) -> None:
        """Prepare an epoll for the streams of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        # `feed` is kept beside its connection, whose own memory is seldom in the processor's caches at the next poll.
        self._streams: dict[int, tuple[Callable[[bytes], object], Stream]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, descriptor: int, stream: Stream) -> None:
        """Poll `descriptor`, which nothing else may read from, until `stream` removes it."""
        self._streams[descriptor] = stream.feed, stream
        self._epoll.register(descriptor, _EVENTS)
        if self._timer is None:
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll)

    def remove(self, descriptor: int) -> None:
        """Poll `descriptor` no more; it is still open."""
        del self._streams[descriptor]
        self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()
        self._epoll.close()

    def _poll(self) -> None:
        """Read all streams that have bytes, and poll again after the interval while there are any."""
        self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll) if self._streams else None
        streams, read = self._streams, os.read
        for descriptor, events in self._epoll.poll(0):
            entry = streams.get(descriptor)
            if entry is None:
                continue  # removed during this poll
            feed, stream = entry
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
                stream.ended_by(error)
            else:
                if not data:
                    stream.ended_by(None)

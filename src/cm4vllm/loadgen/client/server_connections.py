"""A client's connections to one server: the idle ones, and the number of requests open on the others."""

from __future__ import annotations

import itertools
from collections import deque

from cm4vllm.loadgen.client.connection import Address, Connection

__all__ = ["Server"]


class Server:
    """One server: its connections that are idle, the last used one last, and what is open on the others.

    `opening` is the number of spare connections that are being opened.
    """

    __slots__ = ("_head", "address", "avoid_until", "idle", "in_flight", "opening")

    def __init__(self, address: Address, head: bytes) -> None:
        self.address = address
        self.idle: deque[Connection] = deque()
        self.in_flight = self.opening = 0
        self.avoid_until = 0.0
        self._head = head

    def request(self, body: bytes | memoryview) -> bytes:
        """Return the bytes of a whole request."""
        return b"".join((self._head, b"%d\r\n\r\n" % len(body), body))

    def reusable(self, oldest: float) -> Connection | None:
        """Return the connection used last, or None when there is none that the server surely keeps open."""
        while self.idle:
            connection = self.idle.pop()
            if connection.open and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    def younger(self, oldest: float, most: int) -> int:
        """Count the connections that are idle only since `oldest`, up to `most`."""
        return sum(
            connection.open and connection.idle_since >= oldest
            for connection in itertools.islice(reversed(self.idle), most)
        )

    def drop_older(self, oldest: float) -> None:
        """Close the connections that are idle since before `oldest`, and forget those that are closed."""
        while self.idle and (self.idle[0].idle_since < oldest or not self.idle[0].open):
            self.idle.popleft().close()

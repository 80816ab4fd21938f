"""The address at which the live view is served as a page: the value of --serve."""

from __future__ import annotations

import ipaddress

import msgspec

from cm4vllm.common.errors import UsageError
from cm4vllm.common.terminal_text import whole_number


class Address(msgspec.Struct, frozen=True):
    """The page's address: `host` is an address of this machine."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read PORT, which means loopback, or HOST:PORT. Raises UsageError."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        number = whole_number(port)
        if number is None or number >= 2**16:
            raise UsageError(
                f"--serve={text} is not a port",
                cause="it is PORT, or HOST:PORT for an address other than 127.0.0.1; 0 takes a free port",
                remedy="choose a port: --serve=8080",
            )
        return cls(host, number)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    @property
    def is_loopback(self) -> bool:
        """Return True if only programs on this machine can reach it."""
        return is_own(self.host)


def is_own(host: str) -> bool:
    """Return True if a host is loopback, by its address or by the one name that no name service answers for."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""Places that the addresses of servers lead to: two addresses of one place are one server."""

import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from urllib.parse import urlsplit

import psutil

from cm4vllm.common.errors import UsageError
from cm4vllm.common.host_addresses import host_of, is_address, is_loopback

#: The remedy where one server is given at two addresses.
ONCE = "name each server once: two addresses of one server would count as two servers"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def require_distinct_addresses(urls: Sequence[str], *, resolved: bool = False) -> None:
    """Raise UsageError for base URLs of which two lead to one place.

    Names of other machines are compared as they are written, or by their addresses where they are to be `resolved`.
    """
    places = {url: set(_places(url, resolved=resolved)) for url in urls}
    if twice := next((url for url in urls if urls.count(url) > 1), ""):
        raise UsageError(f"{twice} is given twice", remedy=ONCE)
    for first, second in combinations(urls, 2):
        if shared := places[first] & places[second]:
            raise UsageError(
                f"{first} and {second} are one server, given twice", cause=f"both lead to {min(shared)}", remedy=ONCE
            )


def _places(url: str, *, resolved: bool) -> Iterator[str]:
    """Yield the places that a base URL leads to: a socket's file, or addresses with port and path."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        yield os.path.realpath(parts.path)
        return
    host, port = host_of(url), parts.port or _DEFAULT_PORTS[parts.scheme]
    addresses = {host.lower()}
    if resolved or is_address(host) or is_loopback(host):
        with suppress(OSError):
            addresses = {str(known[4][0]) for known in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=0)}
    listeners = _listeners(port) if resolved else set()
    for address in addresses:
        yield f"{_place(address, listeners)} port {port}{parts.path}"


def _place(address: str, listeners: set[str]) -> str:
    """Return an address in one spelling; that of this machine where a server listens at all of its addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    if parsed.is_unspecified:  # a connection to it goes to the loopback address
        parsed = ipaddress.ip_address("127.0.0.1" if parsed.version == 4 else "::1")
    own = parsed.is_loopback or str(parsed) in _own_addresses()
    everywhere = (
        own and str(parsed) not in listeners and any(ipaddress.ip_address(at).is_unspecified for at in listeners)
    )
    return "this machine" if everywhere else str(parsed)


def _own_addresses() -> set[str]:
    return {address.address.partition("%")[0] for part in psutil.net_if_addrs().values() for address in part}


def _listeners(port: int) -> set[str]:
    """Return the addresses of this machine at which something listens on a port; none where that is not shown."""
    with suppress(OSError, psutil.Error):
        return {
            known.laddr.ip
            for known in psutil.net_connections("tcp")
            if known.status == psutil.CONN_LISTEN and known.laddr and known.laddr.port == port
        }
    return set()

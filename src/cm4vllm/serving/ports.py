"""Ports of this machine: free ones for servers, and who holds one that is taken."""

import contextlib
import random
import re
import socket
from pathlib import Path

import psutil

from cm4vllm.common.errors import PortInUse, UsageError

#: The least port that is chosen: below are those of well-known services.
_LEAST_PORT = 10_000


def free_port(host: str, port: int) -> int:
    """Return `port` if no program listens there, or a free one for 0. Raises PortInUse naming the holder, UsageError.

    A free one is none that the kernel gives to others meanwhile: a server listens many seconds after it was started.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port} does not exist", remedy="give --port a number from 1 to 65535, or leave it out")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(
            f"{host!r} is not an address of this machine", cause=error.strerror or str(error), remedy="leave --host out"
        ) from error
    if not port and (chosen := _beside_ephemeral(family, str(address[0]))):
        return chosen
    with socket.socket(family, kind) as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind(address)
        except PermissionError as error:
            raise UsageError(
                f"no permission to bind port {port}",
                cause=error.strerror or "",
                remedy="give --port a number from 1024 to 65535, or leave it out",
            ) from error
        except OSError as error:
            raise PortInUse(
                f"port {port} is in use",
                cause=port_holder(port) or error.strerror or "another program listens there",
                remedy="leave --port out to have a free one chosen, end that program, or measure it with "
                f"--api_server=http://{reachable(host)}:{port}",
            ) from error
        return int(probe_socket.getsockname()[1])


def _beside_ephemeral(family: socket.AddressFamily, host: str) -> int:
    """Return a free port below the kernel's ephemeral range (ip(7), ip_local_port_range); 0 if there is none."""
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError):
        return 0
    below = range(_LEAST_PORT, first_ephemeral)
    for port in random.sample(below, k=min(50, len(below))):
        with socket.socket(family, socket.SOCK_STREAM) as probe_socket, contextlib.suppress(OSError):
            probe_socket.bind((host, port))
            return port
    return 0


def port_holder(port: int) -> str:
    """Return 'process 12 (name) listens there' for who listens on a TCP port; empty where it is not known."""
    with contextlib.suppress(psutil.Error, OSError):
        for socket_ in psutil.net_connections("tcp"):
            if socket_.status == psutil.CONN_LISTEN and socket_.laddr[1:] == (port,) and socket_.pid is not None:
                return f"process {socket_.pid} ({psutil.Process(socket_.pid).name()}) listens there"
    return ""


def reachable(host: str) -> str:
    """Return the address to call a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened on
    return f"[{host}]" if ":" in host else host


def listens(endpoint: str) -> bool:
    """Return True if something accepts connections at http://host:port."""
    address = re.fullmatch(r"http://\[?(.*?)\]?:(\d+)", endpoint)
    try:
        with socket.create_connection((address[1], int(address[2])) if address else ("", 0), timeout=1):
            return True
    except OSError:
        return False

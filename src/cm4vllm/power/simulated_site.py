"""The other side of a simulated power session: time server, official server and simulated PTDaemon, around a command.

All of it runs in a network namespace of its own, with its own loopback device: the port of the time server needs no
rights, no port of the machine is taken, and nothing is left when it ends. It is started by power/making.py:

    unshare -Urn python -m cm4vllm.power.simulated_site FOLDER SOURCE SECTION COMMAND...

The command is the official client, or a program that starts it; the servers are at their usual ports of 127.0.0.1.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.power.clocks import LOOPBACK, serve_time
from cm4vllm.power.programs import server_running
from cm4vllm.power.ptd import simulated_program
from cm4vllm.power.server_run import SIMULATED_DEVICE, ServerSettings, config_text
from cm4vllm.records.power.samples import SIMULATED

__all__: list[str] = []

_START_S = 60.0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def main(folder: Path, source: Path, section: str, command: Sequence[str]) -> int:
    """Run a command beside the servers; return its status."""
    die_with_parent()
    _raise_loopback()
    threading.Thread(target=serve_time, args=(LOOPBACK,), daemon=True).start()
    settings = ServerSettings(
        ptd=str(simulated_program(folder)), ntp_server=LOOPBACK, device_type=SIMULATED_DEVICE, device_port=SIMULATED
    )
    path = folder / "server.conf"
    path.write_text(config_text(settings, section), encoding="utf-8")
    with server_running(str(source), path, output=folder / "server-output.txt") as server:
        _await_port(settings.port, server)
        return subprocess.run(command, cwd=folder, check=False).returncode


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        name = b"lo".ljust(16, b"\0")
        (flags,) = struct.unpack_from("h", fcntl.ioctl(channel, _SIOCGIFFLAGS, name + bytes(16)), 16)
        fcntl.ioctl(channel, _SIOCSIFFLAGS, name + struct.pack("h", flags | _IFF_UP) + bytes(14))


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the power server listens; end the process if the server ends first."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"the power server ended with status {server.returncode} before it listened")
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"the power server did not listen on port {port} within {_START_S:.0f} s")


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))

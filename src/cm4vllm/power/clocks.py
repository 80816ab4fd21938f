"""The clocks of a power session: the offset of this machine from a time server, and a time server for rehearsals.

The official programs compare clocks over SNTP (RFC 4330) and set a clock that is 400 ms off with `ntpdate`; here a
clock is only ever read.
"""

import socket
import struct
import time

from cm4vllm.common import input_types
from cm4vllm.common.errors import ServerUnreachable, UsageError
from cm4vllm.common.settings import Settings

NTP_PORT = 123
#: The address of a simulated site's servers.
LOOPBACK = "127.0.0.1"
#: A clock further off than this is refused before anything runs; the official programs allow 400 ms, and set it then.
MOST_OFFSET_S = 0.1
_SINCE_1900_S = 2208988800
_PACKET = struct.Struct("!BBbb11I")


def clock_offset_s(host: str, port: int = NTP_PORT) -> float:
    """Return by how many s the clock of a time server is ahead of this one. Raises ServerUnreachable."""
    request = _packet(mode=3, sent=time.time())
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as channel:
            channel.settimeout(5.0)
            begin = time.time()
            channel.sendto(request, address)
            answer, _ = channel.recvfrom(256)
            end = time.time()
        words = _PACKET.unpack(answer[: _PACKET.size])
    except (OSError, struct.error) as error:
        raise ServerUnreachable(
            f"the time server {host} does not answer on UDP port {port}",
            cause=str(error),
            remedy="name one that this machine and the director reach: --ntp_server=HOST",
        ) from error
    received, sent = _seconds(words[11], words[12]), _seconds(words[13], words[14])
    return ((received - begin) + (sent - end)) / 2


class ClockInputs(Settings, frozen=True, kw_only=True):
    """The time server with which the clock of this machine is compared; empty for none."""

    ntp_server: input_types.NtpServer = ""


def require_clock(host: str, port: int = NTP_PORT) -> float:
    """Return the offset from a time server. Raises UsageError where it is too large for a power session."""
    offset = clock_offset_s(host, port)
    if abs(offset) > MOST_OFFSET_S:
        raise UsageError(
            f"the clock of this machine is {abs(offset) * 1e3:.0f} ms off the time server {host}",
            cause=f"at most {MOST_OFFSET_S * 1e3:.0f} ms here; the official programs set a clock that is 400 ms off",
            remedy=f"set the clock before, as with: chronyc makestep, or ntpdate -b {host}",
        )
    return offset


def serve_time(address: str, port: int = NTP_PORT) -> None:
    """Answer requests for the time with this machine's own clock, without end. Raises OSError as bind does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.bind((address, port))
        while True:
            request, client = channel.recvfrom(256)
            if len(request) >= _PACKET.size:
                channel.sendto(_packet(mode=4, sent=time.time(), origin=request[40:48]), client)


def _packet(*, mode: int, sent: float, origin: bytes = bytes(8)) -> bytes:
    """Return a packet of version 4: of a client (mode 3), or of a server of stratum 1 (mode 4)."""
    whole = int(sent)
    now = whole + _SINCE_1900_S, int((sent - whole) * 2**32)
    times = (*now, *struct.unpack("!2I", origin), *now, *now) if mode == 4 else (0, 0, 0, 0, 0, 0, *now)
    return _PACKET.pack(4 << 3 | mode, 1 if mode == 4 else 0, 0, -20, 0, 0, 0, *times)


def _seconds(whole: int, part: int) -> float:
    return whole - _SINCE_1900_S + part / 2**32

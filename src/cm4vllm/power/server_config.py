"""The configuration file of the official power server."""

from __future__ import annotations

import configparser
import io
import ipaddress
from pathlib import Path

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record

__all__ = ["SIMULATED_DEVICE", "Analyzer", "ServerConfig", "config_text"]

#: SPEC's number of its own dummy device, which no checker accepts.
SIMULATED_DEVICE = 0


class Analyzer(Record, frozen=True, kw_only=True):
    """An analyzer, as PTDaemon is started for it: SPEC's number of its type, the flag and the port of its interface.

    `channel` is that of a device with several: `1`, or the first one and their number, `1,3`.
    """

    device_type: int
    device_port: str
    interface_flag: str = ""
    channel: str = ""


class ServerConfig(Record, frozen=True, kw_only=True):
    """The settings of a power server. `section` is where its version reads the analyzer (rules: rounds)."""

    ptd: str
    ntp_server: str
    analyzer: Analyzer
    section: str
    host: str = "127.0.0.1"
    port: int = 4950
    ptd_port: int = 8888


def config_text(config: ServerConfig) -> str:
    """Return the text of the configuration file. Raises UsageError for values that the server would not start with."""
    if not Path(config.ptd).is_file():
        raise UsageError(f"no PTDaemon at {config.ptd}", remedy="give SPEC's program with --ptd_path=FILE")
    if not config.ntp_server:
        raise UsageError(
            "no time server is named",
            cause="the clocks of both machines are compared with it, and there is no default",
            remedy="give --ntp_server=HOST",
        )
    try:
        ipaddress.ip_address(config.host)
    except ValueError as error:
        raise UsageError(
            f"the power server cannot listen on {config.host}",
            cause=str(error),
            remedy="give an IP address: --listen=IP",
        ) from error
    for name in ("ptd", "ntp_server", "section"):
        if "\n" in getattr(config, name):
            raise UsageError(f"{name} of the power server has a line break in it", remedy="give one line")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser["server"] = {"ntpServer": config.ntp_server, "listen": f"{config.host} {config.port}"}
    parser["ptd"] = {"ptd": config.ptd}
    device = {
        "networkPort": str(config.ptd_port),
        "deviceType": str(config.analyzer.device_type),
        "interfaceFlag": config.analyzer.interface_flag,
        "devicePort": config.analyzer.device_port,
    }
    if config.analyzer.channel:
        device["channel"] = config.analyzer.channel
    parser[config.section] = {**(dict(parser[config.section]) if config.section in parser else {}), **device}
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()

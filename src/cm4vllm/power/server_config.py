"""The configuration of the official power server: its settings, and its file."""

import configparser
import io
import ipaddress
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.settings import Key, Settings
from cm4vllm.rules import default_round

#: SPEC's number of its own dummy device, which no checker accepts.
SIMULATED_DEVICE = 0


class ServerSettings(Settings, frozen=True, kw_only=True):
    """The settings of the power server; `conf_file` replaces all but the programs.

    PTDaemon is started for an analyzer by SPEC's number of its type, the flag and the port of its interface. `channel`
    is that of a device with several: `1`, or the first one and their number, `1,3`.
    """

    source: input_types.PowerSource = ""
    round: input_types.Round = default_round()
    ptd: Annotated[str, Key("CM_MLPERF_PTD_PATH")] = ""
    ntp_server: input_types.NtpServer = ""
    listen: Annotated[str, Key("CM_MLPERF_POWER_SERVER_LISTEN")] = "127.0.0.1"
    port: input_types.PowerPort = 4950
    device_type: Annotated[int | None, Key("CM_MLPERF_POWER_DEVICE_TYPE")] = None
    device_port: Annotated[str, Key("CM_MLPERF_POWER_DEVICE_PORT")] = ""
    interface_flag: Annotated[str, Key("CM_MLPERF_POWER_INTERFACE_FLAG")] = ""
    channel: Annotated[str, Key("CM_MLPERF_POWER_CHANNEL")] = ""
    conf_file: Annotated[str, Key("CM_MLPERF_POWER_SERVER_CONF_FILE")] = ""
    num_analyzers: input_types.NumAnalyzers = 1
    screen: Annotated[bool, Key("CM_MLPERF_POWER_SERVER_USE_SCREEN")] = False


def config_text(settings: ServerSettings, section: str, *, ptd_port: int = 8888) -> str:
    """Return the text of the configuration file; `section` is where the server reads the analyzer (rules: rounds).

    Raises UsageError for values that the server would not start with.
    """
    if not Path(settings.ptd).is_file():
        raise UsageError(f"no PTDaemon at {settings.ptd}", remedy="give SPEC's program with --ptd_path=FILE")
    try:
        ipaddress.ip_address(settings.listen)
    except ValueError as error:
        raise UsageError(
            f"the power server cannot listen on {settings.listen}",
            cause=str(error),
            remedy="give an IP address: --listen=IP",
        ) from error
    for name in ("ptd", "ntp_server"):
        if "\n" in getattr(settings, name):
            raise UsageError(f"{name} of the power server has a line break in it", remedy="give one line")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser["server"] = {"ntpServer": settings.ntp_server, "listen": f"{settings.listen} {settings.port}"}
    parser["ptd"] = {"ptd": settings.ptd}
    device = {
        "networkPort": str(ptd_port),
        "deviceType": str(settings.device_type),
        "interfaceFlag": settings.interface_flag,
        "devicePort": settings.device_port,
        **({"channel": settings.channel} if settings.channel else {}),
    }
    parser[section] = {**(dict(parser[section]) if section in parser else {}), **device}
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()

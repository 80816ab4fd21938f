"""The official power server on the director, until Ctrl-C (`run,mlperf,power,server`), and its configuration."""

import configparser
import io
import ipaddress
import socket
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import PortInUse, RunFailed, UsageError
from cm4vllm.common.files import text_of, typed_path
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.common.settings import Key, Settings
from cm4vllm.power.clocks import LOOPBACK, require_clock
from cm4vllm.power.making import several_analyzers
from cm4vllm.power.programs import official_environment, server_running
from cm4vllm.rules import default_round, round_terms
from cm4vllm.serving.ports import free_port, port_holder

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


def require_settings(settings: ServerSettings) -> None:
    """Raise UsageError for settings with which no server can be started: in a plan and in a run."""
    if settings.screen:
        raise UsageError(
            "--screen=yes is not supported",
            cause="in the background the server's words, which say why it ends, are lost",
            remedy="run cm itself in GNU screen: screen -d -m cm run script --tags=run,mlperf,power,server ...",
        )
    if settings.num_analyzers != 1:
        raise several_analyzers(settings.num_analyzers)
    if settings.conf_file:
        _read_conf(settings)
        return
    _require_analyzer(settings)
    if not settings.ntp_server:
        raise UsageError("the power server needs --ntp_server", remedy="give --ntp_server=HOST; there is no default")


def serve(settings: ServerSettings) -> None:
    """Run the official power server until Ctrl-C.

    Raises UsageError for settings that it cannot start with, RunFailed where it ends by itself.
    """
    require_settings(settings)
    if settings.conf_file:
        text = _read_conf(settings)
    else:
        text = config_text(settings, round_terms(settings.round).power.section, ptd_port=free_port(LOOPBACK, 0))
        require_clock(settings.ntp_server)
    with scratch_folder("cm4vllm-power-") as folder:
        path = folder / "server.conf"
        path.write_text(text, encoding="utf-8")
        with server_running(settings.source, path, official_environment(folder)) as server:
            status = server.wait()
    raise RunFailed(
        "the power server ended",
        cause=exit_in_words(status),
        remedy="its last lines above say why; start it again when that is mended",
    )


def _read_conf(settings: ServerSettings) -> str:
    """Return the text of the user's configuration. Raises UsageError for two analyzers or more."""
    try:
        text = text_of(typed_path(settings.conf_file).absolute())
    except OSError as error:
        raise UsageError(f"no file {settings.conf_file}", cause=str(error), remedy="give --conf_file=FILE") from error
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise UsageError("the server's configuration file cannot be read", cause=str(error)) from error
    if (count := parser.get("ptd", "analyzerCount", fallback="1").strip()) != "1":
        raise several_analyzers(count)
    return text


def _require_analyzer(settings: ServerSettings) -> None:
    """Raise UsageError for an analyzer that is not described, PortInUse for a port that is taken."""
    if settings.device_type is None or not settings.device_port:
        raise UsageError(
            "the power analyzer is not described",
            remedy="give --device_type and --device_port, or --conf_file with a configuration of your own",
        )
    host, port = settings.listen, settings.port
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise PortInUse(
            f"the power server cannot listen on port {port} of {host}",
            cause=port_holder(port) or error.strerror or str(error),
            remedy="give another with --server_port=PORT, and the client the same; or an address of this machine with "
            "--listen=IP",
        ) from error


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

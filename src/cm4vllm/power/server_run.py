"""The recipe `run,mlperf,power,server`: the official power server on the director, until Ctrl-C."""

import configparser
import socket

from cm4vllm.common.errors import PortInUse, RunFailed, UsageError
from cm4vllm.common.files import text_of, typed_path
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.power.clocks import LOOPBACK, require_clock
from cm4vllm.power.making import several_analyzers
from cm4vllm.power.programs import official_environment, server_running
from cm4vllm.power.server_config import ServerSettings, config_text
from cm4vllm.rules import round_terms
from cm4vllm.serving.ports import free_port, port_holder


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
        section = round_terms(settings.round).power.section
        text = config_text(settings, section, ptd_port=free_port(LOOPBACK, 0))
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
    count = parser.get("ptd", "analyzerCount", fallback="1").strip()
    if count != "1":
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

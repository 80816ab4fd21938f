"""A power session made with the official client: ranging, then testing, each around a run that the caller makes.

The client works in a folder of its own below the system's folder for temporary files: its log holds the path and the
command line. What it wrote is published in one step, and only after its files show that it measured.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cm4vllm.common import input_types
from cm4vllm.common.clock import present
from cm4vllm.common.errors import RunFailed, ServerUnreachable, UsageError
from cm4vllm.common.files import mapped, text_of, write_bytes
from cm4vllm.common.folders.owned_folders import staged_folder, write_noted
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import exit_in_words, run
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Settings
from cm4vllm.power.clocks import LOOPBACK, require_clock
from cm4vllm.power.programs import CLIENT, official_environment
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.power.session import FILES, PowerSession, reasons_unmeasured
from cm4vllm.rules import PowerPrograms, default_round, round_terms

#: What the client printed, beside the folder of the session: never published.
OUTPUT = "power-client-output.txt"
_POLL_S, _CONNECT_S = 0.1, 5.0
_NAME = re.compile(r"[\w-]+")
_FAULT = re.compile(r"^\S+ [\d-]+ [\d:,]+ \[(?:ERROR|CRITICAL|FATAL)\] (.*)$", re.M)

#: Makes one run of LoadGen, whose logs it writes to the folder.
Run = Callable[[Path], None]


#: The command line that the official client logs.
COMMAND = "./workload.sh"


_SCRIPT = """\
#!/bin/sh
# Asks for a run, and waits for its end.
exec 3< answers
echo run > requests
read -r _ <&3
"""


_NAMES = ("requests", "answers")


class Relay:
    """The two pipes between the command in a folder, and the process that makes the runs."""

    def __init__(self, folder: Path) -> None:
        """Write into `folder` the command that the official client runs, and the pipes by which it asks for a run."""
        script = folder / COMMAND
        script.write_text(_SCRIPT, encoding="utf-8")
        script.chmod(0o755)
        for name in _NAMES:
            os.mkfifo(folder / name)
        # Both directions: no side waits for the other to open, and the command reads the end when this process ends.
        self._requests, self._answers = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in _NAMES)

    def close(self) -> None:
        """Close the pipes: a command that waits for a run fails."""
        os.close(self._requests)
        os.close(self._answers)

    def asks_for_run(self) -> bool:
        """Return True once for each time that the command asked for a run."""
        try:
            return bool(os.read(self._requests, len(b"run\n")))
        except BlockingIOError:
            return False

    def answer(self) -> None:
        """End the command: its run has been made."""
        os.write(self._answers, b"made\n")


class Site(Record, frozen=True, kw_only=True):
    """The place of a session: the programs' folder, the power server and the time server.

    On a simulated site all of them are started here (power/simulated_site.py); `debug` shortens its pauses, and the
    official checker refuses that.
    """

    source: str
    programs: PowerPrograms
    host: str = ""
    port: int = 4950
    ntp_server: str = ""
    simulated: bool = False
    debug: bool = False


class SiteInputs(Settings, frozen=True, kw_only=True):
    """The inputs that name the place of a session."""

    source: input_types.PowerSource = ""
    round: input_types.Round = default_round()
    power_server: input_types.PowerServer = ""
    port: input_types.PowerPort = 4950
    ntp_server: input_types.NtpServer = ""

    def as_site(self, *, simulated: bool) -> Site:
        """Return the place."""
        return Site(
            source=self.source,
            programs=round_terms(self.round).power,
            host=self.power_server,
            port=self.port,
            ntp_server=self.ntp_server,
            simulated=simulated,
        )


def make_session(site: Site, target: Path, make_run: Run, *, below_its_name: bool = False) -> PowerSession:
    """Make a session around two runs and publish its files in `target`, which must not exist yet.

    With `below_its_name` they go to a folder in it that has the session's name: the time of its start. Raises
    UsageError where the site is incomplete, ServerUnreachable where nothing answers there, what `make_run` raises, and
    RunFailed where the client ended without a measurement.
    """
    with scratch_folder("cm4vllm-power-") as folder:
        (folder / "loadgen").mkdir()
        output = folder / OUTPUT
        with contextlib.closing(Relay(folder)) as relay:
            status = _run_client(_client_words(site, folder), site, folder, relay, make_run)
        session = PowerSession(folder / "session")
        _require_measured(session, status, text_of(output))
        if below_its_name:
            target.mkdir(parents=True, exist_ok=True)
            name = str(session.client.get("session_name"))  # the power server gave it
            if not _NAME.fullmatch(name):
                raise RunFailed(
                    f"the power server named the session {name!r}", remedy="see the log of the power server"
                )
            target /= name
        with staged_folder(target) as staging:
            for name in FILES:
                (staging / name).parent.mkdir(exist_ok=True)
                with mapped(session.folder / name) as data:
                    write_bytes(staging / name, data)
        write_noted(target.with_name(OUTPUT), text_of(output))
    return PowerSession(target)


def several_analyzers(count: int | str) -> UsageError:
    """Return the refusal of two analyzers or more."""
    return UsageError(
        f"{count} analyzers are not supported",
        cause="the official server cannot end a session with two: the third `Stop` must fail, and cannot",
        remedy="measure with one analyzer of several channels: --channel=1,3 of run,mlperf,power,server",
    )


def require_hosts(site: Site) -> None:
    """Raise UsageError where a server is not named that the session needs; a simulated site has its own."""
    for value, flag in ((site.host, "--power_server"), (site.ntp_server, "--ntp_server")):
        if not value and not site.simulated:
            raise UsageError(f"a power session needs {flag}", remedy=f"give {flag}=HOST; there is no default")


def require_reachable(site: Site) -> None:
    """Raise ServerUnreachable where one of the two servers does not answer, UsageError for a wrong clock.

    On a simulated site UsageError where the system refuses it a network of its own.
    """
    if site.simulated:
        _namespace()
        return
    try:
        socket.create_connection((site.host, site.port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ServerUnreachable(
            f"no power server answers on {site.host} port {site.port}",
            cause=str(error),
            remedy="start it on the director (--tags=run,mlperf,power,server), and name that: --power_server=HOST",
        ) from error
    require_clock(site.ntp_server)


def preflight_run(folder: Path, *, seconds: float) -> None:
    """Stand for a run of so many seconds: write the log that the official client looks for, and measure nothing."""
    begin = present()
    time.sleep(seconds)
    lines = (
        f':::MLLOG {{"key": "power_{name}", "value": "{at:%m-%d-%Y %H:%M:%S}.{at.microsecond // 1000:03d}", '
        '"metadata": {"is_error": false, "is_warning": false}}\n'
        for name, at in (("begin", begin), ("end", present()))
    )
    (folder / DETAIL_LOG).write_text("".join(lines), encoding="utf-8")
    (folder / "mlperf_log_summary.txt").write_text("a session before the runs, without LoadGen\n", encoding="utf-8")


def _client_words(site: Site, folder: Path) -> list[str]:
    """Return the command line that starts the client, on a simulated site with the programs around it."""
    require_hosts(site)
    host, ntp = (LOOPBACK, LOOPBACK) if site.simulated else (site.host, site.ntp_server)
    words = ["-a", host, "-p", str(site.port), "-w", COMMAND, "-L", str(folder / "loadgen")]
    words += ["-o", str(folder / "session"), "-n", ntp, "--no-timestamp-path"]
    python = [sys.executable, "-P", "-m"]
    client = [*python, "cm4vllm.power.launched", f"{site.source}/{CLIENT}", *words]
    if not site.simulated:
        return client
    around = [*python, "cm4vllm.power.simulated_site", str(folder), site.source, site.programs.section]
    return [*_namespace(), *around, *client]


def _namespace() -> list[str]:
    """Return the command that gives a program a network of its own. Raises UsageError where the system refuses it."""
    words = ["unshare", "-Urn"]
    try:
        done = run([*words, "true"])
    except FileNotFoundError as error:
        raise UsageError(
            "no simulated power session on this machine",
            cause="`unshare` not found on PATH",
            remedy="install util-linux",
        ) from error
    if not done.ok:
        raise UsageError(
            "no simulated power session on this machine",
            cause=f"its time server needs a network namespace, which the system refuses: {done.tail(1)}",
            remedy="allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1",
        )
    return words


def _run_client(words: Sequence[str], site: Site, folder: Path, relay: Relay, make_run: Run) -> int:
    """Run the client, and each run that it asks for in this thread. Returns its status; raises what a run raises."""
    env = official_environment(folder)
    if site.debug:
        env["MLPP_DEBUG"] = "1"
    with (folder / OUTPUT).open("wb") as log:
        client = subprocess.Popen(
            [shutil.which(words[0]) or words[0], *words[1:]],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        while client.poll() is None:
            if relay.asks_for_run():
                shutil.rmtree(folder / "loadgen")
                (folder / "loadgen").mkdir()
                make_run(folder / "loadgen")
                relay.answer()
            time.sleep(_POLL_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(client.pid, signal.SIGKILL)
        client.wait()
    return client.returncode


def _require_measured(session: PowerSession, status: int, output: str) -> None:
    """Raise an error with the official client's own reasons if it ended without a measurement."""
    reasons = reasons_unmeasured(session)
    if status == 0 and "Successful exit" in output and not reasons:
        return
    said = [text for text in _FAULT.findall(output) if text]
    how = "ended" if status == 0 else exit_in_words(status)
    cause = "\n".join([f"the official client: {how}", *said[-3:], *(output.splitlines()[-3:] if not said else ())])
    if "Could not connect to the server" in output:
        raise ServerUnreachable(
            "the power server does not answer",
            cause=cause,
            remedy="start it on the director (--tags=run,mlperf,power,server), and name that: --power_server=HOST",
        )
    raise RunFailed(
        "the power session measured nothing",
        cause="\n".join([cause, *reasons[:2]]),
        remedy="nothing of it is kept; mend what the client says, and give the same command again",
    )

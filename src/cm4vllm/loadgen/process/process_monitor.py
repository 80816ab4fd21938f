"""The LoadGen process, followed to its end: its messages are shown and passed on, server and clock are checked."""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import msgspec

from cm4vllm.common.clock import now
from cm4vllm.common.errors import ClockChanged, CmError, RunFailed, ServerDied, ServerStuck
from cm4vllm.common.programs.processes import exit_in_words, last_lines, safe_environment
from cm4vllm.common.progress import Step, say, warn
from cm4vllm.common.units import duration_text
from cm4vllm.loadgen.process.live_status import LiveStatus
from cm4vllm.loadgen.process.messages import Checked, Ended, Failed, FirstFailure, Latencies, Message, Note, Progress
from cm4vllm.records.client import ClientRecord
from cm4vllm.records.metrics import ServerMetrics
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.probing.server_metrics import MetricsWatch
from cm4vllm.serving.supervision.death_reasons import awaited_reason
from cm4vllm.serving.supervision.logs import advice, last_words

CONSOLE_LOG = "console.log"
SETTINGS_FILE = "settings.json"

#: Seconds between two checks whether the server is alive.
ALIVE_INTERVAL_S = 0.5
#: Seconds until the end of a server started by cm4vllm is detected after its connections broke.
DYING_S = 3.0
#: Drift of the time of day against the monotonic clock that is not noticed: less is not seen in a percentile of a run.
TOLERANCE_S = 0.01
#: Readings, of which the best counts: an interruption between the two clocks of a reading looks like a jump.
_LOOKS = 8

Alive = Callable[[], str | None]
#: Called with the latencies of a Server run as they come; returns whether the run is to be ended at once.
OnLatencies = Callable[[Latencies], bool]


class ClockWatch:
    """Compares the time of day with the monotonic clock, from its making on, so that a clock that is set is noticed.

    LoadGen takes std::chrono's system clock (loadgen/utils.h, PerfClock is the high-resolution clock, which is that one
    in libstdc++), and its times would mean nothing. A clock that is slowed down or sped up by NTP changes the monotonic
    clock alike, so that the difference between both changes only where the clock is set, or where the machine was
    suspended.
    """

    def __init__(self) -> None:
        self._offset_ns = _offset_ns()

    def fault(self, title: str) -> ClockChanged | None:
        """Return the error of a run with this title, None where the clock was not set."""
        jump_s = (_offset_ns() - self._offset_ns) / 1e9  # negative where it was set back
        if abs(jump_s) <= TOLERANCE_S:
            return None
        return ClockChanged(
            f"the clock was set {'forward' if jump_s > 0 else 'back'} by {abs(jump_s):,.2f} s: the {title} run is "
            "INVALID",
            cause="LoadGen measures by the time of day",
            remedy="run it again, and have the clock slewed instead of set (chrony, systemd-timesyncd); a machine that "
            "was suspended has its clock set when it wakes up",
        )


def _offset_ns() -> int:
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_LOOKS)]
    before, now, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return now - (before + after) // 2


class RunStopped(Exception):
    """A run was ended because `on_latencies` said so; `metrics` are those of the server until then."""

    metrics: ServerMetrics | None = None


@dataclass
class MonitoredRun:
    """A run in progress in its folder, with the functions that show it and that check its server.

    `client` is its client's record, as far as it is known. While its process is followed, it has a `watch` over the
    server's metrics, and its `live` status.
    """

    settings: RunSettings
    folder: Path
    alive: Alive
    shown: Step
    on_latencies: OnLatencies | None = None
    keep: Path | None = None
    client: ClientRecord | None = None
    started_at: str = field(default_factory=now)
    clock: ClockWatch = field(default_factory=ClockWatch)
    watch: MetricsWatch = field(init=False)
    live: LiveStatus = field(init=False)

    def fault(self) -> CmError | None:
        """Return the fault of the clock or the server; None while both work."""
        if (changed := self.clock.fault(self.settings.title)) is not None:
            return changed
        if (reason := self.alive()) is not None:
            return server_died(self.settings, reason)
        return server_stuck(self.settings, reason) if (reason := self.watch.heartbeat.reason) else None


def follow_process(run: MonitoredRun, watch: MetricsWatch, pythonpath: str) -> Ended:
    """Run the LoadGen process to its end and return what it reported, whose client's record the run gets, too.

    Raises ServerDied, ServerStuck, and the error of a process that failed, else RunFailed.
    """
    settings, folder = run.settings, run.folder
    run.watch, run.live = watch, LiveStatus(settings, folder, watch)
    settings_file, console = folder / SETTINGS_FILE, folder / CONSOLE_LOG
    settings_file.write_bytes(msgspec.json.encode(settings))
    words = [*(["--latencies"] if run.on_latencies else []), *([f"--keep={run.keep}"] if run.keep else [])]
    with console.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "cm4vllm.loadgen.process.main", str(settings_file), str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(pythonpath),
        )
        try:
            last = _follow(cast(IO[bytes], child.stdout), log.fileno(), run)
            status = child.wait()
        finally:
            child.kill()
            child.wait()
            cast(IO[bytes], child.stdout).close()
    settings_file.unlink()
    if isinstance(last, Ended | Failed):
        run.client = last.client
    if isinstance(last, Ended) and status == 0:
        return last
    # A server that ends takes its connections along: then its end is the cause, not the failed requests.
    if settings.server.owned and (reason := awaited_reason(run.alive, DYING_S)) is not None:
        raise server_died(settings, reason)
    if isinstance(last, Failed):
        error = CmError.again(last.exit_code, last.what)
        error.cause, error.remedy = last.cause, last.remedy
        raise error
    first = f"a request had failed before: {last.cause}\n" if isinstance(last, FirstFailure) else ""
    raise RunFailed(
        f"the LoadGen process ended unexpectedly: {exit_in_words(status)}", cause=f"{first}{last_lines(console, 20)}"
    )


def _follow(output: IO[bytes], log: int, run: MonitoredRun) -> Message | None:
    """Read the child's standard output to its end; return the last message that is not progress."""
    last: Message | None = None
    pending = b""
    checked = time.monotonic()
    os.set_blocking(output.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if selector.select(ALIVE_INTERVAL_S):
                data = output.read(65536)
                if not data:
                    return last
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    last = _message_of(line, log, run) or last
            if time.monotonic() - checked >= ALIVE_INTERVAL_S:
                checked = time.monotonic()
                if (fault := run.fault()) is not None:
                    raise fault


def _message_of(line: bytes, log: int, run: MonitoredRun) -> Message | None:
    """Return the message in a line of LoadGen's process; None for other output, which goes to the log."""
    try:
        message: Message = msgspec.json.decode(line, type=Message)
    except (ValueError, RecursionError):
        os.write(log, line + b"\n")
        return None
    match message:
        case Progress():
            _show(message, run)
        case Checked():
            run.shown.facts = run.live.take_self_check(message.check)
            say(message.text)
        case Note():
            (warn if message.loud else say)(message.text)
        case Latencies():
            if run.on_latencies is not None and run.on_latencies(message):
                raise RunStopped
        case _:
            return message
    return None


def _show(message: Progress, run: MonitoredRun) -> None:
    """Show how far the run is, and pass on what the heartbeat needs."""
    run.watch.heartbeat.client_received(message.tokens, message.waiting)
    run.shown.facts = status = run.live.take(message)
    total = f" of {status.total:,}" if status.total else ""
    rate = message.tokens / message.elapsed_s if message.elapsed_s else 0.0
    limits = [
        f"{latency.name} p99 {latency.p99_ms:,.0f} of {latency.limit_ms:,.0f} ms"
        for latency in status.latencies
        if latency.limit_ms is not None
    ]
    left = [f"about {duration_text(status.left.seconds)} left"] if status.left else []
    run.shown.update("; ".join([f"{message.done:,}{total} samples, {rate:,.0f} tokens/s so far", *left, *limits]))


def _environment(pythonpath: str) -> dict[str, str]:
    ours = str(Path(__file__).resolve().parents[3])
    paths = filter(None, (ours, pythonpath, os.environ.get("PYTHONPATH", "")))
    return safe_environment({**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"})


def server_died(settings: RunSettings, reason: str) -> ServerDied:
    """Return the error of a run whose server ended, with the log of the one that `reason` names."""
    log = _log_of(settings.server, reason)
    return ServerDied(
        f"the server ended during the {settings.title} run",
        cause=reason,
        remedy="; ".join(filter(None, (advice(reason), f"its whole log: {log}" if log else "its log says why"))),
    )


def server_stuck(settings: RunSettings, reason: str) -> ServerStuck:
    """Return the error of a run whose server has stopped responding, with the log of the one that `reason` names."""
    log = _log_of(settings.server, reason)
    return ServerStuck(
        f"the server process is up but has stopped responding: the {settings.title} run is INVALID",
        cause=f"{reason}\nthe last lines of its log: {last_words(Path(log))}" if log else reason,
        remedy="restart the server and run again" + (f"; its whole log: {log}" if log else ""),
    )


def _log_of(server: ServerRecord, reason: str) -> str:
    """Return the log of the server or the node that a reason names, the first one's where it names none."""
    logs = [member.log for member in server.members if member.endpoint in reason]
    logs += [node.log for node in server.nodes if f"on the node {node.name}:" in reason]
    return logs[0] if logs else server.log

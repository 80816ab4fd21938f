"""The parent's side of a LoadGen run: starts the process, shows its progress, keeps its folder whole or not at all."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from cm4vllm.common.errors import CmError, RunFailed, ServerDied, ServerStuck
from cm4vllm.common.files import sha256_of, staged_folder, sync_files, sync_folder, write_text
from cm4vllm.common.hosts import is_loopback
from cm4vllm.common.processes import exit_in_words, last_lines
from cm4vllm.common.progress import Step, say, step, warn
from cm4vllm.common.records import now, write_record
from cm4vllm.hardware.gpu_samples import GPU_SAMPLES_FILE, gpus_sampled
from cm4vllm.loadgen.clock import ClockWatch
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.kept_answers import begin_piece, file_of, pieces
from cm4vllm.loadgen.live_status import LiveStatus
from cm4vllm.loadgen.logs import ACCURACY_LOG, AUDIT_CONFIG, DETAIL_LOG, SUMMARY_LOG, loadgen_version, require_whole
from cm4vllm.loadgen.machine_load import MachineMeter
from cm4vllm.loadgen.messages import Answers, Checked, Ended, Failed, FirstFailure, Latencies, Message, Note, Progress
from cm4vllm.loadgen.records import (
    FAILURE_FILE,
    RUN_FILE,
    ClientRecord,
    FailureRecord,
    MachineLoad,
    RunRecord,
    RunSettings,
)
from cm4vllm.loadgen.run_status import PartialScores
from cm4vllm.loadgen.run_warnings import run_warnings
from cm4vllm.loadgen.sample_times import SAMPLES_FILE
from cm4vllm.loadgen.settings import require_room
from cm4vllm.loadgen.texts import require_agreement
from cm4vllm.rules import Mode
from cm4vllm.serving.logs import advice, last_words
from cm4vllm.serving.metrics import METRICS_FILE, MetricsWatch, ServerMetrics, sampled
from cm4vllm.serving.priority import give_way
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.site import sites_of

__all__ = ["USER_CONF", "OnAnswers", "OnLatencies", "RunStopped", "run"]

USER_CONF = "user.conf"
CONSOLE_LOG = "console.log"
SETTINGS_FILE = "settings.json"

#: Seconds between two checks whether the server is alive.
ALIVE_INTERVAL_S = 0.5
#: Seconds until the end of a server started by cm4vllm is detected after its connections broke.
DYING_S = 3.0

Alive = Callable[[], str | None]
#: Called with answers as they come: the index of each sample in the dataset, and the tokens of its answer. What it
#: returns is shown beside the progress.
OnAnswers = Callable[[Sequence[tuple[int, list[int]]]], PartialScores | None]
#: Called with the latencies of a Server run as they come; returns whether the run is to be ended at once.
OnLatencies = Callable[[Latencies], bool]


class RunStopped(Exception):
    """A run was ended because `on_latencies` said so; `metrics` are those of the server until then."""

    metrics: ServerMetrics | None = None


def run(
    settings: RunSettings,
    folder: Path,
    *,
    pythonpath: str = "",
    alive: Alive | None = None,
    on_answers: OnAnswers | None = None,
    on_latencies: OnLatencies | None = None,
    keep_answers: bool = False,
) -> RunRecord:
    """Make one LoadGen run; `folder` then holds its logs and run.json, and nothing else of that name is left over.

    `pythonpath` is where mlperf_loadgen lies when it is not installed in the running Python. `alive` says why the
    server has ended, or returns None while it is up. `on_answers` is given the answers about once a second, each one
    once, before `run` returns; it is for accuracy runs, whose time is not measured. `on_latencies` may end a
    performance run: RunStopped is raised then. With `keep_answers` an accuracy run that was stopped goes on where it
    was. Raises ServerDied, ServerStuck, ClockChanged, RunFailed and the errors of the process. What was
    written until then is kept as `<folder>.failed`, with failure.json after an error.
    """
    require_room(settings, settings.dataset.max_input_tokens)
    title = f"{settings.title} run"
    keep = _begun_piece(settings, folder) if keep_answers and settings.mode is Mode.ACCURACY else None
    with staged_folder(folder) as staging, step(title) as shown:
        write_text(staging / USER_CONF, settings.user_conf)
        if settings.audit_config:
            write_text(staging / AUDIT_CONFIG, settings.audit_config)
        started_at = now()
        sites = sites_of(settings.server)
        client: ClientRecord | None = None
        give_way(settings.server)
        try:
            meter = MachineMeter(settings.server)
            with (
                gpus_sampled(staging / GPU_SAMPLES_FILE, here=_is_here(settings.server)),
                sampled(sites, staging / METRICS_FILE, supervisors=settings.server.supervisors) as watch,
            ):
                attended = _Attended(
                    settings,
                    alive or (lambda: None),
                    watch,
                    shown,
                    LiveStatus(settings, staging, watch),
                    on_answers,
                    on_latencies,
                    keep,
                )
                outcome = _attend(attended, staging, pythonpath)
            client = outcome.client
            if isinstance(outcome, Failed):
                raise _error(outcome)
            attended.clock.require_unset(settings.title)
            record = _record(settings, staging, outcome, started_at, watch.summary(), meter.load())
            if keep is not None and len(found := pieces(keep)) > 1:
                record = replace(record, pieces=found)
        except RunStopped as stopped:
            stopped.metrics = watch.summary()
            raise
        except CmError as error:
            write_record(staging / FAILURE_FILE, _failure(settings, started_at, error, client))
            raise
        write_record(staging / RUN_FILE, record)
        sync_files(staging)  # before the ledger says that the run is done
    sync_folder(folder.parent)
    if keep is not None:
        keep.unlink(missing_ok=True)
    for warning in run_warnings(record):
        warn(f"{title}: {warning}")
    return record


def _failure(settings: RunSettings, started_at: str, error: CmError, client: ClientRecord | None) -> FailureRecord:
    return FailureRecord(
        settings=settings,
        started_at=started_at,
        ended_at=now(),
        what=error.what,
        cause=error.cause,
        remedy=error.remedy,
        exit_code=error.exit_code,
        client=client,
    )


def _begun_piece(settings: RunSettings, folder: Path) -> Path:
    """Begin a piece of an accuracy run, and return the file with its answers."""
    path = file_of(folder)
    if count := begin_piece(path, settings_sha256(settings)):
        say(f"{settings.title} run: {count:,} of {settings.samples:,} answers are kept from before it was stopped")
    return path


@dataclass(frozen=True)
class _Attended:
    """A run in progress, with the functions that show it and that check its server."""

    settings: RunSettings
    alive: Alive
    watch: MetricsWatch
    shown: Step
    live: LiveStatus
    on_answers: OnAnswers | None
    on_latencies: OnLatencies | None = None
    keep: Path | None = None
    clock: ClockWatch = field(default_factory=ClockWatch)

    def fault(self) -> CmError | None:
        """Say what is wrong with the clock or the server, None while that lives and works."""
        if (changed := self.clock.fault(self.settings.title)) is not None:
            return changed
        if (reason := self.alive()) is not None:
            return _died(self.settings, reason)
        return _stuck(self.settings, reason) if (reason := self.watch.heartbeat.reason) else None


def _is_here(server: ServerRecord) -> bool:
    """Whether the servers run on this machine, whose GPUs are then theirs."""
    return server.simulated is None and all(
        is_loopback(urlsplit(endpoint).hostname or "localhost") for endpoint in server.endpoints
    )


def _attend(run: _Attended, folder: Path, pythonpath: str) -> Ended | Failed:
    """Run the LoadGen process to its end and return what it said last. Raises ServerDied, ServerStuck, RunFailed."""
    settings = run.settings
    settings_file = folder / SETTINGS_FILE
    settings_file.write_bytes(msgspec.json.encode(settings))
    console = folder / CONSOLE_LOG
    with console.open("ab") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cm4vllm.loadgen.process",
                str(settings_file),
                str(folder),
                *(["--answers"] if run.on_answers else []),
                *(["--latencies"] if run.on_latencies else []),
                *([f"--keep={run.keep}"] if run.keep else []),
            ],
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
    if isinstance(last, Ended) and status == 0:
        return last
    # A server that ends takes its connections along: then its end is the cause, not the failed requests.
    reason = _end_of_server(run.alive) if settings.server.owned else None
    if reason is not None:
        died = _died(settings, reason)
        return Failed(
            exit_code=died.exit_code,
            what=died.what,
            cause=died.cause,
            remedy=died.remedy,
            client=last.client if isinstance(last, Failed) else None,
        )
    if isinstance(last, Failed):
        return last
    first = f"a request had failed before: {last.cause}" if isinstance(last, FirstFailure) else ""
    raise RunFailed(
        f"the LoadGen process ended unexpectedly: {exit_in_words(status)}",
        cause="\n".join(filter(None, (first, last_lines(console, 20)))),
    )


def _end_of_server(alive: Alive) -> str | None:
    """Return why the server ended, given the time that its supervisor needs to see the last of its processes go."""
    deadline = time.monotonic() + DYING_S
    while (reason := alive()) is None and time.monotonic() < deadline:
        time.sleep(ALIVE_INTERVAL_S / 5)
    return reason


def _follow(output: IO[bytes], log: int, run: _Attended) -> Message | None:
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
                    last = _take(line, log, run) or last
            if time.monotonic() - checked >= ALIVE_INTERVAL_S:
                checked = time.monotonic()
                if (fault := run.fault()) is not None:
                    raise fault


def _take(line: bytes, log: int, run: _Attended) -> Message | None:
    try:
        message: Message = msgspec.json.decode(line, type=Message)
    except (msgspec.DecodeError, msgspec.ValidationError):
        os.write(log, line + b"\n")
        return None
    if isinstance(message, Progress):
        _show(message, run)
        return None
    if isinstance(message, Checked):
        run.shown.facts = run.live.checked(message.check)
        say(message.text)
        return None
    if isinstance(message, Note):
        (warn if message.loud else say)(message.text)
        return None
    if isinstance(message, Latencies):
        if run.on_latencies is not None and run.on_latencies(message):
            raise RunStopped
        return None
    if isinstance(message, Answers):
        if run.on_answers is not None:
            run.live.scores = scores = run.on_answers(message.answers)
            run.shown.note = scores.words if scores else ""
        return None
    return message


def _show(message: Progress, run: _Attended) -> None:
    """Show how far the run is, and pass on what the heartbeat needs."""
    run.watch.heartbeat.client_received(message.tokens, message.waiting)
    status = run.live.take(message)
    run.shown.facts = status
    total = f" of {status.total:,}" if status.total else ""
    rate = message.tokens / message.elapsed_s if message.elapsed_s else 0.0
    limits = [
        f"{one.name} p99 {one.p99_ms:,.0f} of {one.limit_ms:,.0f} ms"
        for one in status.latencies
        if one.limit_ms is not None
    ]
    run.shown.update("; ".join([f"{message.done:,}{total} samples, {rate:,.0f} tokens/s so far", *limits]))


def _record(
    settings: RunSettings,
    folder: Path,
    ended: Ended,
    started_at: str,
    metrics: ServerMetrics | None,
    load: MachineLoad | None,
) -> RunRecord:
    version = loadgen_version(folder)
    (folder / "mlperf_log_trace.json").unlink(missing_ok=True)  # always empty: tracing is off
    logs = [
        SUMMARY_LOG,
        DETAIL_LOG,
        ACCURACY_LOG,
        USER_CONF,
        SAMPLES_FILE,
        *([AUDIT_CONFIG] if settings.audit_config else []),
    ]
    missing = [name for name in logs if not (folder / name).is_file()]
    client = ended.client
    if missing or client.completed != client.requests:
        raise RunFailed(
            "the run ended, but it is not complete",
            cause=f"missing: {', '.join(missing)}"
            if missing
            else f"{client.completed} of {client.requests} requests were completed",
        )
    require_whole(folder, settings.mode)
    require_agreement(settings, client.text)
    return RunRecord(
        notice=settings.notice,
        settings=settings,
        settings_sha256=settings_sha256(settings),
        started_at=started_at,
        ended_at=now(),
        duration_s=ended.duration_s,
        loadgen_version=version,
        versions=ended.versions,
        client=client,
        server_metrics=metrics,
        machine_load=load,
        files={name: sha256_of(folder / name) for name in logs},
    )


def _environment(pythonpath: str) -> dict[str, str]:
    ours = str(Path(__file__).resolve().parents[2])
    paths = [path for path in (ours, pythonpath, os.environ.get("PYTHONPATH", "")) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _error(failed: Failed) -> CmError:
    error = CmError.again(failed.exit_code, failed.what)
    error.cause, error.remedy = failed.cause, failed.remedy
    return error


def _died(settings: RunSettings, reason: str) -> ServerDied:
    log = _log_of(settings.server, reason)
    return ServerDied(
        f"the server ended during the {settings.title} run",
        cause=reason,
        remedy="; ".join(
            part for part in (advice(reason), f"its whole log: {log}" if log else "its log says why") if part
        ),
    )


def _stuck(settings: RunSettings, reason: str) -> ServerStuck:
    log = _log_of(settings.server, reason)
    return ServerStuck(
        f"the server process is up but has stopped responding: the {settings.title} run is INVALID",
        cause=f"{reason}\nthe last lines of its log: {last_words(Path(log))}" if log else reason,
        remedy="restart the server and run again" + (f"; its whole log: {log}" if log else ""),
    )


def _log_of(server: ServerRecord, reason: str) -> str:
    """Return the log of the server that a reason names, the first one's where it names none."""
    return next((one.log for one in server.members if one.endpoint in reason), server.log)

"""The parent's side of a LoadGen run: has its process followed, keeps its folder whole or not at all, records it."""

from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from cm4vllm.common.clock import now
from cm4vllm.common.errors import CmError, RunFailed
from cm4vllm.common.files import sha256_of, sync_files, sync_folder, write_text
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.host_addresses import is_loopback
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import write_record
from cm4vllm.hardware.machine_samples import EnergyWatch, energy_watched, gpus_sampled
from cm4vllm.loadgen.client.text_tokens import require_agreement
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.process.kept_answers import begin_piece, file_of, pieces, remove_answers
from cm4vllm.loadgen.process.machine_load import MachineMeter, NodeSamples, nodes_sampled
from cm4vllm.loadgen.process.messages import Ended
from cm4vllm.loadgen.process.process_monitor import Alive, MonitoredRun, OnLatencies, RunStopped, follow_process
from cm4vllm.loadgen.process.run_servers import RunServers
from cm4vllm.loadgen.settings import ROUNDED, require_room
from cm4vllm.records.doubts import run_warnings
from cm4vllm.records.logs.detail_log import DETAIL_LOG, DetailLog, read_detail_log
from cm4vllm.records.logs.figures import one_token_words
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, AUDIT_CONFIG, SUMMARY_LOG, require_whole
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, METRICS_FILE
from cm4vllm.records.run import FAILURE_FILE, RUN_FILE, FailureRecord, MachineLoad, RunRecord, RunSettings
from cm4vllm.records.sample_times import SAMPLES_FILE
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Mode
from cm4vllm.serving.probing.server_metrics import sampled
from cm4vllm.serving.probing.server_requests import sites_of
from cm4vllm.serving.supervision.own_supervisors import give_way
from cm4vllm.serving.supervisor import descendants

USER_CONF = "user.conf"


def run(
    settings: RunSettings,
    folder: Path,
    *,
    pythonpath: str = "",
    alive: Alive | None = None,
    on_latencies: OnLatencies | None = None,
    keep_answers: bool = False,
    accept_restarted: bool = False,
) -> RunRecord:
    """Make one LoadGen run; `folder` then holds its logs and run.json, and nothing else of that name is left over.

    `pythonpath` is where mlperf_loadgen lies when it is not installed in the running Python. `alive` says why the
    server has ended, or returns None while it is up. `on_latencies` may end a performance run: RunStopped is raised
    then. With `keep_answers` an accuracy run that was stopped goes on where it was, and with `accept_restarted` also
    where a server at --api_server was started again since. Raises
    ServerUnsuitable where such a server is another one than when it was probed, RunFailed where it becomes one during
    the run, ServerDied, ServerStuck, ClockChanged, RunFailed and the errors of the process. What was written until then
    is kept as `<folder>.failed`, with failure.json after an error.
    """
    require_room(settings, settings.dataset.max_input_tokens)
    title = f"{settings.title} run"
    accuracy = settings.mode is Mode.ACCURACY
    servers = RunServers(settings.server, settings.title, accept_restarted=accept_restarted and accuracy)
    keep = _begun_piece(settings, folder, servers) if keep_answers and accuracy else None
    with staged_folder(folder, ends_well=(RunStopped,)) as staging, step(title) as shown:
        write_text(staging / USER_CONF, settings.user_conf)
        if settings.audit_config:
            write_text(staging / AUDIT_CONFIG, settings.audit_config)
        give_way(settings.server)
        monitored = MonitoredRun(settings, staging, alive or (lambda: None), shown, on_latencies, keep)
        try:
            record = _measure(monitored, pythonpath, servers)
        except CmError as error:
            write_record(staging / FAILURE_FILE, _failure(monitored, error))
            raise
        write_record(staging / RUN_FILE, record)
        sync_files(staging)  # before the ledger says that the run is done
    sync_folder(folder.parent)
    if keep is not None:
        remove_answers(keep)
    note = one_token_words(read_detail_log(folder / DETAIL_LOG)) if not accuracy else ""
    for warning in filter(None, (*run_warnings(record), note)):
        warn(f"{title}: {warning}")
    return record


def _failure(run: MonitoredRun, error: CmError) -> FailureRecord:
    return FailureRecord(
        settings=run.settings,
        started_at=run.started_at,
        ended_at=now(),
        what=error.what,
        cause=error.cause,
        remedy=error.remedy,
        exit_code=error.exit_code,
        client=run.client,
    )


def _measure(run: MonitoredRun, pythonpath: str, servers: RunServers) -> RunRecord:
    """Follow the LoadGen process to its end while the machine, its GPUs and the servers are sampled.

    Raises the errors of follow_process, ClockChanged, RunFailed, and RunStopped with the metrics of a server that has
    stayed the same.
    """
    server, folder = run.settings.server, run.folder
    meter, here = MachineMeter(server), _is_here(server)
    try:
        with (
            gpus_sampled(folder / GPU_SAMPLES_FILE, here=here),
            energy_watched(here=here) as counters,
            nodes_sampled(server, folder) as nodes,
            sampled(sites_of(server), folder / METRICS_FILE, supervisors=server.supervisors) as watch,
        ):
            ended = follow_process(run, watch, pythonpath)
    except RunStopped as stopped:
        servers.require_same(watch.process_starts)
        stopped.metrics = watch.summary()
        raise
    if (fault := run.clock.fault(run.settings.title)) is not None:
        raise fault
    return _record(run, ended, servers.require_same(watch.process_starts), meter.load(), nodes, counters)


def _begun_piece(settings: RunSettings, folder: Path, servers: RunServers) -> Path:
    """Begin a piece of an accuracy run, and return the file with its answers."""
    path = file_of(folder)
    begun = begin_piece(path, settings_sha256(settings), servers.begin, accept_restarted=servers.accept_restarted)
    servers.accepted.extend(begun.restarted)
    if begun.dropped:
        warn(f"{settings.title} run: the answers from before it was stopped are removed: {begun.dropped}")
    if begun.kept:
        say(f"{settings.title} run: {begun.kept:,} of {settings.samples:,} answers are kept from before it was stopped")
    for words in begun.restarted:
        warn(f"{settings.title} run: {words}; accepted by --accept_restarted_server")
    return path


def _is_here(server: ServerRecord) -> bool:
    """Return True if the servers run on this machine, and so use its GPUs."""
    return server.simulated is None and all(
        is_loopback(urlsplit(endpoint).hostname or "localhost") for endpoint in server.endpoints
    )


def _record(
    run: MonitoredRun,
    ended: Ended,
    accepted: list[str],
    load: MachineLoad | None,
    nodes: NodeSamples,
    counters: EnergyWatch,
) -> RunRecord:
    """Return run.json of a run that has ended."""
    settings, folder, client = run.settings, run.folder, ended.client
    (folder / "mlperf_log_trace.json").unlink(missing_ok=True)  # always empty: tracing is off
    logs = [SUMMARY_LOG, DETAIL_LOG, ACCURACY_LOG, USER_CONF, SAMPLES_FILE]
    logs += [AUDIT_CONFIG] if settings.audit_config else []
    if missing := [name for name in logs if not (folder / name).is_file()]:
        raise RunFailed("the run ended, but it is not complete", cause=f"missing: {', '.join(missing)}")
    detail = require_whole(folder, settings.mode)
    require_agreement(settings, client)
    window = detail.window if settings.mode is Mode.PERFORMANCE else None
    pids = {pid for supervisor in settings.server.supervisors for pid in descendants(supervisor)}
    parts = pieces(run.keep) if run.keep else []
    return RunRecord(
        notice=settings.notice,
        settings=_with_loadgens_rate(settings, detail),
        settings_sha256=settings_sha256(settings),
        started_at=run.started_at,
        ended_at=now(),
        duration_s=ended.duration_s,
        loadgen_version=detail.text_or_none("loadgen_version") or "",
        versions=ended.versions,
        client=client,
        server_metrics=run.watch.summary(),
        machine_load=load,
        node_loads=nodes.loads(),
        energy=counters.energy(window.begin, window.end, pids) if window else None,
        files={name: sha256_of(folder / name) for name in logs},
        pieces=parts if len(parts) > 1 else [],
        accepted_restarts=accepted,
    )


def _with_loadgens_rate(settings: RunSettings, detail: DetailLog) -> RunSettings:
    """Return the settings of a run, with the rate that LoadGen aimed at where another one was asked for."""
    if not settings.terms.needs_rate:
        return settings
    aimed = detail.number("effective_target_qps")
    if abs(aimed - settings.target_qps) <= ROUNDED * aimed:
        return settings
    return replace(settings, target_qps=aimed, target_qps_source="LoadGen's own, by user.conf")

"""The recipe `run,vllm-server`: it starts a server for a model or checks a running one, then waits or returns.

It also lists the servers that cm4vllm has started on this machine, with their state, and ends one.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.errors import CmError, ServerDied, ServerNotReady, UsageError
from cm4vllm.common.files import writable_folder
from cm4vllm.common.progress import say, say_text, warn
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.secrets.redaction import variable
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.metrics import MetricsSample
from cm4vllm.records.server import ServerRecord, counting
from cm4vllm.serving import server
from cm4vllm.serving.installation.install import note_proved, require_proof
from cm4vllm.serving.launch_settings import LaunchSettings, require_access, require_no_replicas
from cm4vllm.serving.options.arguments import FP8_NOTE, fp8_env
from cm4vllm.serving.planned_servers import PLANNED_FILE, Planned, asked_api, plan_servers, planned_record
from cm4vllm.serving.probing.media_apis import media_api_of
from cm4vllm.serving.probing.server_access import OWN_KEY_VARIABLE, unencrypted
from cm4vllm.serving.probing.server_metrics import look
from cm4vllm.serving.probing.server_probe import check_answer, probe
from cm4vllm.serving.probing.server_requests import base_urls, sites_of
from cm4vllm.serving.supervision.death_reasons import LOG_FILE, death_reason
from cm4vllm.serving.supervision.ipc_files import require_shared_memory
from cm4vllm.serving.supervision.own_supervisors import end_supervisors, supervised_folder, wait_for_end
from cm4vllm.serving.supervisor import process_ids

#: Where a server's files are put when nothing else is said.
DEFAULT_FOLDER = "vllm-server"


class LaunchExports(Settings, frozen=True, kw_only=True):
    """The exports of run,vllm-server: of the server that is ready, or of one that would be started."""

    endpoint: Annotated[str | None, Key("CM_VLLM_SERVER_ENDPOINT")] = None
    record: input_types.ServerRecordPath | None = None
    model_folder: input_types.ServedFolder | None = None
    planned: input_types.PlannedServer | None = None


def act(settings: LaunchSettings) -> LaunchExports:
    """Start a server, describe the one that would be started, print which ones run, or stop one.

    Returns the exports of the recipe.
    """
    if settings.action == "status":
        say_text(status_text(running_servers()))
        return LaunchExports()
    if settings.action == "stop":
        stop_one(settings.folder or DEFAULT_FOLDER, settings.port)
        return LaunchExports()
    if settings.action == "describe":
        path = writable_folder(Path(settings.folder or DEFAULT_FOLDER).absolute()) / PLANNED_FILE
        write_record(path, planned_record(plan_servers(settings)))
        return LaunchExports(planned=str(path))
    record, path = launch(settings)
    return LaunchExports(endpoint=record.endpoint, record=str(path), model_folder=record.model_folder)


def attend(settings: LaunchSettings) -> None:
    """Wait in the foreground for the server that was started, unless it is for a run that goes on."""
    if settings.server_record and settings.action == "start" and not settings.background:
        wait_in_foreground(settings.server_record, settings.benchmark)


def launch(settings: LaunchSettings) -> tuple[ServerRecord, Path]:
    """Return the record of a server that is ready to be measured, and the path it was written to.

    The first server that is ready proves vLLM's environment; one that fails has it proved without the model. Raises
    EnvironmentBroken and others.
    """
    folder = Path(settings.folder or DEFAULT_FOLDER).absolute()
    path = folder / server.SERVER_FILE
    if settings.api_server:
        require_no_replicas(settings)
        access = require_access(settings)
        if access.key_env:
            say(f"note: the key in {access.key_env} is sent to the server")
        for url in base_urls(settings.api_server):
            if unencrypted(access, url):
                warn(f"the key and the headers for {url} are sent unencrypted (http, not https)")
        record = probe(
            settings.api_server,
            settings.model_name,
            api=asked_api(settings, None),
            ca_file=settings.api_server_ca,
            max_model_len=settings.max_model_len or 0,
            access=access,
            text=True,
        )
        writable_folder(folder)
        write_record(path, record)
        for endpoint in record.endpoints:
            say(f"the server at {endpoint} serves {record.model_name} with {record.named}")
        if record.dialect is not None:
            warn(" ".join(counting(record)))
        for note in record.unchecked:
            warn(f"not checked: {note}")
        return record, path
    try:
        record = start_servers(plan_servers(settings), folder, settings.ready_timeout_s or server.READY_TIMEOUT_S)
    except (ServerDied, ServerNotReady):
        if settings.installation:
            require_proof(Path(settings.installation))
        raise
    if settings.installation:
        note_proved(Path(settings.installation))
    write_record(path, record)
    return record, path


def start_servers(servers: Planned, folder: Path, timeout_s: float) -> ServerRecord:
    """Start the servers, and return the record of the first, which contains the records of the others."""
    settings = servers.parts[0]
    if servers.image is None:
        require_shared_memory()
    if settings.threads:
        say(f"note: vLLM's worker computes in its engine's process (uni), with OMP_NUM_THREADS={settings.threads}")
    if servers.image is None and settings.device == "cpu" and fp8_env(Path(settings.model)):
        say(f"note: {FP8_NOTE}")
    places = [folder, *(folder / f"replica-{number}" for number in range(2, len(servers.parts) + 1))]
    records = server.start_all(
        servers.python,
        list(zip(servers.parts, places, strict=True)),
        timeout_s=timeout_s,
        argv=servers.words,
        nodes=servers.nodes,
        image=servers.image,
    )
    for record in records:
        say(
            f"vLLM {record.version} serves {record.model_name} at {record.endpoint} after {record.ready_after_s} s, "
            f"asked at {record.api.path}"
        )
    first, *members = records
    return replace(first, replicas=[member.endpoint for member in members], members=members)


def use_words(record: ServerRecord, benchmark: str) -> str:
    """Return how one of our servers is asked by hand and by the main job of a benchmark, with the place of its log."""
    # The variable, not its value: the line is shown, and copied. As `$NAME` it would be taken for a key, and hidden.
    key = f' -H "Authorization: Bearer {variable(OWN_KEY_VARIABLE)}"' if record.access.key_env else ""
    asked = f"""-H 'Content-Type: application/json' \\
      -d '{{"model": "{record.model_name}", "prompt": "Harbour log", "max_tokens": 32, "temperature": 0}}'"""
    path, flags = "/v1/completions", f"--model={benchmark} --api={record.api}"
    if (media := media_api_of(record.api)) is not None:
        asked = media.by_hand.format(model=record.model_name)
        path, flags = record.api.path, f"--model={benchmark}"
    return f"""
    curl {record.endpoint}{path}{key} {asked}

    cm run script --tags=run-mlperf,inference,_vllm --api_server={record.endpoint} {flags}

    log: {record.log}
"""


def wait_in_foreground(path: str, benchmark: str) -> None:
    """Print the commands for the server of a record, and wait for Ctrl-C. Raises ServerDied when it ends before."""
    record = read_record(Path(path), ServerRecord)
    if not record.owned:
        return
    say("it runs until Ctrl-C. From another terminal:")
    say_text(use_words(record, benchmark))
    reason = wait_for_end(partial(death_reason, record), "stopping the server")
    if reason is not None and reason.startswith("ended by SIGTERM"):
        say("the server was stopped")
    elif reason is not None:
        log = f"the whole log is {record.log}"
        raise ServerDied(f"the server of {record.model_name} ended", cause=reason, remedy=log)


def end(path: str) -> None:
    """End the server of a record, if it is ours."""
    if path and Path(path).exists():
        server.stop(read_record(Path(path), ServerRecord))


@dataclass(frozen=True)
class RunningServer:
    """A supervisor with its server. `record` is None while the server is not ready."""

    supervisor: int
    folder: Path
    age_s: float
    record: ServerRecord | None

    @property
    def port(self) -> int | None:
        return int(self.record.endpoint.rpartition(":")[2]) if self.record else None


def running_servers() -> list[RunningServer]:
    """Return the servers whose supervisors run here, oldest first; those of other users are not seen."""
    return sorted(filter(None, map(_running, process_ids())), key=lambda running: -running.age_s)


def _running(pid: int) -> RunningServer | None:
    """Return the server of a supervisor of this user, None for any other process."""
    if (folder := supervised_folder(pid)) is None:
        return None
    record = None
    with suppress(psutil.Error):
        age_s = time.time() - psutil.Process(pid).create_time()
        with suppress(CmError):
            record = read_record(folder / server.SERVER_FILE, ServerRecord)
        return RunningServer(pid, folder, age_s, record if record and record.supervisor_pid == pid else None)
    return None


def status_text(servers: Iterable[RunningServer]) -> str:
    """Return a text on each server: its address, its model, the outcome of a completion, and its present load."""
    return "\n\n".join(map(_status_words, servers)) or "no server started by cm4vllm runs on this machine"


def _status_words(running: RunningServer) -> str:
    log = running.folder / LOG_FILE
    if running.record is None:
        return f"starting for {running.age_s:.0f} s\n  log         {log}\n  supervisor  {running.supervisor}"
    record = running.record
    site = sites_of(record)[0]
    try:
        check_answer(site, record.model_name, record.api)
        serves = "serves"
    except UsageError as error:
        serves = f"not checked: {error.what}"
    except CmError as error:
        serves = f"DOES NOT SERVE: {error.what}"
    sample = None if serves.startswith("not checked") else look(site)
    return (
        f"{record.endpoint} {serves}\n  model       {record.model_name}, up to {record.max_model_len:,} tokens\n"
        f"  vLLM        {record.version}, for {running.age_s:,.0f} s\n  requests    {_doing(sample)}\n"
        f"  log         {log}\n  supervisor  {running.supervisor}"
    )


def _doing(sample: MetricsSample | None) -> str:
    if sample is None:
        return "not reported"
    return (
        f"{sample.running} running, {sample.waiting} waiting, KV cache {100 * sample.kv_cache_usage:.1f} % in use, "
        f"{sample.generation_tokens:,} tokens generated so far"
    )


def stop_one(folder: str, port: int = 0) -> RunningServer:
    """Stop the server of a folder, or the one at a port. Raises UsageError when there is none."""
    there = running_servers()
    place = Path(folder).absolute()
    chosen = next((each for each in there if (each.port == port if port else each.folder == place)), None)
    if chosen is None:
        listed = [f"{each.record.endpoint if each.record else 'starting'} in {each.folder}" for each in there]
        raise UsageError(
            f"no server started by cm4vllm runs {f'at port {port}' if port else f'in {place}'}",
            cause="\n".join(["running:", *listed]) if listed else "no server started by cm4vllm runs on this machine",
            remedy="choose one with --output_dir=FOLDER or --port" if there else "",
        )
    end_supervisors([chosen.supervisor])
    say(f"stopped {chosen.record.endpoint if chosen.record else 'the starting server'} in {chosen.folder}")
    return chosen

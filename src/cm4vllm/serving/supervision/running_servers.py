"""The servers that cm4vllm has started on this machine: lists them, tells their state, and ends one."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.records.metrics import MetricsSample
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving import server
from cm4vllm.serving.probing.server_metrics import look
from cm4vllm.serving.probing.server_probe import check_answer
from cm4vllm.serving.probing.server_requests import sites_of
from cm4vllm.serving.supervision.death_reasons import LOG_FILE
from cm4vllm.serving.supervision.orphans import supervised_folder
from cm4vllm.serving.supervision.own_supervisors import end_supervisors
from cm4vllm.serving.supervisor import process_ids


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
    servers = [running for pid in process_ids() if (running := _running(pid)) is not None]
    return sorted(servers, key=lambda running: -running.age_s)


def _running(pid: int) -> RunningServer | None:
    """Return the server of a supervisor of this user, None for any other process."""
    if (folder := supervised_folder(pid)) is None:
        return None
    try:
        age_s = time.time() - psutil.Process(pid).create_time()
    except psutil.Error:
        return None
    try:
        record = read_record(folder / server.SERVER_FILE, ServerRecord)
    except CmError:
        record = None
    return RunningServer(pid, folder, age_s, record if record and record.supervisor_pid == pid else None)


def status_text(servers: Iterable[RunningServer]) -> str:
    """Return a text on each server: its address, its model, the outcome of a completion, and its present load."""
    texts = [_described(server) for server in servers]
    return "\n\n".join(texts) or "no server started by cm4vllm runs on this machine"


def _described(running: RunningServer) -> str:
    log = running.folder / LOG_FILE
    if running.record is None:
        return f"starting for {running.age_s:.0f} s\n  log         {log}\n  supervisor  {running.supervisor}"
    record = running.record
    site = sites_of(record)[0]
    sample = None
    try:
        check_answer(site, record.model_name, record.api)
        serves, sample = "serves", look(site)
    except UsageError as error:
        serves = f"not checked: {error.what}"
    except CmError as error:
        serves, sample = f"DOES NOT SERVE: {error.what}", look(site)
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
    meant = [
        running for running in there if (running.port == port if port else running.folder == Path(folder).absolute())
    ]
    if not meant:
        listed = "\n".join(
            f"{running.record.endpoint if running.record else 'starting'} in {running.folder}" for running in there
        )
        raise UsageError(
            f"no server started by cm4vllm runs {f'at port {port}' if port else f'in {Path(folder).absolute()}'}",
            cause=f"running:\n{listed}" if listed else "no server started by cm4vllm runs on this machine",
            remedy="choose one with --output_dir=FOLDER or --port" if there else "",
        )
    chosen = meant[0]
    end_supervisors([chosen.supervisor])
    say(f"stopped {chosen.record.endpoint if chosen.record else 'the starting server'} in {chosen.folder}")
    return chosen

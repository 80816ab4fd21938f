"""A server of our own: started under a supervisor, ready when it served a completion, ended with the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from msgspec.structs import replace

from cm4vllm.common.errors import CmError, ServerDied, ServerNotReady, ServerUnreachable, ServerUnsuitable
from cm4vllm.common.files import writable_folder
from cm4vllm.common.processes import last_lines
from cm4vllm.common.progress import Step, step
from cm4vllm.common.records import now, write_record
from cm4vllm.serving.arguments import ServerArguments, free_port, require_free
from cm4vllm.serving.probe import probe
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.supervisor import GRACE_S

__all__ = ["SERVER_FILE", "death_reason", "start", "stop", "telling_lines"]

#: The names of the record's and the log's files in a server's folder.
SERVER_FILE = "server.json"
LOG_FILE = "server.log"

#: Seconds that a server may take to serve its first completion: a large model loads for many minutes.
READY_S = 3600.0
POLL_S = 0.5

#: Supervisors started by this process. Their standard input is our end of the line by which they notice our death.
_HELD: dict[int, subprocess.Popen[bytes]] = {}

_TELLING = re.compile(r"\b(Error|ERROR|error:|Exception|Killed|out of memory|No space left)\b|\[supervisor\]|Error:")
_PREFIX = re.compile(r"^\([^)]*\)\s*")

#: What to do about a log that holds these words.
REMEDIES = {
    r"out of memory|Cannot allocate memory|MemoryError": "give it less to hold: a smaller KV cache or --max-model-len",
    r"No available memory for the cache blocks": "a larger share of memory for the KV cache, or a smaller --max-model-len",
    r"address already in use": "another --port, or none and a free one is taken",
    r"No space left on device": "free disk space; vLLM also writes to the temporary folder and to ~/.cache",
    r"unrecognized arguments": "correct the extra arguments of the server",
}


def start(arguments: ServerArguments, python: Path, folder: Path, *, packages: dict[str, str],
          timeout_s: float = READY_S) -> ServerRecord:
    """Start a server and wait until it has served a completion; server.json and server.log go to `folder`.

    Port 0 stands for a free one. Raises PortInUse, ServerDied when it ends by itself, ServerNotReady after `timeout_s`.
    """
    folder = writable_folder(folder)
    if arguments.port:
        require_free(arguments.host, arguments.port)
    else:
        arguments = replace(arguments, port=free_port(arguments.host))
    log = folder / LOG_FILE
    log.write_bytes(b"")
    argv, env = arguments.argv(python), arguments.env()
    begin, started_at = time.monotonic(), now()
    ours = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(path for path in (ours, os.environ.get("PYTHONPATH", "")) if path)
    # PYTHONPATH is for the supervisor alone: vLLM has an environment of its own.
    command = [sys.executable, "-m", "cm4vllm.serving.supervisor", str(log), "--", "env", "-u", "PYTHONPATH", *argv]
    with log.open("ab") as output:
        supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=output,
                                      start_new_session=True, env={**os.environ, **env, "PYTHONPATH": search})
    _HELD[supervisor.pid] = supervisor
    try:
        with step(f"vLLM server for {arguments.name} on port {arguments.port}") as shown:
            seen = _ready(arguments, supervisor, log, begin + timeout_s, shown)
    except BaseException:
        _end(supervisor.pid)
        raise
    record = ServerRecord(
        endpoint=seen.endpoint, model_name=seen.model_name, max_model_len=seen.max_model_len, version=seen.version,
        owned=True, argv=argv, env=env, packages=packages, log=str(log), supervisor_pid=supervisor.pid,
        started_at=started_at, ready_after_s=round(time.monotonic() - begin, 1),
    )
    write_record(folder / SERVER_FILE, record)
    return record


def stop(record: ServerRecord) -> None:
    """End a server that a run of ours started, and wait until all its processes are gone."""
    if record.owned and record.supervisor_pid is not None:
        _end(record.supervisor_pid)


def death_reason(record: ServerRecord) -> str | None:
    """Return why a server of our own is dead, with the telling lines of its log; None while it lives."""
    if not record.owned or record.supervisor_pid is None or _lives(record.supervisor_pid):
        return None
    return telling_lines(Path(record.log))


def telling_lines(log: Path, count: int = 8) -> str:
    """Return the last lines of a server's log that speak of a failure, or its very last lines, and where it lies."""
    lines = [_PREFIX.sub("", line) for line in last_lines(log, 400).splitlines()]
    telling = [line for line in lines if _TELLING.search(line)]
    return "\n".join([*(telling or lines)[-count:], f"the whole log: {log}"])


def _ready(arguments: ServerArguments, supervisor: subprocess.Popen[bytes], log: Path, deadline: float,
           shown: Step) -> ServerRecord:
    """Wait for the first served completion."""
    endpoint = f"http://{arguments.host}:{arguments.port}"
    while True:
        if supervisor.poll() is not None:
            raise ServerDied(f"vLLM ended before it served {arguments.name}", cause=telling_lines(log),
                             remedy=_remedy(log))
        try:
            return probe(endpoint, arguments.name)
        except ServerUnreachable as error:
            last: CmError = error
        except ServerUnsuitable as error:
            if supervisor.poll() is None:
                raise
            last = error
        if time.monotonic() > deadline:
            raise ServerNotReady(
                f"vLLM did not serve {arguments.name} in time", cause=f"{last.what}\n{telling_lines(log)}",
                remedy=_remedy(log),
            )
        shown.update(_PREFIX.sub("", last_lines(log, 1))[-90:] or "starting")
        time.sleep(POLL_S)


def _remedy(log: Path) -> str:
    text = last_lines(log, 400)
    for words, remedy in REMEDIES.items():
        if re.search(words, text, re.IGNORECASE):
            return remedy
    return f"the log says more: {log}"


def _lives(pid: int) -> bool:
    held = _HELD.get(pid)
    if held is not None:
        return held.poll() is None
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end(pid: int) -> None:
    held = _HELD.pop(pid, None)
    if held is not None and held.stdin is not None:
        held.stdin.close()
        try:
            held.wait(GRACE_S + 10)
        except subprocess.TimeoutExpired:
            held.kill()
            held.wait()
        return
    try:
        process = psutil.Process(pid)
        if "cm4vllm.serving.supervisor" in process.cmdline():
            process.send_signal(signal.SIGTERM)
            process.wait(GRACE_S + 10)
    except psutil.NoSuchProcess:
        return

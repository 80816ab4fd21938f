"""vLLM servers started here: ready once they have served a completion, and ended however the run ends."""

import subprocess
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.common.clock import now
from cm4vllm.common.errors import (
    CmError,
    PortInUse,
    ServerDied,
    ServerNotReady,
    ServerUnreachable,
    ServerUnsuitable,
    UsageError,
)
from cm4vllm.common.files import writable_folder
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import holds_record, remove_record, write_record
from cm4vllm.hardware.gpus.vendor import GpuUse
from cm4vllm.records.node import NodeReport
from cm4vllm.records.server import ContainerRecord, NodeRecord, ServerRecord
from cm4vllm.records.vllm.given_options import given_options
from cm4vllm.records.vllm.server_needs import uses_ray
from cm4vllm.serving.clusters.launchers import Launcher
from cm4vllm.serving.clusters.node_processes import copy_to_nodes, installation, node_files, node_reports, start_on_node
from cm4vllm.serving.clusters.node_report import require_alike
from cm4vllm.serving.clusters.placement import NodeLayout
from cm4vllm.serving.gpu_memory import gpu_memory, wait_until_freed
from cm4vllm.serving.installation.packages import packages_of
from cm4vllm.serving.options.arguments import ServerSettings, niceness, secret_env, server_argv, server_env
from cm4vllm.serving.ports import free_port, listens, reachable
from cm4vllm.serving.probing.server_access import own_access
from cm4vllm.serving.probing.server_probe import check_answer, probe
from cm4vllm.serving.probing.server_requests import Site
from cm4vllm.serving.server_container import (
    VllmImage,
    removal_words,
    remove_leftovers,
    server_container,
    supervised_words,
)
from cm4vllm.serving.supervision.death_reasons import LOG_FILE, STATE_FILE, reason_in, reason_on_nodes
from cm4vllm.serving.supervision.known_failures import known_failure
from cm4vllm.serving.supervision.logs import advice, progress_line, telling_lines
from cm4vllm.serving.supervision.own_supervisors import GRACE_S, end_orphans, end_supervisors, is_owned, own, say_ready
from cm4vllm.serving.supervisor import start_supervised

#: The names of a server's files in its folder.
SERVER_FILE = "server.json"
_SPEC_FILE = "supervisor-spec.json"

#: A server on two busy cores was ready after 45 s; large models load for many minutes and may be given more.
READY_TIMEOUT_S = 900.0
#: A server that answers, but not with a completion as it must be, gets this long to come to it.
REFUSING_S = 30.0
_LOOK_S = 0.1

#: The memory of the GPUs in use before each server, by its supervisor.
_memory_before: dict[int, dict[str, GpuUse]] = {}


@dataclass(frozen=True)
class NodeLaunch:
    """The nodes of each server, how its workers are distributed over them, and whether they are to be installed."""

    launcher: Launcher
    layout: NodeLayout
    install: bool = False


@dataclass(frozen=True)
class _Starting:
    """A server that was started and is not known to be ready. `began` is time.monotonic()."""

    settings: ServerSettings
    folder: Path
    endpoint: str
    argv: list[str]
    env: dict[str, str]
    supervisor: subprocess.Popen[bytes]
    began: float
    started_at: str
    nodes: tuple[NodeRecord, ...] = ()
    container: ContainerRecord | None = None

    @property
    def supervisors(self) -> list[int]:
        return [node.supervisor_pid for node in self.nodes if node.supervisor_pid is not None] or [self.supervisor.pid]

    @property
    def log(self) -> Path:
        return Path(self.nodes[0].log) if self.nodes else self.folder / LOG_FILE

    def cause_of_end(self) -> str | None:
        """Return why it ends, None while it is up."""
        alone = reason_in(self.folder) if not self.nodes and self.supervisor.poll() is not None else None
        return reason_on_nodes(self.nodes) if self.nodes else alone


def start_all(
    python: Path,
    parts: Sequence[tuple[ServerSettings, Path]],
    *,
    timeout_s: float = READY_TIMEOUT_S,
    argv: list[str] | None = None,
    nodes: NodeLaunch | None = None,
    image: VllmImage | None = None,
) -> list[ServerRecord]:
    """Start servers with the environment of `python`, all at once; return their records once each served a completion.

    Where one fails, all are ended. Writes server.log and server.json to the folder of each. They end with this process.
    `argv` takes the place of vLLM's command line, {port} in it that of the port. With `nodes` each is on all of them,
    with `image` each in a container of it. Raises PortInUse, ServerDied, ServerNotReady, ServerUnreachable, UsageError.
    """
    if orphans := end_orphans():
        say(f"ended processes left by an earlier server: {', '.join(orphans)}")
    if image is not None and (left := remove_leftovers(image.container.engine)):
        say(f"removed containers left by an earlier server: {', '.join(left)}")
    memory = gpu_memory()
    starting: list[_Starting] = []
    try:
        for settings, folder in parts:
            place = writable_folder(folder)
            if nodes is None:
                others = {server.endpoint for server in starting}
                starting.append(_start(python, settings, place, argv, others, image))
            else:
                starting.append(_started_on_nodes(python, settings, place, argv, nodes))
            _memory_before[starting[-1].supervisor.pid] = memory
        ready_after_s = _wait_until_all_are_ready(starting, timeout_s)
        packages = image.packages if image else packages_of(python)
        return [
            _server_record(server, packages, after_s) for server, after_s in zip(starting, ready_after_s, strict=True)
        ]
    except BaseException:
        end_supervisors([pid for server in starting for pid in server.supervisors])
        raise


def _start(
    python: Path,
    settings: ServerSettings,
    folder: Path,
    argv: list[str] | None,
    others: Container[str],
    image: VllmImage | None,
) -> _Starting:
    """Start the process of a server at an address that `others`, which may not listen yet, do not have."""
    while (endpoint := f"http://{reachable(settings.host)}:{free_port(settings.host, settings.port)}") in others:
        if settings.port:
            raise UsageError(f"two servers would have the address {endpoint}", remedy="leave --port out")
    words = [word.replace("{port}", endpoint.rpartition(":")[2]) for word in argv or server_argv(python, settings)]
    env = server_env(settings)
    container = server_container(image.container, settings) if image else None
    remove_record(folder / SERVER_FILE, ServerRecord)
    supervisor = start_supervised(
        supervised_words(container, words) if container else words,
        env,
        spec=folder / _SPEC_FILE,
        log=folder / LOG_FILE,
        state=folder / STATE_FILE,
        grace_s=GRACE_S,
        secrets=secret_env(settings),
        last=removal_words(container) if container else (),
        apart=uses_ray(given_options(words)),  # Ray's workers look for modules in the present folder, whatever -P says
    )
    own(supervisor)
    return _Starting(settings, folder, endpoint, words, env, supervisor, time.monotonic(), now(), container=container)


def _started_on_nodes(
    python: Path, settings: ServerSettings, folder: Path, argv: list[str] | None, nodes: NodeLaunch
) -> _Starting:
    """Compare the nodes, and start the processes of one server on all of them."""
    launcher, layout = nodes.launcher, nodes.layout
    if nodes.install:
        copy_to_nodes(launcher, installation(python, settings.model))
    with step(f"asking {len(launcher.nodes)} nodes by {launcher.name}"):
        reports = node_reports(launcher, python, settings.model)
    for difference in require_alike(reports, workers=layout.workers, on_gpus=settings.device != "cpu"):
        warn(difference)
    address = launcher.address(launcher.nodes[0])
    port, *more = reports[launcher.nodes[0]].ports
    endpoint = f"http://{reachable(settings.host)}:{settings.port or port}"
    words = [word.replace("{port}", endpoint.rpartition(":")[2]) for word in argv or server_argv(python, settings)]
    _clear_earlier(folder, launcher.nodes)
    began, started_at = time.monotonic(), now()
    options = [layout.options(rank, address, (more[0], more[1])) for rank in range(len(launcher.nodes))]
    started, supervisor = _started_ranks(settings, folder, launcher, reports, [[*words, *rank] for rank in options])
    argv, env = started[0].argv, server_env(settings)
    return _Starting(settings, folder, endpoint, argv, env, supervisor, began, started_at, started)


def _clear_earlier(folder: Path, nodes: Iterable[str]) -> None:
    """Remove what an earlier start on these nodes left in the folder; move aside what is not known to be its."""
    remove_record(folder / SERVER_FILE, ServerRecord)
    for node in nodes:
        began = holds_record(_report_file(folder, node), NodeReport)
        for path in node_files(folder, node):
            if began:
                path.unlink(missing_ok=True)
            else:
                make_way(path)


def _report_file(folder: Path, node: str) -> Path:
    """Return the file with a node's report; it is written before the node's logs are begun."""
    return folder / f"report-{node}.json"


def _started_ranks(
    settings: ServerSettings,
    folder: Path,
    launcher: Launcher,
    reports: Mapping[str, NodeReport],
    argvs: Sequence[list[str]],
) -> tuple[tuple[NodeRecord, ...], subprocess.Popen[bytes]]:
    """Start a process on each node, with its command line; return their records, and the supervisor of the first."""
    started: list[NodeRecord] = []
    supervisors: list[subprocess.Popen[bytes]] = []
    try:
        for node, argv in zip(launcher.nodes, argvs, strict=True):
            address = launcher.address(node)
            interface = reports[node].interfaces.get(address)
            env = {"VLLM_HOST_IP": address, **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
            own_env, secrets = {**server_env(settings), **env}, secret_env(settings)
            report = _report_file(folder, node)
            write_record(report, reports[node])
            record, process = start_on_node(launcher, node, argv, own_env, folder, secrets=secrets, grace_s=GRACE_S)
            own(process)
            supervisors.append(process)
            started.append(replace(record, env=env, report=str(report)))
    except BaseException:
        end_supervisors([process.pid for process in supervisors])
        raise
    return tuple(started), supervisors[0]


def _server_record(server: _Starting, packages: dict[str, str], ready_after_s: float) -> ServerRecord:
    probed = probe(server.endpoint, server.settings.name, api=server.settings.api, access=own_access())
    record = ServerRecord(
        endpoint=server.endpoint,
        api=probed.api,
        dialect=probed.dialect,
        access=probed.access,
        model_name=probed.model_name,
        answered_by=probed.answered_by,
        max_model_len=probed.max_model_len,
        version=probed.version,
        owned=True,
        argv=server.argv,
        env=server.env,
        container=server.container,
        niceness=niceness(server.settings),
        packages=packages,
        log=str(server.log),
        nodes=list(server.nodes),
        supervisor_pid=server.supervisor.pid,
        started_at=server.started_at,
        ready_after_s=round(ready_after_s, 1),
        simulated=probed.simulated,
    )
    write_record(server.folder / SERVER_FILE, record)
    for pid in server.supervisors:
        say_ready(pid)
    return record


def stop(record: ServerRecord) -> None:
    """End a server that this process started, its members, and all their processes; nothing happens to any other.

    A record may have been copied with a results folder: the server that it names is then that of another job.
    """
    if supervisors := [pid for pid in record.supervisors if is_owned(pid)]:
        end_supervisors(supervisors)
        end_orphans()
        for engine in {server.container.engine for server in (record, *record.members) if server.container}:
            remove_leftovers(engine)
        before: dict[str, GpuUse] = {}
        for supervisor in supervisors:
            before |= _memory_before.pop(supervisor, {})
        wait_until_freed(before)


def _wait_until_all_are_ready(starting: Sequence[_Starting], timeout_s: float) -> list[float]:
    """Return the seconds after which each was ready; end all and raise the error of the first that fails."""
    count, name = len(starting), starting[0].settings.name
    title = f"starting vLLM with {name}" if count == 1 else f"starting {count} vLLM servers with {name}"
    with step(title) as progress, ThreadPoolExecutor(count, "starting") as threads:
        ready = [threads.submit(_wait_until_ready, server, server.began + timeout_s) for server in starting]
        try:
            while not (failed := [future for future in ready if future.done() and future.exception()]):
                left = [server for server, future in zip(starting, ready, strict=True) if not future.done()]
                if not left:
                    break
                ready_count = f"{count - len(left)} of {count} are ready; " if count > 1 else ""
                progress.update(ready_count + progress_line(left[0].log))
                wait(ready, _LOOK_S, FIRST_EXCEPTION)
            return [future.result() for future in failed or ready]
        except BaseException:
            # The other threads see that, and end.
            end_supervisors([pid for server in starting for pid in server.supervisors])
            raise


def _wait_until_ready(starting: _Starting, deadline: float) -> float:
    """Wait until the server has served a completion, and return after how many seconds it had.

    Its /health may be good long before it can.
    """
    settings, endpoint = starting.settings, starting.endpoint
    refused_since: float | None = None
    refusal: CmError | None = None
    while True:
        if (cause := starting.cause_of_end()) is not None:
            raise _death_error(starting, cause)
        if listens(endpoint):
            try:
                check_answer(
                    Site(endpoint, access=own_access(), patience_s=0),
                    settings.name,
                    settings.api,
                    timeout_s=max(1, deadline - time.monotonic()),
                )
                return time.monotonic() - starting.began
            except ServerUnreachable as error:
                refusal = error
            except ServerUnsuitable as error:
                refusal, refused_since = error, refused_since or time.monotonic()
        if time.monotonic() > min(deadline, (refused_since or deadline) + REFUSING_S):
            raise _not_ready(starting, refusal)
        time.sleep(_LOOK_S)


def _not_ready(starting: _Starting, refusal: CmError | None) -> ServerNotReady:
    log, settings = starting.log, starting.settings
    causes = [refusal.cause if refusal else "", telling_lines(log) or f"its log {log} is empty"]
    causes += [f"{node.name}: {telling_lines(Path(node.log))}" for node in starting.nodes[1:]]
    return ServerNotReady(
        f"the server of {settings.name} has not served a completion in time",
        cause="\n".join(filter(None, causes)),
        remedy=advice("\n".join(causes)) or f"read {log}; --ready_timeout gives it more seconds",
    )


def _death_error(starting: _Starting, cause: str) -> CmError:
    folder, endpoint, settings = starting.folder, starting.endpoint, starting.settings
    failure = known_failure(cause)
    if failure is not None and failure.name == "port":
        return PortInUse(
            f"the address {endpoint} was taken while the server started", cause=cause, remedy=failure.remedy
        )
    whole = f"the logs of all nodes: {folder}/server-*.log" if starting.nodes else f"its whole log: {starting.log}"
    return ServerDied(
        f"the server of {settings.name} ended before it was ready",
        cause=cause,
        remedy=f"{failure.remedy}; {whole}" if failure else whole,
    )

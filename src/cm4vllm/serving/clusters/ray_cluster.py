"""A Ray cluster under vLLM: this machine as its head or as one of its workers, and what the cluster can hold.

Ray starts and joins; its processes are ended with the run, and their failures are reported.
"""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from cm4vllm.common import input_types
from cm4vllm.common.errors import CmError, PortInUse, ServerDied, ServerNotReady, ServerUnreachable, UsageError
from cm4vllm.common.files import require_space, writable_folder, write_text
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.environments import make_environment, pip, require_success, site_packages
from cm4vllm.common.programs.processes import last_lines, run
from cm4vllm.common.progress import say, step
from cm4vllm.common.records import Record, read_record, remove_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.serving.options.arguments import ray_env
from cm4vllm.serving.ports import free_port
from cm4vllm.serving.supervision.own_supervisors import GRACE_S, end_supervisors, is_owned, own, runs, wait_for_end
from cm4vllm.serving.supervisor import start_supervised

RAY_FILE = "ray.json"
_LOG_FILE = "ray.log"
_STATE_FILE = "ray-supervisor.json"

#: Ray's own default port of a head.
PORT = 6379
_LOOK_S = 0.2
#: A group that fits is placed at once; one that does not waits for ever.
_PLACEMENT_S = 10.0


class StartedNode(Settings, frozen=True, kw_only=True):
    """The record of the node that was started, empty before, and whether it is waited for."""

    record: Annotated[str, Key("CM_RAY_RECORD")] = ""
    background: Annotated[bool, Key("CM_RAY_BACKGROUND")] = False


class RaySettings(Settings, frozen=True, kw_only=True):
    """The part of this machine in a cluster.

    `address` is HOST:PORT of the head, `node_ip` the address under which the others reach this machine.

    `num_gpus` and `num_cpus` are detected by Ray unless given.
    """

    role: Annotated[Literal["head", "worker", "status"], Key("CM_RAY_ROLE")] = "head"
    python: input_types.RayPython
    address: input_types.RayAddress = ""
    node_ip: Annotated[str, Key("CM_RAY_NODE_IP")] = ""
    port: Annotated[int, Key("CM_RAY_PORT")] = PORT
    num_gpus: Annotated[int | None, Key("CM_RAY_NUM_GPUS")] = None
    num_cpus: Annotated[int | None, Key("CM_RAY_NUM_CPUS")] = None
    folder: Annotated[str, Key("CM_RAY_DIR")] = "ray-cluster"
    ready_timeout_s: Annotated[float, Key("CM_RAY_READY_TIMEOUT")] = 120.0
    tp_size: input_types.TpSize = None
    pp_size: input_types.PpSize = None


class RayRecord(Record, frozen=True, kw_only=True):
    """A node of a cluster that we started: its role, the head's address, the command, and who supervises it."""

    role: str
    address: str
    argv: list[str]
    log: str
    supervisor_pid: int
    temp_dir: str = ""


class Node(msgspec.Struct, frozen=True):
    address: str
    alive: bool
    resources: dict[str, float]


class Cluster(msgspec.Struct, frozen=True):
    """A cluster's answer: its nodes, and the address of each worker's node, None if the workers do not fit."""

    nodes: list[Node]
    placed: list[str] | None = None


def start(settings: RaySettings) -> tuple[RayRecord, Path]:
    """Start this machine's node and return its record, and where it was written, once it belongs to the cluster.

    It ends with this process. Raises UsageError, PortInUse, ServerUnreachable, ServerDied, ServerNotReady.
    """
    folder = writable_folder(Path(settings.folder).absolute())
    address = _address(settings)
    before = len(look(settings.python, address).nodes) if settings.role == "worker" else 0
    # Ray's sockets lie below it, and their paths may have 107 bytes at most.
    temp_dir = tempfile.mkdtemp(prefix="ray-") if settings.role == "head" else ""
    words = _command(settings, address, temp_dir)
    remove_record(folder / RAY_FILE, RayRecord)
    supervisor = start_supervised(
        words,
        ray_env(),
        spec=folder / "ray-supervisor-spec.json",
        log=folder / _LOG_FILE,
        state=folder / _STATE_FILE,
        grace_s=GRACE_S,
    )
    own(supervisor)
    record = RayRecord(
        role=settings.role,
        address=address,
        argv=words,
        log=str(folder / _LOG_FILE),
        supervisor_pid=supervisor.pid,
        temp_dir=temp_dir,
    )
    write_record(folder / RAY_FILE, record)
    try:
        with step(f"Ray {settings.role} at {address}"):
            _wait_until_joined(settings, record, before)
    except BaseException:
        end(str(folder / RAY_FILE))
        raise
    return record, folder / RAY_FILE


def look(python: str, address: str, workers: int = 0) -> Cluster:
    """Ask the cluster at `address` for its nodes and, with `workers`, where it would put that many workers of vLLM.

    Raises ServerUnreachable when no cluster answers there.
    """
    program = Path(__file__).with_name("ray_placement.py")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        # Ray's workers look for modules in the folder that the program which asks for them is in, whatever -P says.
        with scratch_folder("cm4vllm-ray-") as own_folder:
            done = run(
                [python, "-P", program, address, str(workers), str(_PLACEMENT_S)],
                cwd=own_folder,
                env={"PYTHONPATH": "", **ray_env()},
                timeout_s=_PLACEMENT_S + 60,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreachable(address, str(error)) from error
    printed = next((line for line in reversed(done.output.splitlines()) if line.startswith('{"nodes"')), "")
    if not done.ok or not printed:
        raise _unreachable(address, done.tail(8))
    return msgspec.json.decode(printed, type=Cluster)


def show(settings: RaySettings) -> Cluster:
    """Print what the cluster has and whether a server of tp_size x pp_size GPUs fits. Raises UsageError when not."""
    tensor, pipeline = settings.tp_size or 1, settings.pp_size or 1
    workers = tensor * pipeline
    cluster = look(settings.python, _address(settings), workers if workers > 1 else 0)
    for node in cluster.nodes:
        has = f"{node.resources.get('GPU', 0):g} GPUs, {node.resources.get('CPU', 0):g} CPUs"
        say(f"{node.address}: {has}{'' if node.alive else ', gone'}")
    if workers > 1 and cluster.placed is None:
        gpus = sum(node.resources.get("GPU", 0) for node in cluster.nodes if node.alive)
        raise UsageError(
            f"{workers} workers do not fit the cluster",
            cause=f"tensor parallel {tensor} x pipeline parallel {pipeline} needs "
            f"{workers} free GPUs; its nodes have {gpus:g}, some of which other programs may use",
            remedy="join more machines (run,ray-cluster,_worker) or give smaller sizes",
        )
    if cluster.placed:
        say("a server's workers would run at " + ", ".join(cluster.placed))
    return cluster


def wait_in_foreground(path: str) -> None:
    """Print how the node is used and wait for Ctrl-C. Raises ServerDied when the node ends before."""
    record = read_record(Path(path), RayRecord)
    if record.role == "head":
        say(f"on each other machine: cm run script --tags=run,ray-cluster,_worker --address={record.address}")
        say(f"then here: cm run script --tags=run,vllm-server --ray_address={record.address} --tp_size=… --pp_size=…")
    say(f"it runs until Ctrl-C; its log is {record.log}")

    def last_words() -> str | None:
        return None if runs(record.supervisor_pid) else last_lines(Path(record.log), 8)

    if (reason := wait_for_end(last_words, "leaving the cluster")) is not None:
        raise ServerDied(f"Ray's {record.role} ended", cause=reason, remedy=f"the whole log is {record.log}")


def end(path: str) -> None:
    """End the node of a record, if this process started it, and remove what Ray wrote for itself."""
    record = read_record(Path(path), RayRecord) if path and Path(path).exists() else None
    if record is not None and is_owned(record.supervisor_pid):
        end_supervisors([record.supervisor_pid])
        if record.temp_dir:
            shutil.rmtree(record.temp_dir, ignore_errors=True)
        remove_record(Path(path), RayRecord)


def _address(settings: RaySettings) -> str:
    if settings.role == "head":
        return f"{settings.node_ip or _own_address()}:{settings.port}"
    host, colon, port = settings.address.rpartition(":")
    if not (colon and host and (whole_number(port) or 2**16) < 2**16):
        raise UsageError(
            f"--address={settings.address!r} of run,ray-cluster is not the address of a head",
            remedy="give HOST:PORT as printed by run,ray-cluster,_head",
        )
    return settings.address


def _own_address() -> str:
    """Return the address of the interface that leads to other machines. No packet is sent (udp(7), connect)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _command(settings: RaySettings, address: str, temp_dir: str) -> list[str]:
    words = [settings.python, "-P", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    options: dict[str, str | int | None] = {"--address": address, "--node-ip-address": settings.node_ip or None}
    if settings.role == "head":
        host, _, port = address.rpartition(":")
        try:
            free_port(host, int(port))
        except CmError as error:
            raise PortInUse(
                f"Ray cannot listen on {address}",
                cause=error.cause,
                remedy="another head may run already; or give --port and --node_ip of run,ray-cluster",
            ) from error
        words += ["--head", "--include-dashboard=false"]
        options = {"--port": port, "--node-ip-address": host, "--temp-dir": temp_dir}
    options |= {"--num-gpus": settings.num_gpus, "--num-cpus": settings.num_cpus}
    given = [(option, str(value)) for option, value in options.items() if value is not None]
    return [*words, *(word for option in given for word in option)]


def _unreachable(address: str, cause: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"no Ray cluster answers at {address}",
        cause=cause,
        remedy="start its head first: cm run script --tags=run,ray-cluster,_head; all machines "
        "need the same release of Ray and of Python",
    )


def _wait_until_joined(settings: RaySettings, record: RayRecord, before: int) -> None:
    deadline = time.monotonic() + settings.ready_timeout_s
    while (up := runs(record.supervisor_pid)) and time.monotonic() < deadline:
        with contextlib.suppress(ServerUnreachable):
            if sum(node.alive for node in look(settings.python, record.address).nodes) > before:
                return
        time.sleep(_LOOK_S)
    how = f"did not join within {settings.ready_timeout_s:g} s" if up else "ended at its start"
    raise (ServerNotReady if up else ServerDied)(
        f"Ray's {record.role} {how}", cause=last_lines(Path(record.log), 8), remedy=f"the whole log is {record.log}"
    )


#: All machines of a cluster need the same one; vLLM 0.32 asks for 2.48 or newer.
RAY_RELEASE = "2.60.0"

#: Measured: 285 MB unpacked, and the downloads beside them.
SPACE_BYTES = 10**9


def install_ray(python: Path, folder: Path, release: str = RAY_RELEASE) -> tuple[Path, str]:
    """Make an environment over that of `python` (a vLLM's) in `folder`/venv; return its Python and Ray's release.

    Ray's own dependencies are held at the versions that the vLLM has, so that both import the same.
    Raises InstallError.
    """
    require_space(folder, SPACE_BYTES, "Ray")
    venv = folder / "venv"
    with step(f"Ray {release}"):
        frozen = require_success(pip(python, [], action="freeze"), "the packages of the vLLM cannot be listed").output
        constraints = folder / "vllm-packages.txt"
        write_text(constraints, "".join(f"{line}\n" for line in frozen.splitlines() if "==" in line))
        site = require_success(
            run([python, "-P", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
            "the vLLM's Python does not run",
        ).output.strip()
        own = make_environment(venv, python)
        require_success(
            pip(own, ["-c", str(constraints), f"ray=={release}"], folder / "pip-ray.log"),
            f"Ray {release} cannot be installed",
        )
        write_text(site_packages(venv) / "vllm-environment.pth", f"{site}\n")
        record = require_success(
            run([own, "-P", "-c", "import ray, vllm; print(ray.__version__)"], env={"PYTHONPATH": ""}),
            "Ray and vLLM cannot be imported together",
        ).output
    return own, record.splitlines()[-1]

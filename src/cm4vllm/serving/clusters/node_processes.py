"""The processes of one server on several nodes: each has a supervisor there, which ends it with its standard input.

The log of each node and the states that its supervisor reports are files of this machine, which the launcher's command
writes: nothing has to be shared by a file system to be read here.

Nodes that do not share this machine's files may get copies of its installation: the same folders at the same paths. A
folder goes to a node as a tar archive through the launcher, whose standard input is that of the program there. What a
node shares with this machine is found by a file that is made here, and never written to.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cm4vllm.common.errors import ServerUnreachable
from cm4vllm.common.programs.processes import exit_in_words, last_lines, run
from cm4vllm.common.progress import say, step
from cm4vllm.records.node import NodeReport
from cm4vllm.records.server import NodeRecord
from cm4vllm.serving.carried_variables import carried_variables
from cm4vllm.serving.clusters.launchers import Launcher
from cm4vllm.serving.clusters.node_report import MARK
from cm4vllm.serving.supervision.logs import telling_lines
from cm4vllm.serving.supervisor import end_in_words

_REPORT_S, _REACH_S = 120.0, 30.0
#: What the log of a node says whose peer has ended: the cause is then in the log of the peer.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|connectFullMesh|broken pipe|remote process exited|"
    r"Socket Timeout|Engine loop|EngineDeadError|cancelled|ECONN|heartbeat|shut ?down",
    re.IGNORECASE,
)

T = TypeVar("T")


def node_program(module: str, *words: str) -> list[str]:
    """Return the command of a module of this package on a node, where it has the same path as on this machine."""
    source = str(Path(__file__).resolve().parents[3])
    return ["env", f"PYTHONPATH={source}", "PYTHONSAFEPATH=1", sys.executable, "-P", "-m", module, *words]


def require_reachable(launcher: Launcher) -> None:
    """See that each node runs a program. Raises ServerUnreachable naming the first that does not, UsageError."""
    done = _on_all(launcher, lambda node: node_output(launcher, node, ["true"], _REACH_S))
    for node, (status, output) in done.items():
        if status:
            raise ServerUnreachable(
                f"the node {node} in --nodes cannot be reached",
                cause="\n".join([f"{launcher.name}: {status}", *output.splitlines()[-6:]]),
                remedy=f"see that this works without a password: {' '.join(launcher.words(node, ['true']))}",
            )


def _on_all(launcher: Launcher, ask: Callable[[str], T], most: int = 64) -> dict[str, T]:
    """Return what `ask` returns for each node, by its name; `most` are asked at the same time."""
    with ThreadPoolExecutor(min(most, len(launcher.nodes)), "nodes") as threads:
        return dict(zip(launcher.nodes, threads.map(ask, launcher.nodes), strict=True))


#: Made before threads read by it: two that are the first to read a kind of record end the process (SIGSEGV in msgspec).
_REPORTS = msgspec.json.Decoder(NodeReport)


def node_reports(launcher: Launcher, python: Path, model: str) -> dict[str, NodeReport]:
    """Return the report of each node on itself, by its name; all are asked at the same time.

    Raises ServerUnreachable naming the node that gave none, with the last lines of its launcher.
    """
    program = node_program("cm4vllm.serving.clusters.node_report", str(python), model)
    return _on_all(launcher, lambda node: _report(launcher, node, program))


def _report(launcher: Launcher, node: str, program: Sequence[str]) -> NodeReport:
    status, output = node_output(launcher, node, program, _REPORT_S)
    report = next((line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)), None)
    if report is None:
        raise ServerUnreachable(
            f"the node {node} cannot run cm4vllm",
            cause="\n".join([f"{launcher.name}: {status or exit_in_words(0)}", *output.splitlines()[-6:]]),
            remedy="see that this works without a password: "
            f"{' '.join(launcher.words(node, [sys.executable, '--version']))}; "
            "--install_on_nodes=yes copies cm4vllm there",
        )
    return _REPORTS.decode(report)


def node_output(launcher: Launcher, node: str, program: Sequence[str], timeout_s: float) -> tuple[str, str]:
    """Run a program on a node; return in words why it failed, empty where it did not, and its output."""
    try:
        done = run(launcher.words(node, program), timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:g} s", ""
    except OSError as error:
        return error.strerror or str(error), ""
    return "" if done.ok else exit_in_words(done.status), done.output


def node_files(folder: Path, node: str) -> tuple[Path, Path]:
    """Return the log of a node's server, and what its supervisor tells."""
    return folder / f"server-{node}.log", folder / f"supervisor-{node}.jsonl"


def start_on_node(
    launcher: Launcher,
    node: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    *,
    secrets: Mapping[str, str],
    grace_s: float,
) -> tuple[NodeRecord, subprocess.Popen[bytes]]:
    """Start a supervisor of `argv` on a node; what it supervises ends when the standard input of the process is closed.

    `secrets`, and variables of this environment that concern the server, reach the node through standard input only.
    """
    log, events = node_files(folder, node)
    words = launcher.words(node, node_program("cm4vllm.serving.supervisor", "-"))
    with log.open("wb") as output, events.open("wb") as states:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=states, start_new_session=True)
    spec = {"argv": list(argv), "env": {**carried_variables(os.environ), **env, **secrets}, "grace_s": grace_s}
    # Where the launcher's command has ended already, its messages are read as after any other end.
    with contextlib.suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.write(json.dumps(spec).encode() + b"\n")
            process.stdin.flush()
    record = NodeRecord(
        name=node,
        launcher=launcher.name,
        argv=list(argv),
        env=dict(env),
        log=str(log),
        events=str(events),
        supervisor_pid=process.pid,
    )
    return record, process


def ended_since(node: NodeRecord, *, runs: bool) -> float | None:
    """Return for how many seconds it is known that the server of a node ends; None while it is up.

    `runs` says whether the launcher's command does.
    """
    return None if runs and not _state(node).get("reason") else time.time() - _noted_at(node)


def _noted_at(node: NodeRecord) -> float:
    """Return when the supervisor of a node has written last; now where it has not."""
    try:
        return Path(node.events).stat().st_mtime
    except OSError:
        return time.time()


def node_cause(ended: Sequence[NodeRecord]) -> str:
    """Return the cause of a server's end, given its nodes that ended: the name of the first failing node, and its log.

    A node whose log only says that its peers are gone is not the cause where another one is known. Of nodes that ended
    at the same time it is the first.
    """

    def order(node: NodeRecord) -> tuple[bool, float]:
        return bool(_CONSEQUENCE.search(telling_lines(Path(node.log)))), _noted_at(node)

    node = min(ended, key=order)
    how = end_in_words(_state(node), _launcher_end(node))
    return "\n".join(filter(None, (f"on the node {node.name}: {how}", telling_lines(Path(node.log)))))


def _launcher_end(node: NodeRecord) -> str:
    """Return the last messages of a launcher's command that are not states: ssh's or srun's own."""
    said = [line for line in last_lines(Path(node.events), 20).splitlines() if not line.startswith("{")]
    return "\n".join([f"the {node.launcher} command, or its supervisor, was ended", *said[-4:]])


def _state(node: NodeRecord) -> dict[str, Any]:
    """Return the last state that the supervisor of a node has reported."""
    for line in reversed(last_lines(Path(node.events), 20).splitlines()):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict) and "supervisor" in value:
                return value
    return {}


#: What belongs to the operating system, which each node has of its own.
_SYSTEM = (Path("/usr"), Path("/bin"))
#: Answers of a node about a folder: it is that of this machine, a copy with a digest, or another one.
_SHARED = "shared"
_ASK = 'if [ -e "$1" ]; then echo shared; else cat "$2" 2>/dev/null || echo none; fi'
_ANSWER_S, _COPY_S = 60.0, 4 * 3600.0


def installation(python: Path, model: str) -> list[Path]:
    """Return the folders that a node needs: cm4vllm, its Python, vLLM's environment `python`, the folder `model`.

    And those in which a first start has left what it compiled: a node without them compiles it again, which may need a
    compiler or a network.
    """
    folders = [Path(__file__).resolve().parents[3], Path(sys.prefix), Path(sys.base_prefix)]
    folders += [python.absolute().parents[1], python.resolve().parents[1], *_compiled()]
    if Path(model).is_dir():
        folders.append(Path(model).resolve())
    whole = [folder for folder in dict.fromkeys(folders) if folder != Path("/") and not _within(folder, _SYSTEM)]
    return [folder for folder in whole if not _within(folder, [other for other in whole if other != folder])]


def _compiled() -> list[Path]:
    """Return the caches of compiled code of vLLM, FlashInfer and Triton that are there, as each of them finds its own.

    Sources: vllm/envs.py (0.32.0); flashinfer/jit/env.py; triton/runtime/cache.py.
    """
    home, env = Path.home(), os.environ
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    places = (
        Path(env.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        Path(env.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache/flashinfer",
        Path(env.get("TRITON_CACHE_DIR") or home / ".triton/cache"),
    )
    return [place.absolute() for place in places if place.is_dir()]


def copy_to_nodes(launcher: Launcher, folders: Sequence[Path]) -> None:
    """Copy folders to all nodes that neither share them nor have this copy; all nodes at the same time.

    Raises ServerUnreachable naming the node that could not be copied to.
    """
    digests = [_digest(folder) for folder in folders]
    with ExitStack() as stack:
        # One file for all nodes, until the last copy is made: tar fails on a folder that changes meanwhile.
        marks = [
            stack.enter_context(tempfile.NamedTemporaryFile(prefix=".cm4vllm-shared-", dir=folder)).name
            for folder in folders
        ]
        stack.enter_context(step(f"copying the installation to {len(launcher.nodes)} nodes by {launcher.name}"))
        done = _on_all(launcher, lambda node: _copy_missing(launcher, node, folders, marks, digests), most=16)
        for node, copied in done.items():
            say(f"{node}: copied {', '.join(map(str, copied))}" if copied else f"{node}: has all of it")


def _copy_missing(
    launcher: Launcher, node: str, folders: Sequence[Path], marks: Sequence[str], digests: Sequence[str]
) -> list[Path]:
    """Copy what a node lacks, and return it; a node that sees the file of `marks` in a folder shares the folder."""
    copied = []
    for folder, mark, digest in zip(folders, marks, digests, strict=True):
        stamp = folder.with_name(f".{folder.name}.cm4vllm-copy")
        if _ask(launcher, node, ["sh", "-c", _ASK, "sh", mark, str(stamp)]) in (_SHARED, digest):
            continue
        _send(launcher, node, folder)
        _ask(launcher, node, ["sh", "-c", 'echo "$1" > "$2"', "sh", digest, str(stamp)])
        copied.append(folder)
    return copied


def _ask(launcher: Launcher, node: str, program: Sequence[str]) -> str:
    failure, output = node_output(launcher, node, program, _ANSWER_S)
    lines = output.splitlines()
    if failure:
        raise _node_failure(launcher, node, "\n".join(lines[-6:]) or failure)
    return lines[-1].strip() if lines else ""


def _send(launcher: Launcher, node: str, folder: Path) -> None:
    names = ["--exclude=.cm4vllm-shared-*", "--exclude=__pycache__", str(folder.relative_to("/"))]
    with subprocess.Popen(["tar", "-C", "/", "-cf", "-", *names], stdout=subprocess.PIPE) as archive:
        done = subprocess.run(
            launcher.words(node, ["tar", "-C", "/", "-xf", "-"]),
            stdin=archive.stdout,
            capture_output=True,
            timeout=_COPY_S,
            check=False,
        )
    if done.returncode or archive.returncode:
        raise _node_failure(launcher, node, "\n".join(done.stderr.decode(errors="replace").splitlines()[-6:]))


def _node_failure(launcher: Launcher, node: str, cause: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"the installation cannot be copied to the node {node}",
        cause=f"{launcher.name}: {cause}",
        remedy="see that the node can be reached without a password, has tar, and lets you write at the same paths; or "
        "share the folders by a file system",
    )


def _digest(folder: Path) -> str:
    """Return a digest of the names, sizes and times of a folder's files: a copy keeps them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".cm4vllm-shared-"):
            state = path.stat()
            digest.update(f"{path.relative_to(folder)}\0{state.st_size}\0{int(state.st_mtime)}\0".encode())
    return digest.hexdigest()


def _within(folder: Path, others: Sequence[Path]) -> bool:
    return any(folder.is_relative_to(other) for other in others)

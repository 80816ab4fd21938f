"""The processes of one server on several nodes: each has a supervisor there, which ends it with its standard input.

The log of each node and the states that its supervisor reports are files of this machine, which the launcher's command
writes: nothing has to be shared by a file system to be read here.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.common.errors import ServerUnreachable
from cm4vllm.common.programs.processes import exit_in_words, last_lines, run
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


def node_program(module: str, *words: str) -> list[str]:
    """Return the command of a module of this package on a node, where it has the same path as on this machine."""
    source = str(Path(__file__).resolve().parents[3])
    return ["env", f"PYTHONPATH={source}", "PYTHONSAFEPATH=1", sys.executable, "-P", "-m", module, *words]


def require_reachable(launcher: Launcher) -> None:
    """See that each node runs a program. Raises ServerUnreachable naming the first that does not, UsageError."""
    with ThreadPoolExecutor(min(64, len(launcher.nodes)), "nodes") as threads:
        done = threads.map(lambda node: node_output(launcher, node, ["true"], _REACH_S), launcher.nodes)
        for node, (status, output) in zip(launcher.nodes, done, strict=True):
            if status:
                raise ServerUnreachable(
                    f"the node {node} in --nodes cannot be reached",
                    cause="\n".join([f"{launcher.name}: {status}", *output.splitlines()[-6:]]),
                    remedy=f"see that this works without a password: {' '.join(launcher.words(node, ['true']))}",
                )


def node_reports(launcher: Launcher, python: Path, model: str) -> dict[str, NodeReport]:
    """Return the report of each node on itself, by its name; all are asked at the same time.

    Raises ServerUnreachable naming the node that gave none, with the last lines of its launcher.
    """
    program = node_program("cm4vllm.serving.clusters.node_report", str(python), model)
    with ThreadPoolExecutor(min(64, len(launcher.nodes)), "reports") as threads:
        reports = threads.map(lambda node: _report(launcher, node, program), launcher.nodes)
        return dict(zip(launcher.nodes, reports, strict=True))


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
    return msgspec.json.decode(report, type=NodeReport)


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
    if runs and not _state(node).get("reason"):
        return None
    try:
        return time.time() - Path(node.events).stat().st_mtime
    except OSError:
        return 0.0


def node_cause(ended: Sequence[NodeRecord]) -> str:
    """Return the cause of a server's end, given its nodes that ended: the name of the first failing node, and its log.

    A node whose log only says that its peers are gone is not the cause where another one is known. Of nodes that ended
    at the same time it is the first.
    """

    def order(node: NodeRecord) -> tuple[bool, float]:
        try:
            noted = Path(node.events).stat().st_mtime
        except OSError:
            noted = time.time()
        return bool(_CONSEQUENCE.search(telling_lines(Path(node.log)))), noted

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
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "supervisor" in value:
            return value
    return {}

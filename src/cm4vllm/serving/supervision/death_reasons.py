"""The reason why a server that was started here has ended: its supervisor's state, and lines of its log."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.records.server import NodeRecord, ServerRecord
from cm4vllm.serving.clusters.node_processes import ended_since, node_cause
from cm4vllm.serving.supervision.logs import telling_lines
from cm4vllm.serving.supervision.own_supervisors import runs
from cm4vllm.serving.supervisor import end_in_words

#: The names of the log of a server and of the state of its supervisor, in the server's folder.
LOG_FILE = "server.log"
STATE_FILE = "supervisor.json"
#: Seconds that the rest of a server that has ended gets to write the cause into its log.
SAYING_S = 0.5
#: Seconds between two checks whether a server has ended.
_LOOK_S = 0.1


def death_reason(record: ServerRecord) -> str | None:
    """Return why a server started here has ended, with lines of its log; None while it runs or was not started here.

    The supervisor notes the end of the server and ends its remaining processes. Of several servers the first is meant.
    """
    if record.owned and record.nodes:
        if (reason := reason_on_nodes(record.nodes)) is not None:
            return reason
    elif record.owned and record.supervisor_pid is not None:
        folder = Path(record.log).parent
        if not runs(record.supervisor_pid) or _noted_since(folder) > SAYING_S:
            return reason_in(folder)
    return next(
        (
            f"the server at {member.endpoint}: {reason}"
            for member in record.members
            if (reason := death_reason(member)) is not None
        ),
        None,
    )


def awaited_reason(alive: Callable[[], str | None], timeout_s: float) -> str | None:
    """Return why a server has ended by `alive`, None where it is up after `timeout_s`.

    Its clients may see it end first: its supervisor has to see the last of its processes end.
    """
    deadline = time.monotonic() + timeout_s
    while (reason := alive()) is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return reason


def reason_on_nodes(nodes: Sequence[NodeRecord]) -> str | None:
    """Return why a server over several nodes ends, None while all are up; a peer gets time to say the cause first."""
    since = {node.name: ended_since(node, runs=runs(node.supervisor_pid or 0)) for node in nodes}
    ended = [node for node in nodes if since[node.name] is not None]
    if not ended or max(since[node.name] or 0.0 for node in ended) < SAYING_S:
        return None
    return node_cause(ended)


def reason_in(folder: Path) -> str:
    """Return why the server in a folder has ended: as its supervisor noted, or that the supervisor was killed."""
    how = end_in_words(object_of(folder / STATE_FILE), "its supervisor was killed")
    return f"{how}\n{telling_lines(folder / LOG_FILE)}".strip()


def _noted_since(folder: Path) -> float:
    """Return for how many seconds the supervisor has known why the server ends, 0 while it does not."""
    state = object_of(folder / STATE_FILE)
    noted_at_s = state.get("noted_at_s")  # by the monotonic clock, which all processes share
    return time.monotonic() - noted_at_s if state.get("reason") and isinstance(noted_at_s, float) else 0.0

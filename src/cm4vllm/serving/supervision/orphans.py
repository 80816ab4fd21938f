"""Processes of our servers whose supervisor is gone: found by the supervisor's pipe in their environment, and ended.

The kernel ends most of them already (end_with_supervisor/). This is for one that has not opened the pipe, and would
keep memory that the next server needs. A process of another program does not have the pipe in its environment. One
whose supervisor runs is not touched, nor one of another PID namespace, as of a container: the job there ends its own.
"""

import contextlib
import os
import re
import select
import signal
from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.serving.supervision.ipc_files import remove_abandoned
from cm4vllm.serving.supervisor import SUPERVISOR_PIPE, process_ids

#: The words of a supervisor's command line by which every version of cm4vllm knows it: another name would let a version
#: end the servers of another one.
_MODULE = b"cm4vllm.serving.supervisor"
_MARK = re.compile(rb"(?:^|\0)" + SUPERVISOR_PIPE.encode() + rb"=/proc/(\d+)/fd/\d+(?:\0|$)")
#: A killed process of many GiB takes a while to be gone.
_GONE_S = 10.0


def end_orphans() -> list[str]:
    """Kill all processes whose supervisor is gone, and return what they were; what those left behind is removed."""
    ended = []
    for pid in filter(_is_orphan, process_ids()):
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                title = (Path("/proc") / str(pid) / "comm").read_text(encoding="utf-8").strip()
                if _is_orphan(pid):  # checked again: the number may belong to another process by now
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    select.select([process], [], [], _GONE_S)
                    ended.append(f"{title} ({pid})")
            finally:
                os.close(process)
    remove_abandoned()
    return ended


def supervised_folder(pid: int) -> Path | None:
    """Return the folder of the server of a supervisor of this user, None for any other process.

    Anybody can write a command line, but this user alone the state of a server, in which its supervisor has its number.
    """
    if (spec := supervisor_spec(pid)) is None:
        return None
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return None
        state = Path(str(object_of(spec).get("state") or os.devnull))
        is_own = spec.stat().st_uid == state.stat().st_uid == os.geteuid()
    except (OSError, ValueError):
        return None
    return state.parent if is_own and object_of(state).get("supervisor") == pid else None


def supervisor_spec(pid: int) -> Path | None:
    """Return the specification that the command line of a supervisor has, None for one that is no supervisor's."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if _MODULE in words[:-1]:
            return Path(os.fsdecode(words[words.index(_MODULE) + 1]))
    return None


def _is_orphan(pid: int) -> bool:
    try:
        if Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return False  # in its container the supervisor's number means another process than here
        mark = _MARK.search(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:  # it ended, or is another user's
        return False
    return mark is not None and supervisor_spec(int(mark[1])) is None

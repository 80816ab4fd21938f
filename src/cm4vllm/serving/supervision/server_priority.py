"""The priority of a server on processors that it shares with its client."""

import contextlib
import os
import time
from pathlib import Path

from cm4vllm.common.progress import warn
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.supervision.orphans import supervised_folder
from cm4vllm.serving.supervisor import descendants

#: Until the kernel takes the next niceness of a session, also where other programs of the user set some.
_TRIES, _PAUSE_S = 30, 0.11


def give_way(record: ServerRecord) -> None:
    """Set the processes of our servers to the niceness of their records, added to our own; other servers keep theirs.

    Where Linux makes a scheduling group of each session (CONFIG_SCHED_AUTOGROUP), a process's own niceness counts only
    among those of its session, and its session's niceness counts between sessions (sched(7)). Only root may lower that
    of processes again, anybody that of a session: where there are none, the user is warned.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for niceness, supervisor in _supervised(record):
        for group in _process_groups(supervisor) if supervised_folder(supervisor) is not None else []:
            _set_session(group, niceness)
            try:
                os.setpriority(os.PRIO_PGRP, group, min(19, own + niceness))
            except PermissionError:
                if not Path(f"/proc/{group}/autogroup").exists():
                    warn(
                        f"the server keeps the niceness {os.getpriority(os.PRIO_PGRP, group)} that it had in another "
                        "run: only root may lower it. Restart the server to change it"
                    )
            except OSError:
                pass


def _set_session(process: int, niceness: int) -> None:
    """Set the niceness of the session of a process, where the kernel makes a scheduling group of each session.

    The kernel takes one such value from a user every 0.1 s, for all sessions (proc_sched_autogroup_set_nice in
    kernel/sched/autogroup.c), and answers EAGAIN to others. So what was written is read again.
    """
    group = Path(f"/proc/{process}/autogroup")
    for _ in range(_TRIES):
        try:
            with contextlib.suppress(BlockingIOError):
                group.write_text(str(niceness), encoding="utf-8")
            if group.read_text(encoding="utf-8").split()[-1:] == [str(niceness)]:
                return
        except OSError:
            return
        time.sleep(_PAUSE_S)
    warn(f"the session of the server's process {process} keeps its priority: the kernel took no other one")


def _process_groups(supervisor: int) -> list[int]:
    """Return the process groups of a supervisor's descendants: one, and those of a container of podman."""
    groups = set()
    for pid in descendants(supervisor):
        with contextlib.suppress(ProcessLookupError):
            groups.add(os.getpgid(pid))
    return sorted(groups)


def _supervised(record: ServerRecord) -> list[tuple[int, int]]:
    own = [(record.niceness, record.supervisor_pid)] if record.owned and record.supervisor_pid is not None else []
    return own + [process for member in record.members for process in _supervised(member)]

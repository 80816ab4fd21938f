"""The supervisors of servers and of Ray: those of this process, which end with it, and those found on this machine.

Processes of our servers whose supervisor is gone are found by the supervisor's pipe in their environment, and ended.
The kernel ends most of them already (end_with_supervisor/). This is for one that has not opened the pipe, and would
keep memory that the next server needs. A process of another program does not have the pipe in its environment. One
whose supervisor runs is not touched, nor one of another PID namespace, as of a container: the job there ends its own.
"""

import atexit
import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.progress import say, warn
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.supervision.ipc_files import remove_abandoned
from cm4vllm.serving.supervisor import READY, SUPERVISOR_PIPE, descendants, parent_of, process_ids

#: A server may take this long after SIGTERM before it is killed; vLLM needs about 1 s when idle, Ray a few seconds.
GRACE_S = 10.0
_LOOK_S = 0.05
#: Seconds between two checks of a server that runs in the foreground.
_FOREGROUND_S = 0.5

#: By process ID. The pipe that keeps a server alive is open as long as its entry is here.
_owned: dict[int, subprocess.Popen[bytes]] = {}


def own(supervisor: subprocess.Popen[bytes]) -> None:
    """Keep a supervisor and its server alive until `end_supervisors`, or the end of this process."""
    _owned[supervisor.pid] = supervisor


def is_owned(pid: int) -> bool:
    """Return True if this process started the supervisor and has not ended it."""
    return pid in _owned


def say_ready(pid: int) -> None:
    """Note for a supervisor of this process that its server has served a completion."""
    if (pipe := _owned[pid].stdin) is not None:
        with contextlib.suppress(OSError):
            os.write(pipe.fileno(), READY)


def end_supervisors(supervisors: Iterable[int]) -> None:
    """Have supervisors end their servers, all at once, and wait for them; kill those that do not end in time."""
    ending = dict[int, subprocess.Popen[bytes] | None]()
    for supervisor in supervisors:
        process = _owned.pop(supervisor, None)
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        elif supervised_folder(supervisor) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)
        elif process is None:  # it has ended, and the number may be another process's
            continue
        ending[supervisor] = process
    deadline = time.monotonic() + GRACE_S + 5
    for supervisor, process in ending.items():
        _see_end(supervisor, process, deadline)


def _see_end(supervisor: int, process: subprocess.Popen[bytes] | None, deadline: float) -> None:
    while time.monotonic() < deadline:
        if (process.poll() is not None) if process is not None else not runs(supervisor):
            return
        time.sleep(_LOOK_S)
    for pid in [*descendants(supervisor), supervisor] if process is not None or supervised_folder(supervisor) else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process is not None:
        process.wait()


def runs(pid: int) -> bool:
    """Return True while a supervisor is up, also one that another process started."""
    owned = _owned.get(pid)
    return owned.poll() is None if owned is not None else parent_of(pid) is not None


def wait_for_end(ended: Callable[[], str | None], stopping: str) -> str | None:
    """Wait until `ended` returns a reason, and return it; None after Ctrl-C, when the user is shown `stopping`."""
    try:
        while (reason := ended()) is None:
            time.sleep(_FOREGROUND_S)
        return reason
    except KeyboardInterrupt as stop:
        if stop.args and stop.args != (signal.SIGINT,):
            raise  # another signal, which the engine raises with its number
        say(stopping)
        return None


@atexit.register
def _end_all() -> None:
    if _owned:  # a signal would leave servers behind that end within GRACE_S
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
    end_supervisors(list(_owned))


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


#: Until the kernel takes the next niceness of a session, also where other programs of the user set some.
_TRIES, _PAUSE_S = 30, 0.11


def give_way(record: ServerRecord) -> None:
    """Set the processes of our servers to the niceness of their records, added to our own; other servers keep theirs.

    Server and client share the processors. Where Linux makes a scheduling group of each session
    (CONFIG_SCHED_AUTOGROUP), a process's own niceness counts only among those of its session, and its session's
    niceness counts between sessions (sched(7)). Only root may lower that of processes again, anybody that of a
    session: where there are none, the user is warned.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for niceness, supervisor in _supervisors_of(record):
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


def _supervisors_of(record: ServerRecord) -> list[tuple[int, int]]:
    own = [(record.niceness, record.supervisor_pid)] if record.owned and record.supervisor_pid is not None else []
    return own + [process for member in record.members for process in _supervisors_of(member)]

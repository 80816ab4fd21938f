"""The supervisors of servers and of Ray that this process has started. All end with this process."""

import atexit
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable

from cm4vllm.common.progress import say
from cm4vllm.serving.supervision.orphans import supervised_folder
from cm4vllm.serving.supervisor import READY, descendants, parent_of

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

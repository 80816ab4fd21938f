"""The process that owns a server: `python -m cm4vllm.serving.supervisor LOG -- COMMAND...`.

It starts COMMAND in a session of its own with LOG as its output, and ends it with all its descendants as soon as
standard input reaches its end (whoever held the other end is gone, by kill -9 too), SIGTERM or SIGINT comes, or the
command ends. Descendants that lose their parent are adopted by this process, so that none escapes.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from cm4vllm.common.processes import die_with_parent, exit_in_words

__all__ = ["ENDED", "main"]

#: How a line that the supervisor adds to the log begins.
ENDED = "[supervisor] the server ended by itself:"

#: Seconds between SIGTERM and SIGKILL.
GRACE_S = 10.0

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(argv: Sequence[str]) -> int:
    """Supervise; return 0 when the server was ended on purpose, 1 when it ended by itself."""
    log, command = Path(argv[1]), list(argv[3:])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda received, frame: None)
    with log.open("ab") as output:
        # Safe: this process has one thread. The server's first process dies even if this one is killed.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                  start_new_session=True, preexec_fn=die_with_parent)  # noqa: PLW1509
    status = _wait(server.pid, wake, asked)
    _end_all()
    if status is None:
        return 0
    with log.open("a") as output:
        output.write(f"{ENDED} {exit_in_words(status)}\n")
    return 1


def _wait(server: int, wake: int, asked: list[int]) -> int | None:
    """Wait until the server ended (its return code) or is to be ended (None)."""
    stdin = sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([stdin, wake], [], [])
        if wake in ready:
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                pass
        for pid, status in _reaped():
            if pid == server:
                return status
        if asked or (stdin in ready and not os.read(stdin, 4096)):
            return None


def _reaped() -> list[tuple[int, int]]:
    """Take in all children that ended: (process, return code as subprocess gives it)."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def _end_all() -> None:
    """End every descendant: SIGTERM, and after the grace period SIGKILL, until none is left."""
    myself = psutil.Process()
    kill_at = time.monotonic() + GRACE_S
    told: set[int] = set()
    while True:
        _reaped()
        left = [child for child in myself.children(recursive=True) if child.pid != myself.pid]
        if not left:
            return
        late = time.monotonic() >= kill_at
        for child in left:
            if late or child.pid not in told:
                told.add(child.pid)
                try:
                    child.send_signal(signal.SIGKILL if late else signal.SIGTERM)
                except psutil.NoSuchProcess:
                    pass
        time.sleep(0.05)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

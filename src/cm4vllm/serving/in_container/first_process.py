"""The first process of a server's container: runs the server's program, and ends all when the supervisor is gone.

    python first_process.py PIPE WORD...

PIPE is a named pipe whose only writer is the supervisor, outside of the container. The kernel closes it however the
supervisor ends; then this process does, and with the first process of a container all others are killed. It passes
SIGTERM and SIGINT on to the program, reaps processes whose parents ended, and ends with the program's status. It runs
with the Python of the image and imports nothing of the package.
"""

import contextlib
import os
import select
import signal
import sys
from types import FrameType

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOST = 97


def main(pipe: str, words: list[str]) -> int:
    """Run the program to its end, or until the pipe has no writer any more; return its status."""
    try:
        supervisor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        print(f"the supervisor of this container cannot be watched: {error}", file=sys.stderr, flush=True)
        return _LOST
    wake, wakeup = os.pipe()
    for end in (wake, wakeup):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _noted)
    # A signal that comes before its handler is installed waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    program = _start(words)

    def pass_on(signum: int, _frame: "FrameType | None") -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signum)

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while True:
        status = _reap(program)
        if status is not None:
            return status
        ready, _, _ = select.select([supervisor, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        if supervisor in ready and os.read(supervisor, 1) == b"":  # nothing is ever written to it
            print("the supervisor of this container has ended", file=sys.stderr, flush=True)
            os.killpg(program, signal.SIGKILL)
            return _LOST


def _noted(_signum: int, _frame: "FrameType | None") -> None:
    """Let the signal wake select()."""


def _start(words: list[str]) -> int:
    """Start the program in a session of its own, and return its process ID."""
    program = os.fork()
    if program:
        return program
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.execvp(words[0], words)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{words[0]} cannot be started in the container: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def _reap(program: int) -> "int | None":
    """Reap all children that have ended; return the program's status once it has, as a shell gives it."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == program:
            ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Child processes: run with their output kept, ended with their parent, and their exit status described."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Completed:
    """A command that ended: its exit status (negative: the signal) and what it printed, both streams in order."""

    argv: tuple[str, ...]
    status: int
    output: str

    @property
    def ok(self) -> bool:
        """Return True if the process ended with status 0."""
        return self.status == 0

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.output.splitlines()[-lines:])


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    log: Path | None = None,
    timeout_s: float | None = None,
) -> Completed:
    """Run a command to its end, without a shell and without standard input, and keep what it prints.

    `env` is added to the present environment, after the variables `without` were taken out of it. With `log`, the
    output goes to that file as it comes and its last 200 lines are returned. Raises FileNotFoundError when the program
    does not exist, subprocess.TimeoutExpired; then, as after a signal, the command has ended with all that it started.
    """
    words = [str(word) for word in argv]
    kept = {name: value for name, value in os.environ.items() if name not in without}
    full_env = safe_environment({**kept, **(env or {})})
    if log is None:
        status, output = _run_to_end(words, cwd, full_env, subprocess.PIPE, timeout_s)
        return Completed(tuple(words), status, output.decode(errors="replace"))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        status, _ = _run_to_end(words, cwd, full_env, file, timeout_s)
    return Completed(tuple(words), status, last_lines(log, 200))


def safe_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no Python looks for modules in the present folder, nor does one that it starts.

    `-P` on a command line holds for that interpreter and for processes of multiprocessing, not for others that it
    starts. An empty or relative part of PYTHONPATH would name the present folder in spite of it.
    """
    path = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part.startswith("/")]
    rest = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    return {**rest, **({"PYTHONPATH": os.pathsep.join(path)} if path else {}), "PYTHONSAFEPATH": "1"}


@contextlib.contextmanager
def spawned_safely() -> Iterator[SpawnContext]:
    """Yield the context of multiprocessing for processes without this one's threads and locks.

    What it starts is found by an environment variable in this block: `cm` is started without -P.
    """
    import multiprocessing  # few commands start such processes

    before = dict(os.environ)
    os.environ.update(safe_environment(before))
    try:
        yield multiprocessing.get_context("spawn")
    finally:
        os.environ.pop("PYTHONSAFEPATH")
        os.environ.update({name: before[name] for name in ("PYTHONPATH", "PYTHONSAFEPATH") if name in before})


def _run_to_end(
    words: Sequence[str], cwd: Path | None, env: Mapping[str, str], output: int | IO[bytes], timeout_s: float | None
) -> tuple[int, bytes]:
    """Run a command to its end; where this is left before, by a signal or after `timeout_s`, all that it started ends.

    It has a process group of its own: pip with --python, for one, works in a child, which would outlive it.
    """
    with subprocess.Popen(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, printed or b""


def last_lines(path: Path, count: int = 20) -> str:
    """Return the last `count` lines of a text file, or an empty string when it cannot be read."""
    try:
        with path.open(errors="replace", encoding="utf-8") as file:
            return "".join(collections.deque(file, maxlen=count)).rstrip("\n")
    except OSError:
        return ""


def exit_in_words(status: int) -> str:
    """Return the meaning of a subprocess's return code: 'exit status 7' or 'killed by SIGKILL'."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def die_with_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when the thread that started it ends.

    To be called first thing in a child. Nothing happens where the kernel is not Linux.
    """
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # the parent ended before the kernel had the request
        os.kill(os.getpid(), signum)


def raise_open_files() -> None:
    """Let this process, and all that it starts, open as many files as the system allows: up to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""run.sh: the shell part of a script. Its exit status is reported as it is; its processes end with the run."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from cm4vllm.common.errors import NativeCommandError, RecipeError

if TYPE_CHECKING:
    import subprocess


#: Seconds that a command has to end after SIGTERM, before SIGKILL.
GRACE_S = 5.0
_TAIL_LINES = 20


def find_native(folder: str, name: str, env: Mapping[str, Any]) -> str | None:
    """Return the shell file for this machine: the most special `<name>-<flavor>-<version>-<platform>.sh` there is.

    Raises RecipeError when a `name` other than the usual one is asked for and missing.
    """
    if os.path.basename(name) != name:
        raise RecipeError(
            f"script_name {name!r} is not the name of a file", cause="it points outside the script's folder"
        )
    flavor, version, platform = (
        str(env.get(f"CM_HOST_{key}") or "") for key in ("OS_FLAVOR", "OS_VERSION", "PLATFORM_FLAVOR")
    )
    for parts in [(flavor, version, platform), (flavor, platform), (flavor, version), (flavor,), (platform,), ()]:
        path = os.path.join(folder, f"{'-'.join((name or 'run', *parts))}.sh")
        if all(parts) and os.path.isfile(path):
            return path
    if name:
        raise RecipeError(f"{path} is missing", cause=f"the script_name {name!r} is asked for")
    return None


class _Output:
    """Output of a command: passed on line by line, kept in a log, and its last lines remembered."""

    def __init__(self, stream: IO[str], log: str, clean: Callable[[str], str]) -> None:
        """Take the stream that shows the output, the path of the log of a failure, and what removes secrets."""
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self.log = log
        #: The reason why there is no log, or only a part of it.
        self.log_problem = ""
        self._stream: IO[str] | None = stream
        self._clean = clean

    def follow(self, pipe: IO[str]) -> None:
        """Read to the end even if log or terminal fail: a pipe without a reader would kill the command."""
        with pipe, suppress(OSError):
            log: IO[str] | None = None
            for line in pipe:
                text = self._clean(line)
                self.tail.append(text.rstrip("\n"))
                self._pass_on(text)
                if not self.log_problem:
                    log = self._append_to_log(text, log)
            if log is not None:
                log.close()

    def _append_to_log(self, text: str, log: IO[str] | None) -> IO[str] | None:
        """Write a text to the log, which is opened by its first text; return it, None where it cannot be written."""
        try:
            if log is None:
                os.makedirs(os.path.dirname(self.log), exist_ok=True)
                log = open(self.log, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 by the caller
            log.write(text)
        except OSError as error:
            self.log_problem = str(error)
        return log

    def _pass_on(self, text: str) -> None:
        """Show a text on the stream, until its reader has gone."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # the reader has gone, or the stream is closed
                self._stream = None


def run_native(
    script: str,
    env: Mapping[str, str],
    folder: str,
    *,
    title: str,
    log: str,
    guardian: Guardian,
    prefix: Sequence[str] = (),
    output: IO[str] | None = None,
    clean: Callable[[str], str] = str,
) -> None:
    """Run a shell file, sourced by bash in `folder` with exactly `env`, and pass on what it prints, cleaned.

    `prefix` are shell lines that come before it. It has no standard input. Raises NativeCommandError with the exit
    status, the command, its last lines and `log`, which is kept only then. When this thread is interrupted, or this
    process killed, the command and all it started are ended.
    """
    try:
        process = _start(script, env, folder, guardian, prefix)
    except OSError as error:
        raise NativeCommandError(
            f"{os.path.basename(script)} of {title} cannot be started",
            cause=str(error),
            remedy=_start_remedy(error, env),
        ) from error
    assert process.stdout is not None  # noqa: S101 it is a pipe
    printed = _Output(output or sys.stdout, log, clean)
    reader = threading.Thread(target=printed.follow, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        # A process that the script left running may hold the pipe open; its later output is not the script's.
        reader.join(timeout=1.0)
        guardian.ended(process.pid)
    if status:
        # bash reports that a command was killed by 128 + the signal.
        killed = status - 128 in signal.valid_signals()
        raise _failure(script, title, folder, 128 - status if killed else status, printed)
    with suppress(OSError):
        os.unlink(log)


def _start(
    script: str, env: Mapping[str, str], folder: str, guardian: Guardian, prefix: Sequence[str]
) -> subprocess.Popen[str]:
    """Start bash on a shell file, in a process group of its own that the guardian knows. Raises OSError."""
    import subprocess  # many scripts have no shell file

    guarding = guardian.start()
    return subprocess.Popen(
        ["bash", "-c", "\n".join([guardian.registering_line(guarding), *prefix, '. "$0"']), script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        pass_fds=(guarding,),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        encoding="utf-8",
        errors="replace",
    )


def _start_remedy(error: OSError, env: Mapping[str, str]) -> str:
    if error.errno == errno.E2BIG:
        longest = max(env, key=lambda key: len(env[key]))
        return f"the environment is too large: {longest} has {len(env[longest])} characters; pass it in a file"
    return "install bash, or put it on PATH" if error.filename == "bash" else ""


def _failure(script: str, title: str, folder: str, status: int, printed: _Output) -> NativeCommandError:
    """Return the error for a shell file that ended with a status other than 0: its last lines and its log."""
    from cm4vllm.common.programs.processes import exit_in_words

    tail = "\n".join(printed.tail)
    where = f"log:     {printed.log}" if printed.tail else "it printed no output"
    if printed.log_problem:
        where = f"no log:  {printed.log_problem}"
    return NativeCommandError(
        f"{os.path.basename(script)} of {title} ended with {exit_in_words(status)}",
        cause="\n".join(filter(None, [f"command: bash {script}", f"folder:  {folder}", where, tail])),
        remedy=likely_remedy(status, tail) or f"read the log and {script}, or run it again with -v",
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End a shell file and all processes of its group: SIGTERM, then SIGKILL."""
    import subprocess

    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
            process.wait(timeout=GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


_PROGRAM = """
trap '' HUP INT TERM
live=
while read -r what group; do
  if [ "$what" = began ]; then live="$live $group "; else live="${live/ $group /}"; fi
done
for group in $live; do kill -KILL -- "-$group"; done
"""


class Guardian:
    """The process groups under way; they die with this process, however it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """Start the guarding process if it does not run. Returns the descriptor by which a shell registers with it.

        Raises OSError when there is no bash.
        """
        import subprocess  # few runs of what is cached start anything

        if self._process is None:
            self._process = subprocess.Popen(
                ["bash", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                process_group=0,
            )
        assert self._process.stdin is not None  # noqa: S101 it is a pipe
        return self._process.stdin.fileno()

    @staticmethod
    def registering_line(descriptor: int) -> str:
        """Return the line by which a shell that leads its process group has it guarded from now on.

        The shell itself reports to the guarding process: a report of this process could be lost to a signal or a kill
        right after the shell's start. Until it has reported, the shell holds the pipe open, so that the guarding
        process waits even when this process has gone.
        """
        return f"trap '' PIPE; echo began $$ >&{descriptor}; exec {descriptor}>&-; trap - PIPE"

    def ended(self, group: int) -> None:
        """No longer guard a process group."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._process.stdin.fileno(), f"ended {group}\n".encode())

    def close(self) -> None:
        """End the guarding process."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()


# The first match is reported; more special patterns stand before more general ones.
_SIGNS: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Disk quota exceeded", "free disk space where this script works, and run it again"),
    (
        r"Could not resolve host|Temporary failure in name resolution|Name or service not known|Network is unreachable"
        r"|Failed to connect to|Connection timed out|unable to access 'https?:",
        "the network did not answer: check the connection and the proxy settings (http_proxy, https_proxy)",
    ),
    (
        r"CONNECT tunnel failed|Tunnel connection failed|Proxy Authentication Required|Cannot connect to proxy",
        "the proxy that https_proxy or HTTPS_PROXY names did not let the request through: correct the variable",
    ),
    (
        r"401 Unauthorized|403 Forbidden|gated repo|Authentication failed|could not read Username",
        "access was refused: accept the licence of what is downloaded, and give a token by HF_TOKEN or CM_GH_TOKEN",
    ),
    (r"externally-managed-environment", "run in a virtual environment: this Python belongs to the system"),
    (
        r"No module named '?([\w.]+)",
        r"the package \1 is missing in this Python: install it with pip where the script "
        r"runs",
    ),
    (r"(?:^|[:\s])([\w.+/-]+): (?:command )?not found", r"install \1, or put it on PATH"),
    (r"sudo: .*password is required", "allow sudo without a password, or pass --skip_system_deps and install by hand"),
    (r"[Pp]ermission denied", "check who owns the files that the last lines name"),
    (
        r"CUDA out of memory|std::bad_alloc|Cannot allocate memory|MemoryError",
        "there was not enough memory: choose a smaller batch or model, or end other programs",
    ),
    (r"No such file or directory", "check that the path in the last lines exists, and that the script made it"),
)
_STATUSES = {
    -9: "the system killed it, in most cases for lack of memory (see dmesg): end other programs or use a smaller "
    "setting",
    126: "give the file that it calls the permission to be executed",
    127: "install the command that the last lines name, or put it on PATH",
}


def likely_remedy(status: int, tail: str) -> str:
    """Return one likely remedy; empty when nothing known fits. `status` is negative for a signal."""
    if status == -9:
        return _STATUSES[status]
    for sign, remedy in _SIGNS:
        match = re.search(sign, tail, re.MULTILINE)
        if match:
            return match.expand(remedy)
    return _STATUSES.get(status, "")

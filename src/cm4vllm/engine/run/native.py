"""run.sh: the shell part of a script, with an environment that arrives unchanged and an exit status told as it is."""

from __future__ import annotations

import collections
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from cm4vllm.common.errors import NativeCommandError, RecipeError, UsageError
from cm4vllm.engine.run.shell_text import expand

if TYPE_CHECKING:
    import subprocess

    from cm4vllm.engine.run.guardian import Guardian

__all__ = ["find_native", "process_environment", "read_assignments", "run_native"]

#: Seconds that a command has to end after SIGTERM, before SIGKILL.
GRACE_S = 5.0
_TAIL_LINES = 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def find_native(folder: str, name: str, env: Mapping[str, Any]) -> str | None:
    """Return the shell file for this machine: the most special `<name>-<flavor>-<version>-<platform>.sh` there is.

    Raises RecipeError when a `name` other than the usual one is asked for and missing.
    """
    if os.path.basename(name) != name:
        raise RecipeError(f"script_name {name!r} is not the name of a file",
                          cause="it leads out of the script's folder")
    flavor, version, platform = (str(env.get(f"CM_HOST_{key}") or "")
                                 for key in ("OS_FLAVOR", "OS_VERSION", "PLATFORM_FLAVOR"))
    suffixes = [(flavor, version, platform), (flavor, platform), (flavor, version), (flavor,), (platform,)]
    for parts in suffixes:
        if all(parts) and os.path.isfile(path := os.path.join(folder, f"{'-'.join((name or 'run', *parts))}.sh")):
            return path
    path = os.path.join(folder, f"{name or 'run'}.sh")
    if os.path.isfile(path):
        return path
    if name:
        raise RecipeError(f"{path} is missing", cause=f"the script_name {name!r} is asked for")
    return None


def process_environment(env: Mapping[str, Any], shell_keys: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of a command: that of this process, with `env` on top, each value exactly as it is.

    Lists are joined with `:`; `+KEY` goes before what KEY holds, joined with `:` (`+ KEY`: with the character that
    follows the plus). The values of `shell_keys` are texts for double quotes and become what a shell makes of them;
    one may refer to those before it in the order of the alphabet. Raises UsageError for a value with a zero byte, which
    no process can be given.
    """
    full = dict(os.environ)
    for key, value in env.items():
        if _NAME.fullmatch(key):
            text = ":".join(map(str, value)) if isinstance(value, list) else str(value)
            if "\0" in text:
                raise UsageError(f"the value of {key} holds a zero byte", cause="no program can be given such a value")
            # A shell text waits for what it refers to; until then a reference to itself means the value outside.
            if key not in shell_keys:
                full[key] = text
    for key in sorted(shell_keys):
        if not key.startswith("+") and key in env:
            full[key] = expand(str(env[key]), full)
    for key in sorted(env):
        if key.startswith("+"):
            _prepend(full, key, env[key], is_shell_text=key in shell_keys)
    return full


def _prepend(full: dict[str, str], key: str, value: Any, *, is_shell_text: bool) -> None:
    name, separator = key[1:], ":"
    if name and not _NAME.match(name):
        separator, name = name[0], name[1:]
    items = [str(item) for item in (value if isinstance(value, list) else [value])]
    if is_shell_text:
        items = [expand(item, full) for item in items]
    full[name] = separator.join([*items, *([full[name]] if full.get(name) else [])])


def read_assignments(path: str) -> dict[str, str]:
    """Return the KEY=VALUE lines of a file; only the first `=` of a line separates. A missing file holds none."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode(errors="surrogateescape")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key.strip(): value.strip(" \t\r") for key, sign, value in pairs if sign and key.strip()}


class _Output:
    """What a command prints: passed on line by line, kept in a log, and its last lines remembered."""

    def __init__(self, stream: IO[str], log: str, clean: Callable[[str], str]) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self.log = log
        #: Why there is no log, or only a part of it.
        self.log_problem = ""
        self._stream: IO[str] | None = stream
        self._clean = clean

    def follow(self, pipe: IO[str]) -> None:
        """Read to the end whatever becomes of log and terminal: a pipe that nobody reads would kill the command."""
        with pipe, suppress(OSError):
            log: IO[str] | None = None
            for line in pipe:
                text = self._clean(line)
                self.tail.append(text.rstrip("\n"))
                self._pass_on(text)
                if not self.log_problem:
                    log = self._logged(text, log)
            if log is not None:
                log.close()

    def _logged(self, text: str, log: IO[str] | None) -> IO[str] | None:
        try:
            if log is None:
                os.makedirs(os.path.dirname(self.log), exist_ok=True)
                log = open(self.log, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 by the caller
            log.write(text)
        except OSError as error:
            self.log_problem = str(error)
        return log

    def _pass_on(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # the reader has gone, or the stream is closed
                self._stream = None


def run_native(
    script: str, env: Mapping[str, str], folder: str, *, title: str, log: str, guardian: Guardian,
    prefix: Sequence[str] = (), output: IO[str] | None = None, clean: Callable[[str], str] = str,
) -> None:
    """Run a shell file, sourced by bash in `folder` with exactly `env`, and pass on what it prints, cleaned.

    `prefix` are shell lines that come before it. It has no standard input. Raises NativeCommandError with the exit
    status, the command, its last lines and `log`, which is kept only then. When this thread is interrupted, or this
    process killed, the command and all it started are ended.
    """
    import subprocess  # many scripts have no shell file

    try:
        guarding = guardian.start()
        command = "\n".join([guardian.telling(guarding), *prefix, '. "$0"'])
        process = subprocess.Popen(
            ["bash", "-c", command, script], cwd=folder, env=env, stdin=subprocess.DEVNULL, pass_fds=(guarding,),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0, encoding="utf-8",
            errors="replace")
    except OSError as error:
        raise NativeCommandError(f"{os.path.basename(script)} of {title} cannot be started", cause=str(error),
                                 remedy=_start_remedy(error, env)) from error
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
        # What the script left running may hold the pipe open; its later output is not ours.
        reader.join(timeout=1.0)
        guardian.ended(process.pid)
    if status:
        raise _failure(script, title, folder, status if status < 128 else _from_shell(status), printed)
    with suppress(OSError):
        os.unlink(log)


def _start_remedy(error: OSError, env: Mapping[str, str]) -> str:
    if error.errno == errno.E2BIG:
        longest = max(env, key=lambda key: len(env[key]))
        return f"the environment is too large: {longest} has {len(env[longest])} characters; hand it over in a file"
    return "install bash, or put it on PATH" if error.filename == "bash" else ""


def _failure(script: str, title: str, folder: str, status: int, printed: _Output) -> NativeCommandError:
    from cm4vllm.common.processes import exit_in_words
    from cm4vllm.engine.run.remedies import likely_remedy

    tail = "\n".join(printed.tail)
    where = f"log:     {printed.log}" if printed.tail else "it printed nothing"
    if printed.log_problem:
        where = f"no log:  {printed.log_problem}"
    return NativeCommandError(
        f"{os.path.basename(script)} of {title} ended with {exit_in_words(status)}",
        cause="\n".join(filter(None, [f"command: bash {script}", f"folder:  {folder}", where, tail])),
        remedy=likely_remedy(status, tail) or f"read the log and {script}, or run it again with -v")


def _from_shell(status: int) -> int:
    """Return -signal for a status by which bash tells that a command was killed (128 + signal)."""
    return 128 - status if status - 128 in signal.valid_signals() else status


def _end(process: subprocess.Popen[str]) -> None:
    import subprocess

    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
            process.wait(timeout=GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue

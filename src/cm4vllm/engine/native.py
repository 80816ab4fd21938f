"""run.sh: the shell part of a script, with an environment that arrives unchanged and an exit status told as it is."""

from __future__ import annotations

import collections
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cm4vllm.common.errors import NativeCommandError, RecipeError
from cm4vllm.common.processes import die_with_parent, exit_in_words

__all__ = ["find_native", "process_environment", "read_assignments", "run_native"]

#: Seconds that a command has to end after SIGTERM, before SIGKILL.
GRACE_S = 5.0
_TAIL_LINES = 20
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def find_native(folder: Path, name: str, env: Mapping[str, Any]) -> Path | None:
    """Return the shell file for this machine: the most special `<name>-<flavor>-<version>-<platform>.sh` there is.

    Raises RecipeError when a `name` other than the usual one is asked for and missing.
    """
    flavor, version, platform = (str(env.get(f"CM_HOST_{key}") or "")
                                 for key in ("OS_FLAVOR", "OS_VERSION", "PLATFORM_FLAVOR"))
    suffixes = [(flavor, version, platform), (flavor, platform), (flavor, version), (flavor,), (platform,)]
    for parts in suffixes:
        path = folder / f"{'-'.join((name or 'run', *parts))}.sh"
        if all(parts) and path.is_file():
            return path
    path = folder / f"{name or 'run'}.sh"
    if path.is_file():
        return path
    if name:
        raise RecipeError(f"{path} is missing", cause=f"the script_name {name!r} is asked for")
    return None


def process_environment(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a command: that of this process, with `env` on top, each value exactly as it is.

    Lists are joined with `:`; `+KEY` goes before what KEY holds, joined with `:` (`+ KEY`: with the character that
    follows the plus). Only `${KEY}` is replaced, from the result itself; `$KEY`, quotes and backticks are plain text.
    """
    full = dict(os.environ)
    additions: list[tuple[str, str, str]] = []
    for key, value in env.items():
        text = ":".join(map(str, value)) if isinstance(value, list) else str(value)
        if key.startswith("+"):
            name, separator = key[1:], ":"
            if name and not _NAME.match(name):
                separator, name = name[0], name[1:]
            items = value if isinstance(value, list) else [value]
            additions.append((name, separator, separator.join(map(str, items))))
        elif _NAME.fullmatch(key):
            full[key] = text
    for key in [key for key in env if key in full]:
        full[key] = _expanded(full[key], full, key)
    for name, separator, text in additions:
        added = _expanded(text, full, name)
        full[name] = f"{added}{separator}{full[name]}" if full.get(name) else added
    return full


def _expanded(text: str, full: Mapping[str, str], own: str) -> str:
    return _REFERENCE.sub(lambda found: full.get(found[1], found[0]) if found[1] != own else found[0], text)


def read_assignments(path: Path) -> dict[str, str]:
    """Read KEY=VALUE lines; a value may hold further `=`. Returns nothing when there is no such file."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign and key.strip()}


def run_native(
    script: Path, env: Mapping[str, Any], folder: Path, *, title: str, prefix: Sequence[str] = (),
    output: IO[str] | None = None,
) -> None:
    """Run a shell file, sourced by bash in `folder`, and pass on what it prints. It has no standard input.

    `prefix` are shell lines that come before it. Raises NativeCommandError with the exit status and the last lines.
    When this thread is interrupted, the command and all it started are ended.
    """
    command = "\n".join([*prefix, '. "$0"'])
    process = subprocess.Popen(
        ["bash", "-c", command, str(script)], cwd=folder, env=process_environment(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0, text=True, errors="replace",
        preexec_fn=die_with_parent,
    )
    assert process.stdout is not None  # noqa: S101 it is a pipe
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    reader = threading.Thread(target=_pass_on, args=(process.stdout, tail, output or sys.stdout), daemon=True)
    reader.start()
    try:
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        # What the script left running may hold the pipe open; its later output is not ours.
        reader.join(timeout=1.0)
    if status:
        raise NativeCommandError(
            f"{script.name} of {title} ended with {exit_in_words(status if status < 128 else _from_shell(status))}",
            cause="\n".join(tail) or "it printed nothing", remedy=f"run it again with -v, or read {script}")


def _from_shell(status: int) -> int:
    """Return -signal for a status by which bash tells that a command was killed (128 + signal)."""
    return 128 - status if status - 128 in signal.valid_signals() else status


def _pass_on(stream: IO[str], tail: collections.deque[str], output: IO[str]) -> None:
    with stream:
        for line in stream:
            tail.append(line.rstrip("\n"))
            output.write(line)
            output.flush()


def _end(process: subprocess.Popen[str]) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
            process.wait(timeout=GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue

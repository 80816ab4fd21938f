"""How numbers, commands and folders are put into words, the same on every page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from cm4vllm.serving.records import ServerRecord

__all__ = [
    "command_line",
    "headroom",
    "ms",
    "number",
    "percent",
    "rate",
    "seconds",
    "server_command",
    "target",
    "typed_command",
]

_SECRET_NAME = re.compile(r"(^|[-_])(api[-_]?key|token|secret|password|passwd|credentials?)s?$", re.IGNORECASE)


def number(value: float | int) -> str:
    """Write a number with thousands separated: whole numbers whole, others with their significant digits."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.7g}" if abs(value) >= 1 else f"{value:.3g}"


def rate(value: float) -> str:
    """Write a rate: two decimals, or three significant digits below one a second."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def ms(value: float) -> str:
    """Write milliseconds: as many decimals as say something."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Write a duration in seconds, and from two minutes on also in minutes."""
    plain = f"{value:,.1f} s"
    return plain if value < 120 else f"{plain} ({value / 60:,.1f} min)"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, but never as 100 % or 0 % what is not quite so."""
    text = f"{fraction * 100:.1f}"
    if fraction not in (0, 1) and text in ("0.0", "100.0", "-0.0"):
        text = f"{fraction * 100:.3g}"
    return f"{text} %"


def headroom(fraction: float) -> str:
    """Say how much of a limit is left, or by how much it is exceeded."""
    return f"{percent(fraction)} left" if fraction > 0 else f"exceeded by {percent(-fraction)}"


def target(lower: float, upper: float | None) -> str:
    """Write an accuracy target with both its bounds."""
    return f"≥ {number(lower)}" + ("" if upper is None else f" and ≤ {number(upper)}")


def command_line(argv: Iterable[str], names: Mapping[str, str], *, env: Mapping[str, str] | None = None) -> str:
    """Write a command for a shell, one flag a line.

    `names` maps folders of this machine to the variables that stand for them, so that a published page neither shows
    where somebody keeps files nor a path that exists nowhere else. The value of a flag or of an environment variable
    that is named like a secret is left out.
    """
    lines = [f"{name}={'<not shown>' if _SECRET_NAME.search(name) else _quoted(value, names)}"
             for name, value in sorted((env or {}).items())]
    hide = False
    current = ""
    for word in argv:
        flag, equals, _ = word.partition("=")
        shown = "<not shown>" if hide else _quoted(word, names)
        if word.startswith("--") and equals and _SECRET_NAME.search(flag):
            shown = f"{flag}=<not shown>"
        hide = word.startswith("--") and not equals and bool(_SECRET_NAME.search(flag))
        if word.startswith("--"):
            lines.append(current)
            current = shown
        else:
            current = f"{current} {shown}".strip()
    return " \\\n    ".join(line for line in [*lines, current] if line)


def server_command(server: ServerRecord, model_path: str) -> str:
    """Write the server's command with $MODEL for the model's folder; empty for a server that was already there."""
    if not server.argv:
        return ""
    names = {model_path: "MODEL"} if model_path.startswith("/") else {}
    program = Path(server.argv[0]).name
    return command_line([program, *server.argv[1:]], {**names, str(Path.home()): "HOME"}, env=server.env)


def typed_command(command: str) -> str:
    """Write a command that was typed, one flag a line, with $HOME for the user's home."""
    try:
        return command_line(shlex.split(command), {str(Path.home()): "HOME"})
    except ValueError:
        return command


def _quoted(word: str, names: Mapping[str, str]) -> str:
    for folder, variable in names.items():
        before, found, after = word.partition(folder)
        if found and folder not in ("", "/") and (not after or after.startswith(("/", ":", "@"))):
            return f'{_bare(before)}"${variable}"{_bare(after)}'
    return _bare(word)


def _bare(word: str) -> str:
    return shlex.quote(word) if word else ""

"""How numbers, commands and folders are put into words, the same on every page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cm4vllm.serving.records import ServerRecord

__all__ = [
    "command_line",
    "headroom",
    "judgement",
    "ms",
    "number",
    "percent",
    "qps",
    "rate",
    "seconds",
    "server_command",
    "target",
    "times",
    "typed_command",
    "when",
]

_HIDDEN = "'<not shown>'"
_SECRET_NAME = re.compile(r"(^|[-_])(api[-_]?keys?|token|secrets?|password|passwd|credentials?)$", re.IGNORECASE)


def number(value: float | int) -> str:
    """Write a number with thousands separated: whole numbers whole, others with their significant digits."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.10g}" if abs(value) >= 1 else f"{value:.4g}"


def times(value: float | None) -> str:
    """Write a ratio, or `unknown`."""
    return "unknown" if value is None else f"{value:,.1f} times"


def qps(value: float) -> str:
    """Write a target QPS: as many digits as matter to anybody who sets it again."""
    return f"{value:,.6g}"


def rate(value: float) -> str:
    """Write a rate: two decimals, or three significant digits below one a second."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def ms(value: float) -> str:
    """Write milliseconds: as many decimals as say something."""
    if value < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Write a duration in seconds, and from two minutes on also in minutes."""
    plain = f"{value:,.1f} s" if value >= 1 or value == 0 else f"{value:.3g} s"
    return plain if value < 120 else f"{plain} ({value / 60:,.1f} min)"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, or with more where one would make it all or nothing."""
    for digits in (1, 2, 3):
        text = f"{fraction * 100:.{digits}f}"
        if float(text) not in (0, 100) or fraction in (0, 1):
            break
    return f"{text}%"


def headroom(fraction: float) -> str:
    """Say how much of a limit is left, or by how much it is exceeded."""
    if fraction == 0:
        return "none left"
    return f"{percent(fraction)} left" if fraction > 0 else f"exceeded by {percent(-fraction)}"


def judgement(met: bool | None) -> str:
    """Say whether a target is met; None is that of a total over the whole dataset, of which only a part was scored."""
    if met is None:
        return "not judged on a part"
    return "met" if met else "not met"


def when(moment: str) -> str:
    """Write a recorded time (ISO 8601) to the minute, in UTC."""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def target(lower: float | None, upper: float | None) -> str:
    """Write an accuracy target with the bounds that it has."""
    bounds = ("≥", lower), ("≤", upper)
    return " and ".join(f"{sign} {number(bound)}" for sign, bound in bounds if bound is not None)


def command_line(argv: Iterable[str], names: Mapping[str, str], *, env: Mapping[str, str] | None = None) -> str:
    """Write a command for a shell, one flag a line.

    `names` maps folders of this machine to the variables that stand for them, so that a published page neither shows
    where somebody keeps files nor a path that exists nowhere else. The value of a flag or of an environment variable
    that is named like a secret is left out.
    """
    lines = [f"{name}={_HIDDEN if _SECRET_NAME.search(name) else _quoted(value, names)}"
             for name, value in sorted((env or {}).items())]
    hide = False
    current = ""
    for word in argv:
        flag, equals, _ = word.partition("=")
        shown = _HIDDEN if hide else _quoted(word, names)
        if word.startswith("--") and equals and _SECRET_NAME.search(flag):
            shown = f"{flag}={_HIDDEN}"
        hide = word.startswith("--") and not equals and bool(_SECRET_NAME.search(flag))
        if word.startswith("--"):
            lines.append(current)
            current = shown
        else:
            current = f"{current} {shown}".strip()
    return " \\\n    ".join(line for line in [*lines, current] if line)


def server_command(server: ServerRecord, model_path: str) -> str:
    """Write the server's command with $MODEL for the model's folder and $CM4VLLM for that of our package.

    It is empty for a server that was already there.
    """
    if not server.argv:
        return ""
    names = {model_path: "MODEL"} if model_path.startswith("/") else {}
    names[str(Path(__file__).parents[1])] = "CM4VLLM"
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

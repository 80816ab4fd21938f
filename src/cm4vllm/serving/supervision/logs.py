"""A server's log: the lines that show why it failed, the remedy, and the progress of its start."""

import itertools
import re
from pathlib import Path

from cm4vllm.common.programs.processes import last_lines
from cm4vllm.common.terminal_text import printable
from cm4vllm.serving.supervision.known_failures import known_failure

_READ_LINES = 400
_SHOWN = 6
#: Characters of a line on how far a start is.
_PROGRESS = 80
#: (EngineCore pid=12) ERROR 11-21 01:22:33 [core.py:1] what is said
_PREFIX = re.compile(
    r"^(?:\([^()]{0,80}pid=\d{1,9}[^()]{0,80}\)\s{0,9})*(?:\[rank\d+\]:\s?(?:\[[^\]]*\]\s*)?)?"
    r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|[\w./]+:\d+\])\s*)?"
)
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)(?:_\w+)?(?::|$)")
#: Lines of programs below Python, which no exception repeats: the C library's, the compilers' and Gloo's own words.
_NATIVE = re.compile(
    r"^(?:Fatal Python error: )?(?:Bus error|Segmentation fault|Illegal instruction|Aborted)\b|"
    r"^(?:nvcc|ptxas)\b.{0,300}?\b(?:fatal|error)\s{0,9}:|Gloo connectFullMesh failed|Memory access fault by GPU|"
    r"UserWarning: CUDA initialization:"
)
_USAGE = re.compile(r"error: (?:unrecognized arguments|argument|the following)")
_DIED = re.compile(r"died unexpectedly \(exit code")
#: The long steps of a start: bars of tqdm, and the lines that vLLM writes before and after.
_STEP = re.compile(
    r"Loading \w+ checkpoint|Loading weights|Starting to load|Model loading took|Capturing|Downloading|"
    r"torch\.compile|KV cache size|init engine|Waiting for \d+ local|Application startup",
    re.IGNORECASE,
)
#: vLLM's outer processes only repeat that an inner one failed.
_REPEATED = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "See root cause above",
    "See stack trace (above)",
    "RuntimeError: cancelled",
    "Worker failed with error",
    "WorkerProc init",
)
#: Lines without information on a failure: what it writes because it is being ended, and what it suggests.
_NOISE = ("[shutdown]", "Parent process exited", "Route: ")


def telling_lines(log: Path) -> str:
    """Return the lines of a log that say why the server failed, else its last lines; empty when there are none."""
    lines = [_without_prefix(line) for line in last_lines(log, _READ_LINES).splitlines()]
    telling = [
        _line_with_continuation(lines, index)
        for index, line in enumerate(lines)
        if _EXCEPTION.match(line) or any(form.search(line) for form in (_USAGE, _DIED, _NATIVE))
    ]
    root = [line for line in telling if not any(phrase in line for phrase in _REPEATED)] or telling
    rest = [line for line in lines if line.strip() and not line.startswith(_NOISE)]
    return "\n".join(line[:400] for line in (list(dict.fromkeys(root))[-_SHOWN:] or rest[-_SHOWN:]))


def last_words(log: Path) -> str:
    """Return the last line of a log that holds anything."""
    lines = [text for line in last_lines(log, _READ_LINES).splitlines() if (text := _without_prefix(line).strip())]
    return lines[-1] if lines else "nothing"


def _line_with_continuation(lines: list[str], index: int) -> str:
    """Return a log line with its continuation: pydantic's explanation, or the code that raised without a text."""
    if lines[index].strip() == "AssertionError":
        code = next((line.strip() for line in reversed(lines[:index]) if line.strip(" ^~")), "")
        return f"AssertionError: {code}"
    more = [
        line.strip() for line in itertools.takewhile(lambda line: line.startswith(" "), lines[index + 1 : index + 4])
    ]
    return " ".join([lines[index], *(line for line in more if line and not line.startswith(("File ", "For further")))])


def advice(text: str) -> str:
    """Return what to do about a failure that a text names, empty when it names none that is known."""
    failure = known_failure(text)
    return failure.remedy if failure else ""


def progress_line(log: Path) -> str:
    """Return what the server did last, in short: a step that its log names, else the last line."""
    lines = [text for line in last_lines(log, _READ_LINES).splitlines() if (text := _without_prefix(line).strip())]
    steps = [line for line in lines if _STEP.search(line)]
    line = (steps or lines or ["its process starts"])[-1]
    return line if len(line) <= _PROGRESS else f"{line[: _PROGRESS - 4].rstrip()} ..."


def _without_prefix(line: str) -> str:
    return _PREFIX.sub("", printable(line))

"""What is being done and how far it is: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TextIO

from cm4vllm.common.plain_text import one_line, printable

__all__ = ["Step", "page", "say", "say_facts", "say_text", "step", "warn"]

#: Seconds between two plain lines of one step.
PLAIN_INTERVAL_S = 15.0

_STARTED = time.monotonic()


def say(text: str) -> None:
    """Print one line of what is happening, with the time since the program started."""
    elapsed = time.monotonic() - _STARTED
    say_text(f"[{int(elapsed // 60):02d}:{elapsed % 60:04.1f}] {text}")


def say_text(text: str) -> None:
    """Print lines as they are, but for what would control the terminal: names and logs of other programs are in them.

    What the encoding of the output lacks is spelled.
    """
    encoding = sys.stdout.encoding or "utf-8"
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding), flush=True)


@cache
def say_facts(subject: str, *lines: str) -> None:
    """Print what was detected, once a process: several recipes ask for the same."""
    for line in lines:
        say(f"{subject}: {line}")


def warn(text: str) -> None:
    """Print one line that the user should not overlook."""
    say(f"WARNING: {text}")


class Step:
    """One piece of work in progress; `update` sets how far it is, `note` is shown with it."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self.title = title
        self.note = ""
        self._last = time.monotonic()
        self._status: Any = None
        if stream.isatty():
            try:
                from rich.console import Console
            except ImportError:
                return
            self._status = Console(file=stream).status(_literal(title))
            self._status.start()

    def update(self, text: str) -> None:
        """Show `text` beside the title: at once on a terminal, at most every 15 s elsewhere."""
        if self.note:
            text = f"{text}; {self.note}"
        if self._status is not None:
            self._status.update(_literal(f"{self.title}: {text}"))
        elif time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self._last = time.monotonic()
            say(f"{self.title}: {text}")

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()


def _literal(text: str) -> Any:
    """Return the text for rich, which takes brackets in a str for its own markup, and [/x] for an error in it."""
    from rich.text import Text

    return Text(one_line(text))


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Announce a piece of work, give its Step, and say how long it took; a failure is left to the error's own text."""
    say(title)
    begin = time.monotonic()
    current = Step(title, sys.stdout)
    try:
        yield current
    finally:
        current.stop()
    say(f"{title}: done in {time.monotonic() - begin:.1f} s")


def page(text: str) -> None:
    """Print a text; when the reader has gone, what else is printed goes nowhere."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:  # the locale lacks a letter
        encoding = sys.stdout.encoding or "ascii"
        page(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Progress of the current steps: a live line on a terminal, plain lines elsewhere.

The steps in progress can be read at any time: `under_way` gives those that have begun and not ended, each with its
last report in words and as data, and `warnings` gives all warnings so far. A view that shows them draws instead of
the live line (`drawn_by_a_view`).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TextIO

from cm4vllm.common.programs.standard_streams import give_up
from cm4vllm.common.terminal_text import one_line, printable

#: Seconds between two plain lines of one step.
PLAIN_INTERVAL_S = 10.0
#: Warnings that are kept for who asks; older ones stand in the output alone.
_MOST_WARNINGS = 50

_STARTED = time.monotonic()
_under_way: list[Step] = []
_warnings: deque[str] = deque(maxlen=_MOST_WARNINGS)
_views = 0
_outlook: Callable[[], str] = str


def say(text: str) -> None:
    """Print one line about the work in progress, with the time since the program started."""
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
    _warnings.append("; ".join(one_line(line) for line in text.splitlines() if line.strip()))
    say(f"WARNING: {text}")


def warnings() -> tuple[str, ...]:
    """Return the warnings of this process, oldest first; if there are too many, only the newest."""
    return tuple(_warnings)


def under_way() -> tuple[Step, ...]:
    """Return the steps that have begun and not ended, the outermost first."""
    return tuple(_under_way)


@contextmanager
def drawn_by_a_view() -> Iterator[None]:
    """Inside the block a view draws what is under way on the terminal: steps draw no live line of their own."""
    global _views
    _views += 1
    try:
        yield
    finally:
        _views -= 1


@contextmanager
def with_outlook(words: Callable[[], str]) -> Iterator[None]:
    """Inside the block plain lines on progress end with what `words` returns, such as the time that is left."""
    global _outlook
    before, _outlook = _outlook, words
    try:
        yield
    finally:
        _outlook = before


class Step:
    """One piece of work in progress; `update` sets how far it is.

    `facts` is the same as data, for a view: a record of the package that does the work. None where there is none.
    """

    def __init__(self, title: str, stream: TextIO) -> None:
        """Begin a step: its title, and the stream that shows it."""
        self.title = title
        self.text = ""
        self.facts: object = None
        self.began = self._last = time.monotonic()
        self._status: Any = None
        self._is_drawn = bool(_views)
        if stream.isatty() and not self._is_drawn:
            try:
                from rich.console import Console
            except ImportError:
                return
            self._status = Console(file=stream).status(_literal(title))
            self._status.start()

    def update(self, text: str) -> None:
        """Show `text` beside the title: at once on a terminal, at most every 10 s elsewhere."""
        self.text = text
        if self._status is not None:
            self._status.update(_literal(f"{self.title}: {text}"))
        elif not self._is_drawn and time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self._last = time.monotonic()
            say("; ".join(filter(None, (f"{self.title}: {text}", _outlook()))))

    def stop(self) -> None:
        """Remove the line that shows the step."""
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
    _under_way.append(current)
    try:
        yield current
    finally:
        _under_way.remove(current)
        current.stop()
    say(f"{title}: done in {time.monotonic() - begin:.1f} s")


def page(text: str) -> None:
    """Print a text; when the reader has gone, what else is printed goes nowhere."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:  # the locale lacks a letter
        encoding = sys.stdout.encoding or "ascii"
        page(text.encode(encoding, "backslashreplace").decode(encoding))
    except OSError as error:
        give_up(sys.stdout, error)

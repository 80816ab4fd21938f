"""The view on a terminal, drawn with rich below what is printed, and as plain text; 80 columns are enough."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cm4vllm.campaign.live.panels import Line, Tone, View
from cm4vllm.common.progress import drawn_by_a_view
from cm4vllm.common.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_STYLES = {Tone.PLAIN: "", Tone.MUTED: "dim", Tone.STRONG: "bold", Tone.GOOD: "green", Tone.BAD: "red"}
_NOTICE = "yellow"
#: Columns of the labels, and of a bar.
_LABEL, _BAR = 9, 12


#: Draws a view. Raises OSError where the terminal has gone.
Drawing = Callable[[View], None]


@contextmanager
def drawing() -> Iterator[Drawing]:
    """Yield the drawer of views at the bottom of the terminal, below the printed lines; nothing is drawn elsewhere.

    The last view is removed at the end.
    """
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    # With FORCE_COLOR rich also takes a file for a terminal.
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        yield lambda view: None
        return
    from rich.live import Live

    lock = threading.RLock()
    live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)

    def draw(view: View) -> None:
        with lock:
            live.update(_segments(view, *console.size), refresh=True)

    with drawn_by_a_view(), live, _printed_above(console, lock):
        console.show_cursor(True)  # so that a process that is killed leaves the terminal with one
        yield draw


@contextmanager
def _printed_above(console: Console, lock: threading.RLock) -> Iterator[None]:
    """Have what is printed appear above the view.

    rich redirects both streams by itself, but a line that one thread prints while another draws may leave a part of the
    view behind: where the view stands is computed under a lock that is given back before the line is written.
    """
    from rich.file_proxy import FileProxy

    class Printed(FileProxy):
        def write(self, text: str) -> int:
            with lock:
                return super().write(text)

        def flush(self) -> None:
            with lock:
                super().flush()

    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Printed(console, stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def plain_text(view: View, width: int = 80) -> str:
    """Return a view as text without colours, in lines of at most `width` columns."""
    return "\n".join(text.rstrip() for text, _ in _rows(view, width))


def _rows(view: View, width: int) -> Iterator[tuple[str, str]]:
    """Yield the lines, none wider than `width`, each with its style.

    They are laid out here and not by tables of rich, which take ten times as long: a view is drawn each second.
    """
    yield from _lines_of_width(one_line(view.title), one_line(view.state), width, _STYLES[view.tone] or "bold")
    for notice in view.notices:
        yield from _lines_of_width(one_line(notice), "", width, _NOTICE)
    for panel in view.panels:
        title = one_line(panel.title)[:width]
        yield f"{title} {'-' * (width - len(title) - 1)}"[:width], "dim"
        for line in panel.lines:
            label = f"{one_line(line.label)[:_LABEL]:{_LABEL}} "
            style = _STYLES[line.tone]
            rows = _lines_of_width(_text(line), one_line(line.end), max(width - len(label), 10), style)
            for number, (text, _) in enumerate(rows):
                yield f"{label if not number else ' ' * len(label)}{text}", style


def _lines_of_width(text: str, end: str, width: int, style: str) -> Iterator[tuple[str, str]]:
    """Yield `text` in as many lines as it needs, the first with `end` at its end."""
    room = width - len(end) - 1 if end else width
    if room < len(text) and room < width // 2:  # no room beside it
        yield from _lines_of_width(text, "", width, style)
        text, room = "", width - len(end) - 1
    first, *more = textwrap.wrap(text, max(room, 1)) or [""]
    yield f"{first:{max(room, 1)}} {end}" if end else first, style
    for rest in more:
        yield rest, style


def _segments(view: View, width: int, height: int) -> RenderableType:
    """Return the lines as rich's smallest parts: they are as wide as they should be, and need no layout.

    One line of the terminal stays free: what removes the view needs a line below it, and where there is none the first
    line of the view is pushed out of the terminal and stays.
    """
    from rich.segment import Segment, Segments
    from rich.style import Style

    styles = {style: Style.parse(style) for style in (*_STYLES.values(), _NOTICE)}
    rows = list(_rows(view, width))
    if (room := max(height - 1, 1)) < len(rows):
        rows[room - 1 :] = [(f"... {len(rows) - room + 1} lines more"[:width], _STYLES[Tone.MUTED])]
    return Segments([part for text, style in rows for part in (Segment(text, styles[style]), Segment.line())])


def _text(line: Line) -> str:
    text = one_line(line.text)
    if line.part is None:
        return text
    full = round(line.part * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {line.part:.0%}  {text}"

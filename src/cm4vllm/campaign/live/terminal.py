"""The view on a terminal, and as plain text: drawn with rich at any width, from 80 columns on without cutting words."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from cm4vllm.campaign.live.view import Line, Panel, Tone, View
from cm4vllm.common.plain_text import one_line
from cm4vllm.common.progress import drawn_by_a_view

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["Drawing", "drawing", "plain_text"]

_STYLES = {Tone.PLAIN: "", Tone.MUTED: "dim", Tone.STRONG: "bold", Tone.GOOD: "green", Tone.BAD: "red"}
#: Columns of the labels, and of a bar.
_LABEL, _BAR = 9, 12


class Drawing(Protocol):
    """Where a view is drawn."""

    def __call__(self, view: View) -> None: ...


@contextmanager
def drawing() -> Iterator[Drawing]:
    """Give what draws views at the bottom of the terminal, below what is printed; nothing is drawn elsewhere.

    The last view is removed at the end.
    """
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda view: None
        return
    from rich.live import Live

    with drawn_by_a_view(), Live(console=console, auto_refresh=False, transient=True) as live:
        console.show_cursor(True)  # so that a process that is killed leaves the terminal with one
        yield _LiveDrawing(live)


class _LiveDrawing:
    """Draws; a terminal that has gone ends the drawing, not the job."""

    def __init__(self, live: Live) -> None:
        self._live: Live | None = live

    def __call__(self, view: View) -> None:
        if self._live is not None:
            try:
                self._live.update(_drawn(view), refresh=True)
            except OSError:
                self._live = None


def plain_text(view: View, width: int = 80) -> str:
    """Return a view as text without colours, in lines of at most `width` columns."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, force_terminal=False)
    return _printed(console, view)


def _printed(console: Console, view: View) -> str:
    with console.capture() as captured:
        console.print(_drawn(view))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _drawn(view: View) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right")
    head.add_row(Text(one_line(view.title), "bold"), Text(one_line(view.state), _STYLES[view.tone]))
    notices = [Text(one_line(notice), "yellow") for notice in view.notices]
    return Group(head, *notices, *(part for panel in view.panels for part in _panel(panel)))


def _panel(panel: Panel) -> Iterator[RenderableType]:
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    yield Rule(Text(f"{one_line(panel.title)}"), align="left", style="dim", characters="-")
    for line in panel.lines:  # each for itself: only those with an end leave room for it
        style = _STYLES[line.tone]
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(width=_LABEL, no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        cells = [Text(one_line(line.label), style or "dim"), Text(_text(line), style)]
        if line.end:
            table.add_column(justify="right", no_wrap=True)
            cells.append(Text(one_line(line.end), "dim" if line.tone is Tone.MUTED else ""))
        table.add_row(*cells)
        yield table


def _text(line: Line) -> str:
    text = one_line(line.text)
    if line.part is None:
        return text
    full = round(line.part * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {line.part:.0%}  {text}"

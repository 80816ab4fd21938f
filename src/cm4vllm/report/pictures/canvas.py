"""Pictures as plain shapes: the geometry of axes, histograms, lines and bars, and the table of the same numbers.

A template writes each shape as an SVG element; colours are those of the page, so that a picture follows the scheme of
the reader and of print. A picture of 400,000 values is as small as one of 100: values become bars of a histogram, or
intervals of the run of which the mean and the extremes are kept, never a chosen part of the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import NamedTuple

from cm4vllm.records.accuracy import Score
from cm4vllm.records.metrics import MetricsSample, ServerMetrics
from cm4vllm.results.figures import Latency

#: The box of a picture in units of its own; it is drawn as wide as there is room.
WIDTH, HEIGHT = 440, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 50, 22, 36

#: A row of words above the plot, and the width of a letter at the font size of a phone.
_ROW, _LETTER = 16, 8.4

#: From this ratio of the ends on, values above zero stand on a logarithmic axis.
_LOG_FROM = 30
#: The most points of a line that are drawn.
MAX_POINTS = 120


@dataclass(frozen=True)
class Shape:
    """An SVG element: its tag, its attributes, and its text. `hint` is shown where the pointer rests."""

    tag: str
    attributes: dict[str, str | float]
    text: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """The numbers of a picture; the first cell of a row is its heading."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A picture with its title, its message in a sentence, its numbers, and their source."""

    title: str
    words: str
    shapes: tuple[Shape, ...]
    tables: tuple[Table, ...]
    source: str
    legend: tuple[tuple[str, str], ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on a length from `begin` to `end`; logarithmic where they span a wide range."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float, *, zero: bool = False, wide: bool = True) -> Axis:
        """Return an axis that holds all values; with `zero` it begins there; `wide` allows a logarithmic one."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if wide and not zero and low > 0 and high / low > _LOG_FROM:
            return cls(low / 1.1, high * 1.1, begin, end, logarithmic=True)
        low = 0.0 if zero or low < 0.5 * high else low
        span = (high - low) or abs(high) or 1.0
        return cls(low if low == 0 else low - 0.04 * span, high + 0.04 * span, begin, end)

    def at(self, value: float) -> float:
        """Return the place of a value; a value beyond an end is placed at that end."""
        low, high = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        number = math.log(max(value, self.low)) if self.logarithmic else value
        return round(self.begin + min(1.0, max(0.0, (number - low) / (high - low))) * (self.end - self.begin), 1)

    def edges(self, count: int) -> list[float]:
        """Return `count` + 1 values at equal distances on the axis."""
        if self.logarithmic:
            step = math.log(self.high / self.low) / count
            return [self.low * math.exp(step * i) for i in range(count + 1)]
        return [self.low + (self.high - self.low) * i / count for i in range(count + 1)]

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values on the axis, `most` about."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 3 else (1, 3) if len(decades) <= 4 else (1,)
            ticks = [step * 10.0**decade for decade in decades for step in steps]
        else:
            raw = (self.high - self.low) / most
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
            ticks = [
                step * i for i in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
            ]
        return [value for value in ticks if self.low <= value <= self.high]


@dataclass
class Canvas:
    """Collects the shapes of one picture. `x` goes to the right, `y` upwards."""

    x: Axis
    y: Axis
    shapes: list[Shape] = field(default_factory=list)
    rows_used: int = 0

    @classmethod
    def over(cls, xs: Sequence[float], ys: Sequence[float], *, from_zero: bool = False, rows: int = 0) -> Canvas:
        """Return one whose axes hold these values; y begins at zero. `rows` of words have room above the plot."""
        return cls(
            Axis.over(xs, _LEFT, WIDTH - _RIGHT, zero=from_zero),
            Axis.over(ys, HEIGHT - _BOTTOM, _TOP + _ROW * rows, zero=True),
        )

    def axes(self, x_unit: str, y_unit: str) -> None:
        """Draw both axes with round numbers and their units; that of y only where it has a unit."""
        bottom, left, right = self.y.begin, self.x.begin, self.x.end
        for value in self.y.ticks(4) if y_unit else ():
            y = self.y.at(value)
            self._add("line", "grid", x1=left, x2=right, y1=y, y2=y)
            self._text(short_number(value), left - 5, y + 4, "tick end")
        self._add("line", "axis", x1=left, x2=right, y1=bottom, y2=bottom)
        for value in self.x.ticks():
            x = self.x.at(value)
            self._add("line", "axis", x1=x, x2=x, y1=bottom, y2=bottom + 4)
            self._text(short_number(value), x, bottom + 16, "tick mid")
        self._text(x_unit, (left + right) / 2, HEIGHT - 4, "unit mid")
        self._text(y_unit, 2, 11, "unit")

    def zone(self, begin: float, end: float) -> None:
        """Shade the plot between two values of x; drawn first, it lies behind all else."""
        left, right = self.x.at(begin), self.x.at(end)
        self._add("rect", "zone", x=left, y=self.y.end, width=right - left, height=self.y.begin - self.y.end)

    def bars(self, edges: Sequence[float], counts: Sequence[int], hints: Sequence[str]) -> None:
        """Draw a histogram. A bar of one value at least is two units high: the tail stays visible."""
        bottom = self.y.begin
        for low, high, count, hint in zip(edges, edges[1:], counts, hints, strict=False):
            if count:
                left, right = self.x.at(low), self.x.at(high)
                top = min(self.y.at(count), bottom - 2)
                self.shapes.append(
                    Shape(
                        "rect",
                        {
                            "class": "bar-1",
                            "x": left,
                            "y": top,
                            "width": round(max(right - left - 0.7, 0.8), 1),
                            "height": round(bottom - top, 1),
                        },
                        hint=hint,
                    )
                )

    def line(self, points: Iterable[tuple[float, float]], kind: str, *, scale: Axis | None = None) -> None:
        """Draw a line through points; `scale` is the axis of their y where it is another one."""
        y = scale or self.y
        drawn = " ".join(f"{self.x.at(px):g},{y.at(py):g}" for px, py in points)
        if drawn:
            self._add("polyline", kind, points=drawn)

    def dots(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Draw a dot at each point."""
        for px, py in points:
            self._add("circle", kind, cx=self.x.at(px), cy=self.y.at(py), r=3.5)

    def word(self, text: str, x: float, y: float) -> None:
        """Write a word beside a point, to its right and above."""
        self._text(text, self.x.at(x) + 6, self.y.at(y) - 4, "label")

    def marks(self, points: Sequence[tuple[float, str, str]]) -> None:
        """Draw an upright line at each value of x (value, class, words), its words beside its upper end.

        Each has a row of its own above the plot, so that its words cross neither a curve nor the words of another.
        """
        for label, leftwards in _arrange([_Label(self.x.at(value), kind, words) for value, kind, words in points]):
            y = self._next_row()
            self._add("line", label.kind, x1=label.x, x2=label.x, y1=y - 10, y2=self.y.begin)
            x, side = (label.x - 4, " end") if leftwards else (label.x + 4, "")
            self._text(label.words, x, y, f"label {label.kind}{side}")

    def level(self, value: float, kind: str, words: str) -> None:
        """Draw a line across at a value of y; its words have a row above the plot, with a piece of that line."""
        at, y = self.y.at(value), self._next_row()
        self._add("line", kind, x1=self.x.begin, x2=self.x.end, y1=at, y2=at)
        self._text(words, self.x.end, y, f"label {kind} end")
        self._add("line", kind, x1=self.x.end + 5, x2=self.x.end + 27, y1=y - 4, y2=y - 4)

    def _next_row(self) -> float:
        """Return the base line of the next row of words above the plot."""
        self.rows_used += 1
        return float(_TOP + _ROW * self.rows_used - 6)

    def right_percent(self) -> Axis:
        """Draw a second axis at the right, from 0 to 100 %, and return it."""
        axis = Axis(0, 100, self.y.begin, self.y.end + 4)
        for value in (0, 50, 100):
            self._text(f"{value} %", self.x.end + 4, axis.at(value) + 4, "tick")
        return axis

    def _add(self, tag: str, kind: str, **attributes: str | float) -> None:
        self.shapes.append(Shape(tag, {"class": kind, **{key: _for_svg(value) for key, value in attributes.items()}}))

    def _text(self, text: str, x: float, y: float, kind: str) -> None:
        self.shapes.append(Shape("text", {"class": kind, "x": _for_svg(x), "y": _for_svg(y)}, text))


class _Label(NamedTuple):
    """The words of an upright line at `x`."""

    x: float
    kind: str
    words: str

    def span(self, *, leftwards: bool) -> tuple[float, float]:
        """Return the beginning and the end of the words."""
        length = 4 + _LETTER * len(self.words)
        return (self.x - length, self.x) if leftwards else (self.x, self.x + length)


def _arrange(labels: Sequence[_Label]) -> Sequence[tuple[_Label, bool]]:
    """Return the labels from above to below, each with whether its words stand to the left of its line.

    The line of an upper label passes the rows below it, and stands in no words there.
    """
    tried = [
        list(zip(order, sides, strict=True))
        for order in permutations(labels)
        for sides in product(*((mark.x > WIDTH / 2, mark.x <= WIDTH / 2) for mark in order))
    ]
    return next(filter(_is_clear, tried), tried[0])


def _is_clear(arranged: Sequence[tuple[_Label, bool]]) -> bool:
    """Return True if all labels lie inside the picture and none crosses another's line."""
    spans = [label.span(leftwards=leftwards) for label, leftwards in arranged]
    return all(begin >= 0 and end <= WIDTH for begin, end in spans) and not any(
        begin < label.x < end for at, (label, _) in enumerate(arranged) for begin, end in spans[at + 1 :]
    )


def bar_rows(
    rows: Sequence[tuple[str, Sequence[tuple[float, str, str]], str]], end: float, *, height: int = 34
) -> tuple[tuple[Shape, ...], int]:
    """Return level bars, one a row: its name above, its parts (length, class, hint) side by side, words at its end.

    `end` is the length of the widest row. The second value is the height of the picture.
    """
    shapes: list[Shape] = []
    scale = (WIDTH - 16) / (end or 1)
    for number, (name, parts, words) in enumerate(rows):
        top, x = 8 + number * height, 8.0
        shapes.append(Shape("text", {"class": "label", "x": 8, "y": top + 9}, name))
        shapes.append(Shape("text", {"class": "label end", "x": WIDTH - 8, "y": top + 9}, words))
        for length, kind, hint in parts:
            width = max(length * scale, 1.5) if length > 0 else 0.0
            if width:
                shapes.append(
                    Shape(
                        "rect",
                        {"class": kind, "x": round(x, 1), "y": top + 13, "width": round(width, 1), "height": 11},
                        hint=hint,
                    )
                )
            x += width
    return tuple(shapes), 12 + len(rows) * height


def short_number(value: float) -> str:
    """Return a number for an axis as text: few digits, thousands as k, millions as M."""
    for factor, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * factor or (sign != "k" and abs(value) >= factor):
            return f"{value / factor:.3g}{sign}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _for_svg(value: str | float) -> str | float:
    return round(value, 1) if isinstance(value, float) else value


@dataclass(frozen=True)
class Bar:
    """A bar from 0 to `value`; `low` to `high` is where it should end. All in percent of the line's length."""

    value: float
    low: float
    high: float
    met: bool


def latency_bar(latency: Latency) -> Bar | None:
    """Return the bar of a latency below its limit: the line ends at the limit, or at the value beyond it."""
    if latency.limit is None:
        return None
    end = max(latency.limit, latency.p99) or 1
    return Bar(value=_part(latency.p99, end), low=0, high=_part(latency.limit, end), met=bool(latency.met))


def score_bar(score: Score) -> Bar | None:
    """Return the bar of a score above its lower target; the line ends beyond the furthest of value and targets."""
    if score.met is None:
        return None
    end = max(score.value, score.lower or 0, score.upper or 0) * 1.08 or 1
    return Bar(
        value=_part(score.value, end),
        low=_part(score.lower or 0, end),
        high=100 if score.upper is None else _part(score.upper, end),
        met=score.met,
    )


@dataclass(frozen=True)
class Trace:
    """A run's requests over its time: `running` and `waiting` are an SVG polyline's points in a box of 100 by 20."""

    name: str
    metrics: ServerMetrics
    running: str
    waiting: str


def trace(name: str, metrics: ServerMetrics, samples: Sequence[MetricsSample]) -> Trace:
    """Return the drawing of a run's samples; if there are many, of an even selection."""
    shown = samples[:: max(1, -(-len(samples) // MAX_POINTS))]
    end = max((sample.at_s for sample in shown), default=0) or 1
    top = max((count for sample in shown for count in (sample.running, sample.waiting)), default=0) or 1
    lines = (
        " ".join(f"{100 * sample.at_s / end:.1f},{19.5 - 19 * count / top:.1f}" for sample, count in counts)
        for counts in (((s, s.running) for s in shown), ((s, s.waiting) for s in shown))
    )
    return Trace(name, metrics, *lines)


def _part(value: float, end: float) -> float:
    return round(min(100.0, max(0.0, 100 * value / end)), 2)

"""An SVG document of boxes in rows, each above those that its arrows lead to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from xml.sax.saxutils import escape

MARGIN = 20
#: Pixels that an arrow takes in a row that it passes, and how often the rows are put in order.
_PLACE, _SWEEPS = 6, 12
STYLE = (
    "svg{background:#fff}text{font:13px sans-serif;fill:#1a1a1a;text-anchor:middle}.name{font-weight:bold}"
    ".what{font-size:11px}rect{fill:#eef3f8;stroke:#33506b}path{stroke:#33506b;fill:none;marker-end:url(#tip)}"
    "#tip path{fill:#33506b;stroke:none;marker-end:none}"
)


@dataclass(frozen=True)
class Look:
    """Sizes in pixels: of a box, between two boxes of a row, and from one row to the next; `style` adds to STYLE."""

    box: tuple[int, int]
    gap: int
    floor: int
    style: str = ""


def floors(edges: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return how many arrows the longest way down from each name has."""
    floor_of: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in floor_of:
            floor_of[name] = 1 + max((floor(other) for other in edges[name]), default=-1)
        return floor_of[name]

    for name in edges:
        floor(name)
    return floor_of


def routed(
    rows: Sequence[Sequence[str]], arrows: Mapping[tuple[str, str], str]
) -> tuple[list[list[str]], dict[tuple[str, ...], str]]:
    """Return rows in which long arrows have places of their own, and the way of each arrow through its places.

    Each name of a row is moved towards the middle of what it is linked with.
    """
    level = {name: floor for floor, row in enumerate(rows) for name in row}
    laid, ways = [list(row) for row in rows], {}
    for (start, end), kind in arrows.items():
        between = [f"{start}>{end}@{floor}" for floor in range(level[start] - 1, level[end], -1)]
        for floor, name in zip(range(level[start] - 1, level[end], -1), between, strict=True):
            laid[floor].append(name)
        ways[start, *between, end] = kind
    near: dict[str, list[str]] = {name: [] for row in laid for name in row}
    for way in ways:
        for above, other in pairwise(way):
            near[above].append(other)
            near[other].append(above)
    for _ in range(_SWEEPS):
        for row in laid:
            place = {name: (number + 0.5) / len(level) for level in laid for number, name in enumerate(level)}
            middle = {name: fmean(place[other] for other in near[name] or [name]) for name in row}
            row.sort(key=lambda name, middle=middle: (middle[name], name))
    return laid, ways


def drawn(
    title: str,
    rows: Sequence[Sequence[str]],
    ways: Mapping[tuple[str, ...], str],
    lines: Mapping[str, Sequence[str]],
    *,
    look: Look,
    classes: Mapping[str, str],
    notes: Sequence[str] = (),
) -> str:
    """Return the document: `rows` from the lowest on, the first line of a box in bold.

    A name without lines is a place that an arrow passes. The arrows take `ways` from name to name and have a class
    each, boxes those of `classes`; `notes` stand below.
    """
    sizes = {name: look.box[0] if name in lines else _PLACE for row in rows for name in row}
    widths = [sum(sizes[name] + look.gap for name in row) - look.gap for row in rows]
    width = MARGIN * 2 + max(widths)
    bottom = MARGIN + 16 * len(notes)
    height = MARGIN + bottom + len(rows) * look.floor - (look.floor - look.box[1])
    middle: dict[str, tuple[float, float]] = {}
    for floor, row in enumerate(rows):
        left = (width - widths[floor]) / 2
        for name in row:
            middle[name] = (left + sizes[name] / 2, height - bottom - look.box[1] / 2 - floor * look.floor)
            left += sizes[name] + look.gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}{look.style}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for way, kind in ways.items():
        parts.append(f'<path{_class(kind)} d="{_curve([middle[name] for name in way], look.box[1] / 2)}"/>')
    for name in lines:
        parts += _box(middle[name], look.box, lines[name], classes.get(name, ""))
    parts += [
        f'<text class="what" x="{width / 2:g}" y="{height - bottom + 24 + 16 * number:g}">{escape(note)}</text>'
        for number, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>", ""])


def _curve(points: Sequence[tuple[float, float]], half: float) -> str:
    """Return a path from below the first point to above the last one, straight down through those between."""
    parts = [f"M{points[0][0]:g} {points[0][1] + half:g}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        bend = (y2 - y1) / 2
        parts.append(f"C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2 - half:g}")
        if (x2, y2) != points[-1]:
            parts.append(f"V{y2 + half:g}")
    return "".join(parts)


def _box(place: tuple[float, float], size: tuple[int, int], lines: Sequence[str], kind: str) -> list[str]:
    x, top = place[0], place[1] - size[1] / 2
    first, *others = lines
    return [
        f'<rect{_class(kind)} x="{x - size[0] / 2:g}" y="{top:g}" width="{size[0]}" height="{size[1]}" rx="4"/>',
        f'<text class="name" x="{x:g}" y="{top + 19:g}">{escape(first)}</text>',
        *(
            f'<text class="what" x="{x:g}" y="{top + 36 + 14 * number:g}">{escape(line)}</text>'
            for number, line in enumerate(others)
        ),
    ]


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""

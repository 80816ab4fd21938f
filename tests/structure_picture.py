"""The packages of cm4vllm and what they import, drawn: python tests/structure_picture.py > docs/pictures/structure.svg

An arrow goes from a package to one that it imports; what follows from other arrows is left out. A package stands above
all that it imports.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from xml.sax.saxutils import escape

from test_architecture import MODULES, PACKAGES, SRC, imported

BOX, GAP, FLOOR, MARGIN = (240, 74), 30, 106, 20
#: Characters of a description's line; three lines have room.
LINE, LINES = 40, 3
STYLE = (
    "svg{background:#fff}text{font:13px sans-serif;fill:#1a1a1a;text-anchor:middle}.name{font-weight:bold}"
    ".what{font-size:11px}rect{fill:#eef3f8;stroke:#33506b}path{stroke:#33506b;fill:none;marker-end:url(#tip)}"
    "#tip path{fill:#33506b;stroke:none;marker-end:none}"
)


def graph() -> dict[str, set[str]]:
    """Return the packages that each package imports, without itself."""
    found: dict[str, set[str]] = {name: set() for name in PACKAGES}
    for module in MODULES:
        package = module.partition(".")[0]
        if package in found:
            found[package] |= {other.partition(".")[0] for other in imported(module)} & found.keys() - {package}
    return found


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without the arrows that follow from others."""
    below: dict[str, set[str]] = {}
    for name in PACKAGES:  # each comes after all that it imports
        below[name] = edges[name].union(*(below[other] for other in edges[name]))
    return {
        name: {one for one in others if not any(one in below[other] for other in others)}
        for name, others in edges.items()
    }


def floors(edges: Mapping[str, set[str]]) -> dict[str, int]:
    """Return how many arrows the longest way down from each package has."""
    found: dict[str, int] = {}
    for name in PACKAGES:
        found[name] = 1 + max((found[other] for other in edges[name]), default=-1)
    return found


def described(package: str) -> list[str]:
    """Return what a package is for, the first line of its docstring, in lines of LINE characters."""
    text = ast.get_docstring(ast.parse((SRC / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    lines = [""]
    for word in text.splitlines()[0].split():
        if len(f"{lines[-1]} {word}") > LINE:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    if len(lines) > LINES:
        raise ValueError(f"the first line of the docstring of {package} has no room in {LINES} lines: {text}")
    return lines


def picture() -> str:
    """Return the SVG document."""
    edges = reduced(graph())
    level = floors(edges)
    rows = [[name for name in PACKAGES if level[name] == floor] for floor in range(max(level.values()) + 1)]
    width = MARGIN * 2 + max(len(row) for row in rows) * (BOX[0] + GAP) - GAP
    height = MARGIN * 2 + len(rows) * FLOOR - (FLOOR - BOX[1])
    middle: dict[str, tuple[float, float]] = {}
    for floor, row in enumerate(rows):
        left = (width - len(row) * (BOX[0] + GAP) + GAP) / 2
        for place, name in enumerate(row):
            x, y = left + place * (BOX[0] + GAP) + BOX[0] / 2, height - MARGIN - BOX[1] / 2 - floor * FLOOR
            middle[name] = (x, y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The packages of cm4vllm, each above those that it imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    half = BOX[1] / 2
    for name, others in edges.items():
        for other in sorted(others):
            (x1, y1), (x2, y2) = middle[name], middle[other]
            bend = (y2 - y1) / 2
            parts.append(
                f'<path d="M{x1:g} {y1 + half:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2 - half:g}"/>'
            )
    for name, (x, y) in middle.items():
        top = y - half
        parts.append(f'<rect x="{x - BOX[0] / 2:g}" y="{top:g}" width="{BOX[0]}" height="{BOX[1]}" rx="4"/>')
        parts.append(f'<text class="name" x="{x:g}" y="{top + 19:g}">{name}</text>')
        parts += [
            f'<text class="what" x="{x:g}" y="{top + 36 + 14 * number:g}">{escape(line)}</text>'
            for number, line in enumerate(described(name))
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    print(picture(), end="")

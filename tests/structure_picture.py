"""The packages of cm4vllm and what they import, drawn: python tests/structure_picture.py > docs/pictures/structure.svg

An arrow goes from a package to one that it imports; what follows from other arrows is left out. A package stands above
all that it imports.
"""

import ast
from collections.abc import Mapping

from layered_picture import Look, drawn, floors
from syntax import parsed
from test_architecture import MODULES, PACKAGES, SRC, module

LOOK = Look(box=(240, 74), gap=30, floor=106)
#: Characters of a description's line; three lines have room.
LINE, LINES = 40, 3


def graph() -> dict[str, set[str]]:
    """Return the packages that each package imports, without itself."""
    edges_of: dict[str, set[str]] = {name: set() for name in PACKAGES}
    for name in MODULES:
        package = name.partition(".")[0]
        if package in edges_of:
            edges_of[package] |= {other.partition(".")[0] for other in module(name).imported} & edges_of.keys() - {
                package
            }
    return edges_of


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without the arrows that follow from others."""
    below: dict[str, set[str]] = {}
    for name in PACKAGES:  # each comes after all that it imports
        below[name] = edges[name].union(*(below[other] for other in edges[name]))
    return {
        name: {package for package in others if not any(package in below[other] for other in others)}
        for name, others in edges.items()
    }


def described(package: str) -> list[str]:
    """Return what a package is for, the first line of its docstring, in lines of LINE characters."""
    text = ast.get_docstring(parsed((SRC / package / "__init__.py").read_text(encoding="utf-8"))) or ""
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
    return drawn(
        "The packages of cm4vllm, each above those that it imports",
        [[name for name in PACKAGES if level[name] == floor] for floor in range(max(level.values()) + 1)],
        {(name, other): "" for name, others in edges.items() for other in sorted(others)},
        {name: [name, *described(name)] for name in PACKAGES},
        look=LOOK,
        classes={},
    )


if __name__ == "__main__":
    print(picture(), end="")

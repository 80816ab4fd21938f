"""Pages of sections: Markdown that several results share, each with a part of its own under a second-level heading.

A part is found by its heading, so that one is added, replaced or removed while the rest stays as it is, whoever wrote
it. The parts that results make are called `NAME: Scenario, Scenario`.
"""

import re
from collections.abc import Iterable

_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")


def heading_of(name: str, scenarios: Iterable[str]) -> str:
    """Return the heading of the part that results of these scenarios make."""
    return f"{name}: {', '.join(scenarios)}"


def sections(page: str) -> list[tuple[str, str]]:
    """Return the parts of a page: heading and whole text; the first, of heading "", is what comes before all of them.

    The texts put together are the page.
    """
    parts: list[tuple[str, list[str]]] = [("", [])]
    fence = ""
    for line in page.splitlines(keepends=True):
        if match := _FENCE.match(line):
            mark = match[1]
            fence = mark if not fence else "" if mark.startswith(fence) else fence
        if not fence and line.startswith("## "):
            parts.append((line[3:].strip(), []))
        parts[-1][1].append(line)
    return [(heading, "".join(lines)) for heading, lines in parts]


def with_section(page: str, heading: str, body: str) -> str:
    """Return the page with this part: in the place of the part of that heading, otherwise at the end."""
    parts = sections(page)
    text = f"## {heading}\n\n{body.strip()}\n"
    if heading in {name for name, _ in parts}:
        last = len(parts) - 1
        return "".join(
            part if name != heading else text + ("\n" if number < last else "")
            for number, (name, part) in enumerate(parts)
        )
    return f"{page.rstrip()}\n\n{text}" if page.strip() else text


def without_section(page: str, heading: str) -> str:
    """Return the page without the part of that heading."""
    return "".join(text for name, text in sections(page) if name != heading).rstrip() + "\n"


def without_scenario(page: str, name: str, scenario: str) -> str:
    """Return the page without a scenario in the headings of the parts of `name`; without the parts of no other."""
    kept = []
    for heading, text in sections(page):
        before, colon, listed = heading.rpartition(": ")
        if colon and before == name and scenario in (left := listed.split(", ")):
            left.remove(scenario)
            if not left:
                continue
            text = text.replace(f"## {heading}", f"## {heading_of(name, left)}", 1)
        kept.append(text)
    return "".join(kept).rstrip() + "\n"

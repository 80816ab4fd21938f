"""The blocks of docs/measurements.md that hold figures, written from docs/measurements.json.

`python docs/tools/measurements_page.py` writes the page again. A block stands between `<!-- NAME -->` and
`<!-- end -->`: the conditions of a measurement and its table. A cell is a text, a number, nothing (null), or
`[median, lowest, highest]`.
"""

import json
import re
from pathlib import Path
from textwrap import fill
from typing import Any

_DOCS = Path(__file__).resolve().parents[1]
PAGE = _DOCS / "measurements.md"
_FIGURES = _DOCS / "measurements.json"
_BLOCK = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
_WIDTH = 120


def measurements_page() -> str:
    """Return the text of the page with every block as the file of figures has it.

    Raises KeyError for a block without figures, ValueError for figures without a block.
    """
    measured = json.loads(_FIGURES.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    if unused := measured.keys() - set(_BLOCK.findall(page)):
        raise ValueError(f"no block of {PAGE.name} shows {', '.join(sorted(unused))}")
    return _BLOCK.sub(lambda block: _block(block[1], measured[block[1]]), page)


def _block(name: str, measurement: dict[str, Any]) -> str:
    """Return a block: the mark of its begin, the conditions, the table, the mark of its end."""
    columns = measurement["columns"]
    rows = [columns, ["---"] * len(columns), *measurement["rows"]]
    table = "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)
    conditions = fill(measurement["conditions"], _WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"<!-- {name} -->\n\n{conditions}\n\n{table}\n\n<!-- end -->"


def _cell(value: Any) -> str:
    """Return a cell as the table shows it."""
    if isinstance(value, list):
        median, low, high = map(_cell, value)
        return f"{median} ({low} to {high})"
    return "" if value is None else value if isinstance(value, str) else f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(measurements_page(), encoding="utf-8")

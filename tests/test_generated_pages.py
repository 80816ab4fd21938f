"""Pages of docs/ that are generated are what the code and the data give."""

from pathlib import Path

import pytest

import chain_picture
import structure_picture
from benchmarks_page import benchmarks_page
from measurements_page import measurements_page
from published_page import published_page
from recipes_page import recipes_page

pytestmark = pytest.mark.xdist_group("source")
ROOT = Path(__file__).resolve().parents[1]


def matrix_page() -> str:
    """Return docs/matrix.md, which the benchmark writes."""
    from matrix import KEPT, cells
    from matrix_cells import Cells, page

    return page(cells(), Cells.kept(KEPT).ran)


@pytest.mark.parametrize(
    ("name", "page", "command"),
    [
        ("benchmarks.md", benchmarks_page, "python docs/tools/benchmarks_page.py > docs/benchmarks.md"),
        ("matrix.md", matrix_page, "python benchmarks/matrix.py --list --page=docs/matrix.md"),
        ("measurements.md", measurements_page, "python docs/tools/measurements_page.py"),
        ("published.md", published_page, "python docs/tools/published_page.py > docs/published.md"),
        (
            "pictures/structure.svg",
            structure_picture.picture,
            "python tests/structure_picture.py > docs/pictures/structure.svg",
        ),
        ("pictures/chain.svg", chain_picture.picture, "python tests/chain_picture.py > docs/pictures/chain.svg"),
        (
            "recipes.md",
            lambda: recipes_page(str(ROOT / "script")),
            "python docs/tools/recipes_page.py script > docs/recipes.md",
        ),
    ],
    ids=["benchmarks", "matrix", "measurements", "published", "structure", "chain", "recipes"],
)
def test_a_generated_page_is_of_this_version(name, page, command):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page(), f"write it again: {command}"

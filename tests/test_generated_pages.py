"""Pages of docs/ that are generated are what the code and the data give."""

from __future__ import annotations

from pathlib import Path

import pytest

from cm4vllm.engine.tools.reference import recipes_page
from cm4vllm.rules.page import benchmarks_page

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("benchmarks.md", benchmarks_page(), "python -m cm4vllm.rules.page > docs/benchmarks.md"),
        (
            "recipes.md",
            recipes_page(str(ROOT / "script")),
            "python -m cm4vllm.engine.tools.reference script > docs/recipes.md",
        ),
    ],
    ids=["benchmarks", "recipes"],
)
def test_a_generated_page_is_of_this_version(name, text, command):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"write it again: {command}"

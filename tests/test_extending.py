"""docs/extending.md: each worked example is applied to a copy of the package, and prints what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def printed_by(section: str, folder: Path) -> tuple[str, str]:
    """Apply the patches of a section, run its program, and return what it printed and what the page shows."""
    blocks = BLOCK.findall(section)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for patch in (text for kind, text in blocks if kind == "diff"):
        subprocess.run(
            ["git", "apply", "-"],
            input=patch.encode(),
            cwd=folder,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )
    (program,), (shown,) = ([text for kind, text in blocks if kind == wanted] for wanted in ("python", "text"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.stdout or done.stderr, shown


@pytest.mark.parametrize("section", SECTIONS, ids=[section.partition(":")[0] for section in SECTIONS])
def test_an_example_does_what_the_page_says(section, tmp_path):
    printed, shown = printed_by(section, tmp_path)
    assert printed == shown


def test_an_example_that_does_something_else_is_found(tmp_path):
    printed, shown = printed_by(SECTIONS[0].replace("ttft_ms: 1000", "ttft_ms: 1500"), tmp_path)
    assert printed != shown

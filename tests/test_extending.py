"""docs/extending.md: each worked example is applied to a copy of the package, and prints what the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
#: The sections with an example: a program, and what it prints.
SECTIONS = [section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if "```python\n" in section]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def patched(section: str, folder: Path) -> list[str]:
    """Apply the patches of a section to a copy of the package in a folder, and return the paths that they change."""
    patches = [text for kind, text in BLOCK.findall(section) if kind == "diff"]
    # With its bytecode, but for what another process is just writing, which has another name a moment later.
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.pyc.*"))
    for patch in patches:
        subprocess.run(
            ["git", "apply", "-"],
            input=patch.encode(),
            cwd=folder,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )
    return [name for patch in patches for name in re.findall(r"^\+\+\+ b/(.+)$", patch, re.MULTILINE)]


def ran(folder: Path, *command: str) -> str:
    """Run a Python program with the package in a folder, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.stdout or done.stderr


def printed_by(section: str, folder: Path) -> tuple[str, str]:
    """Apply the patches of a section, run its program, and return what it printed and what the page shows."""
    blocks = BLOCK.findall(section)
    patched(section, folder)
    (program,), (shown,) = ([text for kind, text in blocks if kind == wanted] for wanted in ("python", "text"))
    return ran(folder, "-c", program), shown


@pytest.mark.parametrize("section", SECTIONS, ids=[section.partition(":")[0] for section in SECTIONS])
def test_an_example_does_what_the_page_says(section, tmp_path):
    printed, shown = printed_by(section, tmp_path)
    assert printed == shown


def test_the_page_has_its_examples():
    assert len(SECTIONS) == 5
    assert PAGE.count("```text\n") == 5


def test_an_example_that_does_something_else_is_found(tmp_path):
    printed, shown = printed_by(SECTIONS[0].replace("ttft_ms: 1000", "ttft_ms: 1500"), tmp_path)
    assert printed != shown


def test_the_compliance_test_of_the_page_touches_three_files_and_is_run(tmp_path):
    (section,) = (text for text in SECTIONS if text.startswith("A compliance test"))
    assert len(patched(section, tmp_path)) == 3
    printed = ran(tmp_path, str(ROOT / "tests/compliance/logged_runs.py"), "TEST10", "Offline", str(tmp_path))
    assert printed.splitlines()[-3:] == ["End check pass: True", "TEST PASS", "TEST10 passed 100"]

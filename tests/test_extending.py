"""docs/extending.md: each worked example is applied to a copy of the package, and prints what the page says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
#: The sections with an example: a program, and what it prints.
SECTIONS = [section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if "```python\n" in section]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def applied(tmp_path_factory):
    """Return a function that returns a section by its title, and a copy of the sources with the section's patches."""

    @cache
    def apply(title: str) -> tuple[str, Path]:
        (section,) = (text for text in SECTIONS if text.startswith(f"{title}:"))
        folder = tmp_path_factory.mktemp("patched")
        patch_copy(section, folder)
        return section, folder

    return apply


def patch_copy(section: str, folder: Path) -> None:
    """Apply the patches of a section to a copy of the sources in a folder."""
    patches = [text for kind, text in BLOCK.findall(section) if kind == "diff"]
    # With its bytecode, but for what another process is just writing, which has another name a moment later.
    for name in ("src", "script", "automation"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("cmr.yaml", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    for patch in patches:
        subprocess.run(
            ["git", "apply", "-"],
            input=patch.encode(),
            cwd=folder,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )


def ran(folder: Path, *command: str, env: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a Python program in a folder, with the package that is there, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", **env},
    )
    return done.stdout or done.stderr


@pytest.mark.parametrize("title", [section.partition(":")[0] for section in SECTIONS])
def test_an_example_does_what_the_page_says(title, applied):
    section, folder = applied(title)
    (program,), (shown,) = ([text for kind, text in BLOCK.findall(section) if kind == of] for of in ("python", "text"))
    assert ran(folder, "-c", program) == shown


#: The files that a change of this kind may touch.
FILES = {
    "A new round with a benchmark": 4,
    "A compliance test": 3,
    "A launcher": 1,
    "A vendor of GPUs": 4,
    "vLLM renames an option": 3,
    "A check": 1,
}


@pytest.mark.parametrize(("title", "most"), FILES.items())
def test_a_change_touches_few_files(title, most, applied):
    assert len(re.findall(r"^\+\+\+ b/", applied(title)[0], re.MULTILINE)) <= most


def test_the_checks_of_the_page_are_documented_and_can_be_asked_for(applied):
    _, folder = applied("A check")
    page = ran(folder, str(ROOT / "docs/tools/checks_page.py"))
    assert "- must hold: the name of a system has at most 40 letters\n" in page and "### `CURVE-SHORT`" in page
    program = "from cm4vllm.results.check_command.tree_check import Filters; Filters.parse(codes='SYSTEM-LONG')"
    assert ran(folder, "-c", program) == ""


def test_the_compliance_test_of_the_page_is_run(applied, tmp_path):
    _, folder = applied("A compliance test")
    printed = ran(folder, str(ROOT / "tests/compliance/logged_runs.py"), "TEST10", "Offline", str(tmp_path))
    assert printed.splitlines()[-3:] == ["End check pass: True", "TEST PASS", "TEST10 passed 100"]


def test_the_new_round_is_planned_by_the_main_job(applied, tmp_path):
    _, folder = applied("A new round with a benchmark")
    home = {"CM_REPOS": str(tmp_path / "CM")}
    ran(folder, "-P", "-m", "cm4vllm.engine.tools.register", str(folder), env=home)
    words = ("-P", "-m", "cmind.cli", "run", "script", "--tags=run-mlperf,inference,_vllm")
    planned = ran(folder, *words, "--model=example-4b", "--device=cpu", "--plan", env=home)
    assert "get,mlperf,inference,loadgen,_r7.0" in planned
    assert "a result needs 600 s and all 5,000 samples" in planned

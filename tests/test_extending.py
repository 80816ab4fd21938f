"""docs/extending.md: each worked example is applied to a copy of the package, and prints what the page says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
#: The sections with an example: a program, and what it prints.
SECTIONS = [section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if "```python\n" in section]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def patched(section: str, folder: Path) -> None:
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


#: The files that a change of this kind may touch.
FILES = {"A new round with": 4, "A compliance test": 3, "A launcher": 2, "A vendor": 4, "vLLM renames": 3, "A check": 1}


@pytest.mark.parametrize(("title", "most"), FILES.items())
def test_a_change_touches_few_files(title, most):
    (section,) = (text for text in SECTIONS if text.startswith(title))
    assert len(re.findall(r"^\+\+\+ b/", section, re.MULTILINE)) <= most


def test_an_example_that_does_something_else_is_found(tmp_path):
    printed, shown = printed_by(SECTIONS[0].replace("ttft_ms: 1000", "ttft_ms: 1500"), tmp_path)
    assert printed != shown


def test_the_checks_of_the_page_are_documented_and_can_be_asked_for(tmp_path):
    (section,) = (text for text in SECTIONS if text.startswith("A check"))
    patched(section, tmp_path)
    page = ran(tmp_path, str(ROOT / "docs/tools/checks_page.py"))
    assert "- must hold: the name of a system has at most 40 letters\n" in page and "### `CURVE-SHORT`" in page
    program = "from cm4vllm.results.check_command.tree_check import Filters; Filters.parse(codes='SYSTEM-LONG')"
    assert ran(tmp_path, "-c", program) == ""


def test_the_compliance_test_of_the_page_is_run(tmp_path):
    (section,) = (text for text in SECTIONS if text.startswith("A compliance test"))
    patched(section, tmp_path)
    printed = ran(tmp_path, str(ROOT / "tests/compliance/logged_runs.py"), "TEST10", "Offline", str(tmp_path))
    assert printed.splitlines()[-3:] == ["End check pass: True", "TEST PASS", "TEST10 passed 100"]


def test_the_new_round_is_planned_by_the_main_job(tmp_path):
    (section,) = (text for text in SECTIONS if text.startswith("A new round with"))
    patched(section, tmp_path)
    home = {"CM_REPOS": str(tmp_path / "CM")}
    ran(tmp_path, "-P", "-m", "cm4vllm.engine.tools.register", str(tmp_path), env=home)
    words = ("-P", "-m", "cmind.cli", "run", "script", "--tags=run-mlperf,inference,_vllm")
    planned = ran(tmp_path, *words, "--model=example-4b", "--device=cpu", "--plan", env=home)
    assert "get,mlperf,inference,loadgen,_r7.0" in planned
    assert "a result needs 600 s and all 5,000 samples" in planned

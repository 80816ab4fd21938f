"""The program in a tree's src/: all of it, and it runs from there as a stranger would run it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.programs.own_program import MANIFEST
from cm4vllm.submission.published_program import write_program
from cm4vllm.submission.tree import build_tree

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _small_program():
    """Leave the program whole."""


#: Prints what a copy of the program says of itself, in the Python that has it first on its path.
SAYS = """
import json, cm4vllm
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.programs.own_program import commit_of_this_repository, program_files
print(json.dumps([cm4vllm.__file__, commit_of_this_repository(), [[f.name, f.published] for f in program_files()]]))
"""


def says(source: Path) -> tuple[str, str, dict[str, bool]]:
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    printed = subprocess.check_output([sys.executable, "-c", SAYS], env=env, text=True, cwd=source)
    where, commit, files = json.loads(printed)
    return where, commit, dict(files)


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if (ROOT / name).is_file() and not name.startswith("tests/")]
    return sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    write_program(folder)
    return folder


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Path:
    """A Python with all that cm4vllm needs, and without cm4vllm."""
    folder = tmp_path_factory.mktemp("stranger") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # Of a folder that a .pth file names, no .pth file is read: a checkout that is installed so is not found.
    site = next((folder / "lib").glob("python3*/site-packages"))
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def test_the_program_is_what_git_lists_byte_for_byte(copy):
    names = tracked()
    assert sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()) == sorted(
        [*names, MANIFEST]
    )
    for name in names:
        assert (copy / name).read_bytes() == (ROOT / name).read_bytes(), name
        assert os.access(copy / name, os.X_OK) == os.access(ROOT / name, os.X_OK), name
    data = "report/templates/summary.css py.typed engine/tools/templates/python/_cm.yaml.in rules/digests"
    assert all((copy / "src/cm4vllm" / name).exists() for name in data.split())


def test_a_copy_lists_itself_and_knows_its_commit(copy):
    where, commit, files = says(copy / "src")
    assert where == str(copy / "src" / "cm4vllm" / "__init__.py")
    assert sorted(files) == tracked() and all(files.values())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert commit.removesuffix("+changes") == head.strip()


def test_a_copy_that_was_changed_says_so(copy, tmp_path):
    changed = shutil.copytree(copy, tmp_path / "changed")
    (changed / "README.md").write_text("other\n")
    (changed / "Makefile").unlink()
    _, commit, files = says(changed / "src")
    assert commit.endswith("+changes")
    assert files["README.md"] is False and "Makefile" not in files and files["cmr.yaml"] is True


def test_an_archive_without_git_and_manifest_is_listed_too(copy, tmp_path):
    archive = shutil.copytree(copy, tmp_path / "archive")
    (archive / MANIFEST).unlink()
    (archive / "src/cm4vllm/__pycache__").mkdir(exist_ok=True)
    (archive / "src/cm4vllm/__pycache__/x.pyc").write_text("")
    (archive / ".venv").mkdir()
    (archive / ".venv/secret.py").write_text("")
    _, commit, files = says(archive / "src")
    assert commit == ""
    assert sorted(files) == tracked()


def test_an_installed_package_is_listed_by_its_record_and_the_main_job_can_be_planned_with_its_copy(tmp_path, stranger):
    make = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    wheel = subprocess.run(make, capture_output=True, text=True, check=False)
    assert wheel.returncode == 0, wheel.stdout + wheel.stderr
    pip = [sys.executable, *"-m pip install --no-deps --no-index --no-compile --target".split(), tmp_path / "site"]
    subprocess.run([*pip, *tmp_path.glob("*.whl")], check=True, capture_output=True)
    _, commit, files = says(tmp_path / "site")
    assert commit == "" and all(files.values())
    parts = ("cmr.yaml", "requirements.txt", "automation/", "script/", "src/cm4vllm/")
    assert sorted(files) == [name for name in tracked() if name.startswith(parts)]
    code = (
        "import sys, pathlib\nfrom cm4vllm.submission.published_program import write_program\n"
        "write_program(pathlib.Path(sys.argv[1]))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    subprocess.run([sys.executable, "-c", code, tmp_path / "copy"], check=True, env=env)
    plan = runs_from(tmp_path / "copy", stranger, tmp_path / "CM")
    assert re.search(r"generate,mlperf,inference,submission", plan)
    code = "import importlib.util as u; print(u.find_spec('cm4vllm'))"
    where = subprocess.check_output([stranger, "-c", code], text=True, cwd=tmp_path)
    assert where.strip() == "None", "the stranger has a cm4vllm of another place"


def runs_from(program: Path, python: Path, home: Path) -> str:
    """Register a program's folder in a new CM home and plan the main job, as the page beside it says; return it."""
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "CM_REPOS": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    given = {"env": env, "cwd": home, "text": True, "capture_output": True, "timeout": 120, "check": False}
    for words in (f"add repo --path={program}", "run script --tags=run-mlperf,inference,_vllm --plan"):
        done = subprocess.run([python, "-m", "cmind.cli", *words.split(" ")], **given)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not found" not in done.stdout + done.stderr
    return done.stdout


def test_the_program_of_a_tree_is_whole(campaign, copy):
    asked = campaign()
    program = build_tree(asked) / "open" / asked.submitter / "src" / "cm4vllm"
    assert sha256_of_tree(program) == sha256_of_tree(copy)

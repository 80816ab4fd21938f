"""A git repository with files of every kind; results in folders, and files of others."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.folders.ownership_notes import Kind

CHECKER = "tools/submission/submission_checker/main.py"


def git(folder, *words, **more):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True, **more)
    return done.stdout.strip()


def committed(folder):
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "repository"
    (folder / CHECKER).parent.mkdir(parents=True)
    (folder / CHECKER).write_text("print('as published')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "with space").mkdir()
    (folder / "with space" / "größe.txt").write_text("$Format:%H$\r\n")
    (folder / "link").symlink_to("run.sh")
    (folder / ".gitattributes").write_text("*.txt export-subst filter=trap\n*.sh export-ignore\n*.py filter=trap\n")
    (folder / ".gitignore").write_text("*.pyc\n")
    git(folder, "init", "-q")
    return committed(folder)


@pytest.fixture
def repository(published, tmp_path):
    return Path(shutil.copytree(published, tmp_path / "repository", symlinks=True))


def commit_of(repository):
    return git(repository, "rev-parse", "HEAD")


# --- results


KIND = Kind("a test", "--folder", recognised=lambda folder: (folder / "record.json").is_file())


def files_of(folder):
    """Return the files of a folder with their contents, and its links; without the notes of cm4vllm."""
    return {
        path.relative_to(folder).as_posix(): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file()) and not path.name.endswith(".cm4vllm.json")
    }


def made(target, kind=None, **files):
    with staged_folder(target, kind) as staging:
        for name, text in (files or {"log": "new"}).items():
            write_text(staging / name, text)


def failed(target, failure=ValueError):
    with pytest.raises(failure), staged_folder(target) as staging:
        write_text(staging / "log", "half")
        raise failure


FOREIGN = {"notes.txt": b"mine", "sub/thesis.tex": b"\\documentclass", ".git/HEAD": b"ref: x", ".env": b"A=1"}


def fill(folder, files=FOREIGN):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

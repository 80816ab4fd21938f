"""The program in a tree: what ran, said in one page, and the program itself, as it runs from there."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import cm4vllm
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import sha256_of, write_text
from cm4vllm.common.program import MANIFEST, commit_of_this_repository, program_files
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.submission.writing import GENERATE

__all__ = ["PROGRAM_FOLDER", "add_program", "program_digest", "source_page", "write_program"]

#: The program's folder in that which the tree's layout gives programs.
PROGRAM_FOLDER = "cm4vllm"


def write_program(folder: Path) -> list[str]:
    """Copy the program to `folder` with a MANIFEST of its files; return the names of those that no commit holds."""
    lines = [f"# cm4vllm {cm4vllm.__version__}, commit {commit_of_this_repository() or 'unknown'}"]
    changed = []
    for file in program_files():
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, target)
        shutil.copymode(file.path, target)
        lines.append(f"{sha256_of(target)}  {file.name}")
        if not file.published:
            changed.append(file.name)
    write_text(folder / MANIFEST, "\n".join(lines) + "\n")
    return changed


def program_digest() -> str:
    """Return one SHA-256 for the names and contents of the program's files: those that its MANIFEST lists."""
    lines = (f"{sha256_of(file.path)}  {file.name}\n" for file in program_files())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def add_program(folder: Path) -> list[str]:
    """Copy the program to `folder` as write_program does, unless it is there already.

    Raises SubmissionError where another version of it is there.
    """
    if not folder.exists():
        return write_program(folder)
    with tempfile.TemporaryDirectory(prefix="mlperf-program-") as aside:
        changed = write_program(Path(aside))
        listed = folder / MANIFEST
        same = listed.is_file() and listed.read_bytes() == (Path(aside) / MANIFEST).read_bytes()
    if not same:
        raise SubmissionError(
            "the tree holds another version of the program",
            cause=f"its {MANIFEST} is another",
            remedy=f"build the tree again from all results folders: --tags={GENERATE} without --add",
        )
    return changed


def source_page(command: str, commit: str, run: RunRecord) -> str:
    """Return a campaign's part of README.md in its model's folder; `command` is the published one."""
    settings, versions = run.settings, run.versions
    notice = f"> **{run.notice}**\n\n" if run.notice else ""
    origin = f", commit {commit}" if commit else ", not from a checkout"
    listed = "\n".join(f"- {name} {version}" for name, version in sorted(versions.items()))
    return f"""{notice}The runs were made by cm4vllm {cm4vllm.__version__}{origin}. All of it lies beside this page, in
`../{PROGRAM_FOLDER}`, which is a repository of Collective Mind (CM); `{MANIFEST}` in it lists its files. To run it from
there, in an environment of its own:

```bash
pip install -r ../{PROGRAM_FOLDER}/requirements.txt
cm add repo --path="$(realpath ../{PROGRAM_FOLDER})"
```

This command made the runs. Variables stand for what is known only where it was typed: paths, servers, secrets.

```bash
{command}
```

`../{PROGRAM_FOLDER}/src/cm4vllm/loadgen` is the system under test that LoadGen drives; it sends each sample's tokens to
{settings.server.named} over HTTP, and reports the tokens that come back.

LoadGen {run.loadgen_version}, round {settings.round}, with:

{listed or "- no further packages recorded"}

The settings of each run are in its `user.conf`, its measurements and its `README.md`.
"""

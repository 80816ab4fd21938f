"""The program in a tree: what ran, said in one page, and the program itself, as it runs from there."""

import hashlib
import re
import shutil
from pathlib import Path

import cm4vllm
from cm4vllm.common.errors import CmError, SubmissionError
from cm4vllm.common.files import bytes_of, sha256_of, text_of, write_text
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.own_program import MANIFEST, commit_of_this_repository, program_files
from cm4vllm.records.run import RunRecord
from cm4vllm.submission.tree_writer import GENERATE

#: The program's folder in that which the tree's layout gives programs.
PROGRAM_FOLDER = "cm4vllm"
#: The name of a version's folder, and how a page names it.
_VERSION = re.compile(rf"{PROGRAM_FOLDER}(?:-[0-9a-f]{{8}})?")
_NAMED = re.compile(rf"`\.\./({_VERSION.pattern})`")


def write_program(folder: Path) -> list[str]:
    """Copy the program to `folder` with a MANIFEST of its files; return the names of files that are in no commit."""
    files = program_files()
    for file in files:
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.path, target)
    first = f"# cm4vllm {cm4vllm.__version__}, commit {commit_of_this_repository() or 'unknown'}\n"
    write_text(folder / MANIFEST, first + "".join(f"{sha256_of(folder / file.name)}  {file.name}\n" for file in files))
    return [file.name for file in files if not file.published]


def program_digest() -> str:
    """Return one SHA-256 for the names and contents of the files that the program's MANIFEST lists."""
    lines = (f"{sha256_of(file.path)}  {file.name}\n" for file in program_files())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def add_program(folder: Path) -> tuple[str, list[str]]:
    """Copy the program below `folder`, the tree's folder of programs, unless this version of it is there already.

    Return the name of its folder, and the names of the files that no commit holds. Another version keeps its folder:
    this one gets a folder beside it, named by the digest of its MANIFEST. Raises SubmissionError where a version that
    is there is not what its MANIFEST lists.
    """
    if not (there := program_folders(folder)):
        return PROGRAM_FOLDER, write_program(folder / PROGRAM_FOLDER)
    for program in there:
        _require_whole(program)
    with scratch_folder("mlperf-program-") as aside:
        changed = write_program(aside)
        manifest = bytes_of(aside / MANIFEST)
        same = [program.name for program in there if bytes_of(program / MANIFEST) == manifest]
        name = same[0] if same else f"{PROGRAM_FOLDER}-{hashlib.sha256(manifest).hexdigest()[:8]}"
        if not same:
            shutil.copytree(aside, folder / name)
            (folder / name).chmod(0o755)  # that of a temporary folder is for its owner alone
    return name, changed


def program_folders(folder: Path) -> list[Path]:
    """Return the folders of all versions of the program below a tree's folder of programs."""
    return sorted(path for path in folder.glob(f"{PROGRAM_FOLDER}*") if _VERSION.fullmatch(path.name) and path.is_dir())


def published_files(folder: Path) -> frozenset[str]:
    """Return the digests of a version's files where its MANIFEST names the commit that holds them all."""
    try:
        first, *lines = bytes_of(folder / MANIFEST).decode().splitlines()
    except (OSError, ValueError):
        return frozenset()
    clean = first.startswith("#") and not first.endswith(("+changes", "unknown"))
    return frozenset(line.partition("  ")[0] for line in lines) if clean else frozenset()


def remove_unnamed_programs(folder: Path) -> None:
    """Remove the versions of the program that no page below `folder` names; none where no page names any."""
    named = {name for path in folder.glob("*/README.md") for name in _NAMED.findall(text_of(path))}
    for program in program_folders(folder) if named else ():
        if program.name not in named:
            shutil.rmtree(program)


def _require_whole(folder: Path) -> None:
    try:
        lines = bytes_of(folder / MANIFEST).decode().splitlines()
        wrong = [
            line.partition("  ")[2]
            for line in lines
            if not line.startswith("#") and sha256_of(folder / line.partition("  ")[2]) != line.partition("  ")[0]
        ]
    except (OSError, ValueError, CmError) as error:
        wrong = [str(error)]
    if wrong:
        raise SubmissionError(
            f"the program in {folder.parent.name}/{folder.name} of the tree is not what its {MANIFEST} lists",
            cause=", ".join(wrong[:5]),
            remedy=f"build the tree again from all results folders: --tags={GENERATE} without --add",
        )


def source_page(command: str, commit: str, run: RunRecord, program: str = PROGRAM_FOLDER) -> str:
    """Return a campaign's part of README.md in its model's folder; `command` is the published one.

    `commit` is that of the program that made the runs, `program` the folder of the one that builds the tree.
    """
    settings, versions = run.settings, run.versions
    origin = f", commit {commit}" if commit else ", not from a checkout"
    here = commit_of_this_repository()
    if commit == here:
        made, lies = f"cm4vllm {cm4vllm.__version__}{origin}", "All of it lies"
    else:
        made = f"cm4vllm{origin}"
        lies = f"The program that built this part of the tree{f', commit {here},' if here else ''} lies"
    listed = "\n".join(f"- {name} {version}" for name, version in sorted(versions.items()))
    return f"""The runs were made by {made}. {lies} beside this page, in
`../{program}`, which is a repository of Collective Mind (CM); `{MANIFEST}` in it lists its files. To run it from
there, in an environment of its own:

```bash
pip install -r ../{program}/requirements.txt
cm add repo --path="$(realpath ../{program})"
```

This command made the runs. Variables stand for what is known only where it was typed: paths, servers, secrets.

```bash
{command}
```

`../{program}/src/cm4vllm/loadgen` is the system under test that LoadGen drives; it sends each sample's tokens to
{settings.server.named} over HTTP, and reports the tokens that come back.

LoadGen {run.loadgen_version}, round {settings.round}, with:

{listed or "- no further packages recorded"}

The settings of each run are in its `user.conf`, its measurements and its `README.md`.
"""

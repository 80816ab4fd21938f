"""The tree's src/: what ran, said in one page, and the program itself, whole enough to run it again."""

from __future__ import annotations

from pathlib import Path

import cm4vllm
from cm4vllm.loadgen.records import RunRecord

__all__ = ["program_files", "source_files"]

_FOLDER = "cm4vllm"
_SUFFIXES = frozenset({".py", ".yaml", ".sh", ".md", ".toml", ".txt", ".html", ".j2", ".typed"})
_REPOSITORY = ("cmr.yaml", "requirements.txt", "pyproject.toml", "README.md", "Makefile", "automation", "script")


def source_files(model: str, command: str, commit: str, run: RunRecord) -> dict[str, str]:
    """Return the files below src/ by their path: <model>/README.md and the CM repository cm4vllm/."""
    files = {f"{model}/README.md": _page(model, command, commit, run)}
    return files | {f"{_FOLDER}/{path}": text for path, text in program_files().items()}


def _page(model: str, command: str, commit: str, run: RunRecord) -> str:
    settings, versions = run.settings, run.versions
    notice = f"> **{run.notice}**\n\n" if run.notice else ""
    origin = f", commit {commit}" if commit else ", not from a checkout"
    listed = "\n".join(f"- {name} {version}" for name, version in sorted(versions.items()))
    return f"""# {model}: what ran

{notice}The runs were made by cm4vllm {cm4vllm.__version__}{origin}, with this command:

    {command}

The program lies beside this page in `../{_FOLDER}`, which is a CM repository: `cm add repo --path=<that folder>` makes
the command known. `src/cm4vllm/loadgen` is the system under test that LoadGen drives; it sends each sample's tokens to
vLLM {settings.server.version} over HTTP, and reports the tokens that come back.

LoadGen {run.loadgen_version}, round {settings.round}, with:

{listed or "- no further packages recorded"}

The settings of each run are in its `user.conf`, `measurements.json` and `README.md` below `results/`.
"""


def program_files() -> dict[str, str]:
    """Return the texts of the CM repository that runs, by their path in it."""
    package = Path(cm4vllm.__file__).resolve().parent
    # In a checkout the repository is two folders up; a wheel carries it inside the package.
    root = package if (package / "cmr.yaml").is_file() else package.parents[1]
    files = {f"src/{_FOLDER}/{path.relative_to(package).as_posix()}": path
             for path in _texts(package) if root != package or path.relative_to(package).parts[0] not in _REPOSITORY}
    for name in _REPOSITORY:
        top = root / name
        for path in _texts(top) if top.is_dir() else [top] if top.is_file() else []:
            files[path.relative_to(root).as_posix()] = path
    return {name: path.read_text() for name, path in sorted(files.items()) if path.stat().st_size}


def _texts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix in _SUFFIXES
            and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)]

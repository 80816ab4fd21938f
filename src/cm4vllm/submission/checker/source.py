"""The sources of the official checker: mlcommons/inference at one commit, from a folder of the user's or from its home.

Nothing of it is ever changed: the checker's files are copied out of git, or out of a folder whose files are as git has
them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.files import bytes_of, sha256_of_tree, typed_path
from cm4vllm.common.git.git_objects import GitObjects, changed_files, objects_of, require_own
from cm4vllm.common.git.git_source import extract, fetch_checkout, git_directory
from cm4vllm.common.settings import Key, Settings
from cm4vllm.rules import default_round, round_terms

#: The commit of mlcommons/inference whose checkers the default round has.
COMMIT = round_terms(default_round()).checkers[0].commit
URL = "https://github.com/mlcommons/inference"
_TOOLS = "tools/submission"
_REMEDY = (
    "give a checkout or a git directory of mlcommons/inference that holds the commit: --inference_src=DIR\n"
    f"(made elsewhere with: git clone --bare {URL})"
)


@dataclass(frozen=True)
class Source:
    """The place of the sources. `git` is their git directory, None for plain files; `commit` is their revision."""

    path: Path
    git: Path | None
    commit: str

    def env(self) -> dict[str, str]:
        """Return the exports of the recipes that provide the sources."""
        return {"CM_MLPERF_INFERENCE_SOURCE": str(self.path), "CM_MLPERF_INFERENCE_SOURCE_COMMIT": self.commit}


class SourceInputs(Settings, frozen=True, kw_only=True):
    """The folder of the sources that the user names, and that of the recipe which provides them."""

    given_dir: input_types.InferenceSource = ""
    provided_dir: Annotated[str, Key("CM_MLPERF_INFERENCE_SOURCE")] = ""

    @property
    def given(self) -> Source | None:
        """The sources that the user names. Raises SourceUnavailable."""
        return open_source(typed_path(self.given_dir).absolute()) if self.given_dir else None

    @property
    def provided(self) -> Source:
        """The sources that a recipe provides. Raises SourceUnavailable."""
        return open_source(Path(self.provided_dir))


def open_source(path: Path) -> Source:
    """Return the sources in `path`: a bare git directory, a checkout, or plain files of one.

    The pinned commit is taken from git where it is there, whatever is checked out. Raises SourceUnavailable otherwise,
    and for a checkout of another commit whose checker was changed.
    """
    if not path.is_dir():
        raise SourceUnavailable(f"no folder {path}", remedy=_REMEDY)
    if (git := git_directory(path)) is not None:
        with objects_of(git, remedy=_REMEDY) as objects:
            if objects.commit(COMMIT) is not None:
                return Source(path, git, COMMIT)
            if git == path:
                raise SourceUnavailable(f"{path} does not hold commit {COMMIT}", remedy=_REMEDY)
            return Source(path, git, _checked_out(path, objects))
    if not (path / _TOOLS / "submission_checker" / "main.py").is_file():
        raise SourceUnavailable(
            f"{path} holds no submission checker", cause=f"no {_TOOLS}/submission_checker in it", remedy=_REMEDY
        )
    require_own(path, f"it is no git directory with commit {COMMIT}, whose files can be compared", _REMEDY)
    return Source(path, None, f"files with sha256 {sha256_of_tree(path / _TOOLS / 'submission_checker')}")


def _checked_out(path: Path, objects: GitObjects) -> str:
    """Return the commit of a checkout. Raises SourceUnavailable where it has no checker, or changed files of one."""
    if (commit := objects.commit("HEAD")) is None:
        raise SourceUnavailable(f"{path} has no commit", cause="its HEAD names none that git can read", remedy=_REMEDY)
    if changes := changed_files(path, objects, commit, [_TOOLS]):
        raise SourceUnavailable(
            f"the checker in {path} was changed",
            cause=", ".join(changes),
            remedy="undo the changes: a submission is judged by the unchanged checker",
        )
    return commit


def fetch(folder: Path, url: str = URL, commit: str = COMMIT) -> Source:
    """Fetch the checker's files at `commit`, and no more, into a sparse checkout at `folder`.

    Raises SourceUnavailable, within seconds where the network does not answer.
    """
    if (folder / ".git").exists():
        return open_source(folder)
    patterns = (f"/{_TOOLS}/**/*.py", f"/{_TOOLS}/*.py")
    fetch_checkout(folder, url, commit, patterns, title="the official checker's sources", remedy=_REMEDY)
    return Source(folder, folder / ".git", commit)


def extract_checker(source: Source, target: Path, commit: str = "") -> tuple[Path, str]:
    """Copy a checker's Python files at `commit`, unchanged, under `target`; return their folder and the whole commit.

    Without `commit` it is the one that the sources were opened at.

    Raises SourceUnavailable when the sources are plain files of another commit, or a git directory without it.
    """
    if (git := source.git) is None:
        if not source.commit.startswith(commit):
            raise SourceUnavailable(
                f"{source.path} holds the checker of one commit",
                remedy=_REMEDY,
                cause=f"the round is checked by the one at {commit}, too",
            )
        for file in (source.path / _TOOLS).rglob("*.py"):
            copy = target / file.relative_to(source.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(bytes_of(file))
        return target / _TOOLS, source.commit
    wanted = commit or source.commit
    with objects_of(git, remedy=_REMEDY) as objects:
        if objects.commit(wanted) is None:
            raise SourceUnavailable(
                f"{git} does not hold {wanted}", remedy=_REMEDY, cause="the round's checker is taken from that commit"
            )
        names = [name for name in objects.files(wanted, [_TOOLS]) if name.endswith(".py")]
    extract(git, wanted, names, target, remedy=_REMEDY)
    return target / _TOOLS, wanted

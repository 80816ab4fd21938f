"""The sources of the reference client: the commit that is asked for, and a checkout of it."""

import re
from pathlib import Path

from cm4vllm.common.errors import SourceUnavailable, UsageError
from cm4vllm.common.files import given_path
from cm4vllm.common.git.git_objects import objects_of
from cm4vllm.common.git.git_source import copy_checkout, fetch_checkout, git_directory
from cm4vllm.rules import endpoints_rules

#: The client's packages, with their hashes, as its checkout pins them.
LOCK = "uv.lock"

_TITLE = "the reference client"
_SOURCE_REMEDY = "give a checkout or git directory of mlcommons/endpoints with --endpoints_src=FOLDER"
_COMMIT_REMEDY = (
    "fetch the commit there (`git fetch`), give another folder with --endpoints_src, or another commit with "
    "--endpoints_commit"
)
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_WHOLE = 40


def wanted_commit(given: str, source: str = "") -> str:
    """Return the whole name of the client's commit: the `given` one, else the newest that was tried.

    `source` is a checkout or git directory that holds it, empty where it is fetched from its home. Raises UsageError
    for what is no name of one commit, SourceUnavailable where the source lacks the commit or its pinned packages.
    """
    asked = given.strip().lower() or endpoints_rules().client.commits[-1]
    if not _COMMIT.fullmatch(asked):
        raise UsageError(
            f"--endpoints_commit={given} names no commit",
            cause="a commit is named by the 40 hexadecimal digits of its name, or by its first 7 at least",
            remedy="`git rev-parse HEAD` in a checkout prints its commit",
        )
    return _commit_in(given_path(source), asked) if source else _commit_at_home(asked)


def is_tried(commit: str) -> bool:
    """Return True if this project was tried with the client at this commit."""
    return commit in endpoints_rules().client.commits


def _commit_at_home(asked: str) -> str:
    """Return the whole name of a commit that is fetched from the repository's home, which takes no part of a name."""
    rules = endpoints_rules().client
    known = [commit for commit in rules.commits if commit.startswith(asked)]
    if len(asked) == _WHOLE or len(known) == 1:
        return known[0] if known else asked
    raise UsageError(
        f"--endpoints_commit={asked} is only a part of the name of a commit",
        cause=f"{rules.repository} gives a commit by its whole name; known here: {', '.join(rules.commits)}",
        remedy="give all 40 digits, or a checkout or git directory that holds the commit with --endpoints_src=FOLDER",
    )


def _commit_in(source: Path, asked: str) -> str:
    """Return the whole name of a commit that a checkout or git directory holds, with the client's pinned packages."""
    git = _git_directory(source)
    with objects_of(git, remedy=_COMMIT_REMEDY) as objects:
        if (commit := objects.commit(asked)) is None:
            raise SourceUnavailable(
                f"{git} does not hold {_TITLE} at {asked}",
                cause="no commit there has this name"
                if len(asked) == _WHOLE
                else "no commit there has a name that begins so, or several have",
                remedy=_COMMIT_REMEDY,
            )
        if not any(name == LOCK for name in objects.files(commit)):
            raise missing_lock(commit)
    return commit


def missing_lock(commit: str) -> SourceUnavailable:
    """Return the error for a commit that does not pin the packages of the client."""
    return SourceUnavailable(
        f"{_TITLE} at {commit[:12]} has no {LOCK}",
        cause="its packages are installed as that file pins them, each with its hash",
        remedy="choose a commit of mlcommons/endpoints that has the file with --endpoints_commit",
    )


def client_checkout(folder: Path, source: Path | None, url: str, commit: str) -> Path:
    """Return a checkout of the client at its commit, from a git directory at hand or from its home."""
    if source is None:
        return fetch_checkout(folder, url, commit, ["/*"], title=_TITLE, remedy=_SOURCE_REMEDY)
    return copy_checkout(_git_directory(source), commit, folder, title=_TITLE, remedy=_SOURCE_REMEDY)


def _git_directory(source: Path) -> Path:
    if (git := git_directory(source)) is None:
        raise SourceUnavailable(f"{source} is no git checkout", remedy=_SOURCE_REMEDY)
    return git

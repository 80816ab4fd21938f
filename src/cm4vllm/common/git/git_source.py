"""Files of a git repository at one commit: fetched from its home, or taken from a git directory at hand, unchanged."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.git.git_objects import (
    MOST_ALTOGETHER,
    NO_CONFIGURATION,
    OF_A_REPOSITORY,
    OWN_CONFIGURATION,
    borrowed,
    objects_of,
)
from cm4vllm.common.host_addresses import through_proxy
from cm4vllm.common.programs.processes import run

_CONNECT_S = 5.0
_FETCH_S = 300.0
#: No hooks of a template, and the forms that `borrowed` reads.
_INIT = ("init", "--quiet", "--template=")
_FORMS = {"GIT_DEFAULT_HASH": "sha1", "GIT_DEFAULT_REF_FORMAT": "files"}
#: What a user configures of the way to a repository: proxies, certificates, other addresses, credentials. All else, as
#: filters, line ends and hooks, would give files that the commit does not have.
_OF_THE_WAY = re.compile(
    r"(?:http|url|credential|ssh|protocol|safe)\..+|core\.(?:sshcommand|gitproxy|askpass)", re.I | re.S
)
#: Those of them that lead to another host than the address names.
_ANOTHER = re.compile(r"^url\.|proxy$", re.I)
#: Each file as the commit has it, whatever attributes the commit gives it: they come before those.
_ATTRIBUTES = "* -text -crlf -ident -filter !eol !working-tree-encoding\n"


def git_directory(path: Path) -> Path | None:
    """Return the git directory of a checkout, or the path itself if it is one; None for any other path."""
    if (path / "objects").is_dir() and (path / "HEAD").is_file():
        return path
    return path / ".git" if (path / ".git").exists() else None


def fetch_checkout(
    folder: Path, url: str, commit: str, patterns: Sequence[str], *, title: str = "sources", remedy: str = ""
) -> Path:
    """Fetch the files at `commit` that fit the patterns (of sparse-checkout), and no more, into `folder`; return it.

    Of the user's configuration of git, only that of the way to the repository counts. `title` names the sources in
    messages. Raises SourceUnavailable, within seconds where the network does not answer.
    """
    if (folder / ".git").exists():
        return folder
    if shutil.which("git") is None:
        raise SourceUnavailable(f"{title} cannot be fetched", cause="`git` not found on PATH", remedy=remedy)
    way = _way(title, remedy)
    _reach(url, way, remedy)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with staged_folder(folder) as staging:
        _begin(staging, title, remedy)
        for words in (
            ["remote", "add", "origin", url],
            ["config", "core.sparseCheckout", "true"],
            ["sparse-checkout", "set", "--no-cone", *patterns],
            ["fetch", "--quiet", "--depth=1", "--filter=blob:none", "--no-tags", "origin", commit],
            ["checkout", "--quiet", "--detach", commit],
        ):
            _fetching(staging, url, words, way, title, remedy)
    return folder


def copy_checkout(git: Path, commit: str, folder: Path, *, title: str, remedy: str = "") -> Path:
    """Make a checkout in `folder`, with a repository of its own, of a commit in a git directory; return it.

    git compares each object with its name where it is copied. Raises SourceUnavailable.
    """
    with objects_of(git, remedy=remedy) as objects:
        whole = objects.commit(commit) or commit  # what is fetched has its whole name
    with staged_folder(folder) as staging, borrowed(git) as own:
        _begin(staging, title, remedy)
        for words in (
            ["fetch", "--quiet", "--depth=1", "--no-tags", f"file://{own}", whole],
            ["checkout", "--quiet", "--detach", whole],
        ):
            done = run(["git", *words], cwd=staging, without=OF_A_REPOSITORY, env=OWN_CONFIGURATION)
            if not done.ok:
                raise SourceUnavailable(f"{git} does not hold {title} at {commit}", cause=done.tail(3), remedy=remedy)
    return folder


def extract(git: Path, commit: str, paths: Sequence[str], target: Path, *, remedy: str = "") -> None:
    """Write the files of a git directory at `commit` that are or lie below some paths to `target`, byte for byte.

    Nothing of the directory's configuration is used. Raises SourceUnavailable, also where a file has another content
    than its name in git says, for a link that leads out of `target`, and for files of too many bytes.
    """
    written = 0
    with objects_of(git, remedy=remedy) as objects:
        for name, entry in objects.files(commit, paths).items():
            file, content = target / name, objects.read(entry)
            written += len(content)
            if written > MOST_ALTOGETHER:
                raise SourceUnavailable(
                    f"the files of {git} at {commit} are too large",
                    cause=f"they have more than {MOST_ALTOGETHER:,} bytes altogether",
                    remedy=remedy,
                )
            file.parent.mkdir(parents=True, exist_ok=True)
            if entry.is_link:
                if not (file.parent / os.fsdecode(content)).resolve().is_relative_to(target.resolve()):
                    raise SourceUnavailable(f"{name} at {commit} is a link out of the repository", remedy=remedy)
                file.symlink_to(os.fsdecode(content))
                continue
            file.write_bytes(content)
            file.chmod(0o755 if entry.is_executable else 0o644)


def _begin(folder: Path, title: str, remedy: str) -> None:
    """Make an empty repository in a folder, whose files will be as its commits have them. Raises SourceUnavailable."""
    done = run(["git", *_INIT], cwd=folder, without=OF_A_REPOSITORY, env={**OWN_CONFIGURATION, **_FORMS})
    if not done.ok:
        raise SourceUnavailable(f"no repository can be made for {title}", cause=done.tail(3), remedy=remedy)
    info = folder / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")


def _way(title: str, remedy: str) -> dict[str, str]:
    """Return the variables by which git gets the user's configuration of the way to a repository, and no other.

    Raises SourceUnavailable where git cannot read the user's configuration.
    """
    # In a folder of no repository, whose configuration would count, too.
    listed = run(["git", "config", "--list", "--includes", "-z"], cwd=Path("/"), without=OF_A_REPOSITORY)
    if not listed.ok:
        raise SourceUnavailable(
            f"{title} cannot be fetched: git cannot read its configuration", cause=listed.tail(3), remedy=remedy
        )
    entries = [entry.partition("\n") for entry in listed.output.split("\0")]
    kept = [(name, value if equals else "true") for name, equals, value in entries if _OF_THE_WAY.fullmatch(name)]
    pairs = {f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in enumerate(kept)}
    pairs |= {f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(kept)}
    return {**NO_CONFIGURATION, "GIT_CONFIG_COUNT": str(len(kept)), **pairs}


def _reach(url: str, way: Mapping[str, str], remedy: str) -> None:
    """Find out in seconds whether the host of `url` answers: git itself waits for minutes."""
    another = any(name.startswith("GIT_CONFIG_KEY_") and _ANOTHER.search(key) for name, key in way.items())
    if not url.startswith("https://") or through_proxy(url) or another:
        return
    host = url.split("/")[2]
    try:
        socket.create_connection((host, 443), timeout=_CONNECT_S).close()
    except OSError as error:
        raise SourceUnavailable(f"{url} cannot be reached", cause=str(error), remedy=remedy) from error


def _fetching(folder: Path, url: str, words: list[str], way: Mapping[str, str], title: str, remedy: str) -> None:
    settings = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=15"]
    try:
        done = run(
            ["git", *settings, *words],
            cwd=folder,
            timeout_s=_FETCH_S,
            env={**way, "GIT_TERMINAL_PROMPT": "0"},
            without=OF_A_REPOSITORY,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(
            f"{url} answers too slowly", cause=f"no end after {_FETCH_S:.0f} s", remedy=remedy
        ) from error
    if not done.ok:
        cause = done.tail(5) + through_proxy(url)
        raise SourceUnavailable(f"{title} cannot be fetched from {url}", cause=cause, remedy=remedy)

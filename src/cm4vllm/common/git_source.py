"""Files of a git repository at one commit: fetched from its home, or taken from a git directory at hand, unchanged."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.files import staged_folder
from cm4vllm.common.processes import run

__all__ = ["extract", "fetch_checkout", "git_directory"]

_CONNECT_S = 5.0
_FETCH_S = 300.0


def git_directory(path: Path) -> Path | None:
    """Return the git directory of a checkout, or the path itself if it is one; None for any other path."""
    if (path / "objects").is_dir() and (path / "HEAD").is_file():
        return path
    return path / ".git" if (path / ".git").exists() else None


def fetch_checkout(
    folder: Path, url: str, commit: str, patterns: Sequence[str], *, title: str = "sources", remedy: str = ""
) -> Path:
    """Fetch the files at `commit` that fit the patterns (of sparse-checkout), and no more, into `folder`; return it.

    `title` names the sources in messages. Raises SourceUnavailable, within seconds where the network does not answer.
    """
    if (folder / ".git").exists():
        return folder
    if shutil.which("git") is None:
        raise SourceUnavailable(f"{title} cannot be fetched", cause="`git` not found on PATH", remedy=remedy)
    _reach(url, remedy)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with staged_folder(folder) as staging:
        for words in (
            ["init", "--quiet"],
            ["remote", "add", "origin", url],
            ["config", "core.sparseCheckout", "true"],
            ["sparse-checkout", "set", "--no-cone", *patterns],
            ["fetch", "--quiet", "--depth=1", "--filter=blob:none", "--no-tags", "origin", commit],
            ["checkout", "--quiet", "--detach", commit],
        ):
            _fetching(staging, url, words, title, remedy)
    return folder


def extract(git: Path, commit: str, paths: Sequence[str], target: Path, *, remedy: str = "") -> None:
    """Write the files of a git directory at `commit` below some paths to `target`, byte for byte.

    Raises SourceUnavailable.
    """
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", f"--git-dir={git}", "archive", "--format=tar", commit, *paths],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SourceUnavailable(
            f"{git} does not hold {', '.join(paths)} at {commit}",
            cause=done.stderr.decode(errors="replace").strip(),
            remedy=remedy,
        )
    _unpack(done.stdout, target, remedy)


def _unpack(packed: bytes, target: Path, remedy: str) -> None:
    """Write the files and folders of a tar archive below `target`; refuse links, and names that lead out of it.

    The extraction filters of tarfile came with Python 3.11.4.
    """
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            path = target / member.name
            if member.name.startswith("/") or ".." in path.relative_to(target).parts:
                raise SourceUnavailable(f"{member.name!r} is a path out of its repository", remedy=remedy)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                raise SourceUnavailable(f"{member.name!r} is no file but a link", remedy=remedy)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _reach(url: str, remedy: str) -> None:
    """Find out in seconds whether the host of `url` answers: git itself waits for minutes."""
    if not url.startswith("https://") or any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY")):
        return
    host = url.split("/")[2]
    try:
        socket.create_connection((host, 443), timeout=_CONNECT_S).close()
    except OSError as error:
        raise SourceUnavailable(f"{url} cannot be reached", cause=str(error), remedy=remedy) from error


def _fetching(folder: Path, url: str, words: list[str], title: str, remedy: str) -> None:
    settings = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=15"]
    try:
        done = run(["git", *settings, *words], cwd=folder, timeout_s=_FETCH_S, env={"GIT_TERMINAL_PROMPT": "0"})
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(
            f"{url} answers too slowly", cause=f"no end after {_FETCH_S:.0f} s", remedy=remedy
        ) from error
    if not done.ok:
        raise SourceUnavailable(f"{title} cannot be fetched from {url}", cause=done.tail(5), remedy=remedy)

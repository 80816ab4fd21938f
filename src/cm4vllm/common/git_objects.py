"""The objects of a git directory, read without its configuration, and a checkout compared with them.

Whatever a git directory names to be run (filters, hooks, a file system monitor, a command that fetches what is missing)
belongs to its configuration. git is therefore started in a directory made here, which borrows objects and references of
the other one and has a configuration of its own. Each object is hashed again and compared with its name, so that what a
pinned commit gives is the same whoever owns the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.files import bytes_of, text_of
from cm4vllm.common.processes import Completed, run
from cm4vllm.common.temporary_folders import scratch_folder

#: The variables that bind git to one repository (`git rev-parse --local-env-vars`). A hook of git hands them down, and
#: git would then work in that repository, whatever folder it is started for.
OF_A_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REF_STORAGE_FORMAT",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
#: No configuration but that of the directory itself, nothing fetched, nothing replaced, nothing written.
OWN_CONFIGURATION = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
#: A commit can be fetched though no reference names it.
_CONFIGURATION = """\
[core]
\trepositoryformatversion = 0
\tbare = true
[uploadpack]
\tallowAnySHA1InWant = true
"""
#: An object is held in memory as a whole.
_LARGEST_BYTES = 2**30
_HEAD_BYTES = 4096
_FOLDER, _SUBMODULE = "40000", "160000"
_WHOLE = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Entry:
    """A file of a commit: its mode as git writes it ("100644", "100755", "120000" for a link), and its blob."""

    mode: str
    blob: str

    @property
    def is_link(self) -> bool:
        return self.mode == "120000"

    @property
    def is_executable(self) -> bool:
        return self.mode == "100755"


class GitObjects:
    """The objects of one git directory. Get one from `objects_of`."""

    def __init__(self, own: Path, git: Path, reader: subprocess.Popen[bytes], remedy: str) -> None:
        self._own, self._git, self._remedy = own, git, remedy
        self._names, self._contents = cast("IO[bytes]", reader.stdin), cast("IO[bytes]", reader.stdout)

    def commit(self, revision: str) -> str | None:
        """Return the whole name of the commit that a revision names, None where it names none.

        A whole name is taken for what it says. Any other is looked up in the references of the directory, which its
        owner wrote: raises SourceUnavailable where that is another user.
        """
        if not _WHOLE.fullmatch(revision):
            require_own(self._git, "only a commit that is named as a whole is taken from it", self._remedy)
        done = run_git(["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], self._own)
        return done.output.strip() if done.ok and _WHOLE.fullmatch(done.output.strip()) else None

    def files(self, commit: str, paths: Sequence[str] = ()) -> dict[str, Entry]:
        """Return the files of a commit by their paths: those that are or lie below one of `paths`, all without paths.

        Raises SourceUnavailable where the commit or one of the paths is missing.
        """
        root = self._read(commit, "commit").split(b"\n", 1)[0].removeprefix(b"tree ").decode()
        wanted = [PurePosixPath(path) for path in paths] or [PurePosixPath()]
        files = dict(self._below(root, PurePosixPath(), wanted))
        for path in map(PurePosixPath, paths):
            if not any(PurePosixPath(name).is_relative_to(path) for name in files):
                raise self._unavailable(f"{self._git} does not hold {path} at {commit}")
        return files

    def read(self, entry: Entry) -> bytes:
        """Return the content of a file; of a link, the path that it names."""
        return self._read(entry.blob, "blob")

    def _below(self, tree: str, folder: PurePosixPath, wanted: Sequence[PurePosixPath]) -> Iterator[tuple[str, Entry]]:
        for name, mode, oid in self._tree(tree):
            path = folder / name
            if mode == _SUBMODULE:
                continue
            below = any(path.is_relative_to(part) for part in wanted)
            if mode == _FOLDER and (below or any(part.is_relative_to(path) for part in wanted)):
                yield from self._below(oid, path, wanted)
            elif mode != _FOLDER and below:
                yield str(path), Entry(mode, oid)

    def _tree(self, tree: str) -> Iterator[tuple[str, str, str]]:
        """Yield name, mode and object of each entry of a tree."""
        data = self._read(tree, "tree")
        while data:
            head, _, rest = data.partition(b"\0")
            mode, _, name = os.fsdecode(head).partition(" ")
            if name in ("", ".", "..") or "/" in name or name.lower() == ".git" or len(rest) < 20:
                raise self._unavailable(f"{self._git} has a tree with an entry {name!r}, which no folder can have")
            yield name, mode, rest[:20].hex()
            data = rest[20:]

    def _read(self, name: str, kind: str) -> bytes:
        with contextlib.suppress(BrokenPipeError):
            self._names.write(f"{name}\n".encode())
            self._names.flush()
        head = self._contents.readline().split()
        if len(head) != 3:
            raise self._unavailable(f"{self._git} does not hold the {kind} {name}")
        size = int(head[2])
        if size > _LARGEST_BYTES:
            raise self._unavailable(f"the {kind} {name} in {self._git} has {size:,} bytes, too many")
        data = self._contents.read(size + 1)[:-1]
        if head[1].decode() != kind or digest_of(data, kind) != name:
            raise self._unavailable(
                f"{self._git} holds another object under the name {name}", "its content does not have that digest"
            )
        return data

    def _unavailable(self, message: str, cause: str = "") -> SourceUnavailable:
        return SourceUnavailable(message, cause=cause, remedy=self._remedy)


@contextmanager
def objects_of(git: Path, *, remedy: str = "") -> Iterator[GitObjects]:
    """Open a git directory, or the file of that name in a worktree, for reading. `remedy` is that of each error.

    Raises SourceUnavailable where git is missing.
    """
    with borrowed(git) as own:
        try:
            reader = subprocess.Popen(
                ["git", f"--git-dir={own}", "cat-file", "--batch"],
                env={**without_repository(os.environ), **OWN_CONFIGURATION},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise SourceUnavailable(
                f"{git} cannot be read", cause="`git` not found on PATH", remedy="install git"
            ) from error
        try:
            yield GitObjects(own, git, reader, remedy)
        finally:
            reader.kill()
            reader.communicate()


@contextmanager
def borrowed(git: Path) -> Iterator[Path]:
    """Yield a git directory that has the objects, references and index of `git`, and none of its configuration."""
    shared = shared_part(git)
    with scratch_folder("mlperf-git-") as own:
        # git takes a link in the place of HEAD for a reference.
        (own / "HEAD").write_bytes(bytes_of(own_part(git) / "HEAD", _HEAD_BYTES))
        (own / "info").mkdir()
        parts = {"index": own_part(git), "packed-refs": shared, "refs": shared, "info/exclude": shared}
        for name, source in parts.items():
            (own / name).symlink_to((source / name).absolute())
        (own / "objects" / "info").mkdir(parents=True)
        (own / "objects" / "info" / "alternates").write_bytes(os.fsencode((shared / "objects").absolute()) + b"\n")
        (own / "config").write_text(_CONFIGURATION, encoding="utf-8")
        yield own


def own_part(git: Path) -> Path:
    """Return the folder of HEAD and index of a git directory, or of a worktree's `.git`, a file that names it."""
    return git.parent / text_of(git).removeprefix("gitdir:").strip() if git.is_file() else git


def shared_part(git: Path) -> Path:
    """Return the folder of objects, references and configuration of a git directory, or of a worktree's `.git`."""
    common = own_part(git) / "commondir"
    return common.parent / text_of(common).strip() if common.is_file() else own_part(git)


def run_git(words: Sequence[str | Path], git: Path, *, work_tree: Path | None = None) -> Completed:
    """Run git in a directory made by `borrowed`. Raises FileNotFoundError where git is missing."""
    place = [f"--git-dir={git}", *([f"--work-tree={work_tree}"] if work_tree else [])]
    return run(["git", *place, *words], env=OWN_CONFIGURATION, without=OF_A_REPOSITORY)


def changed_files(root: Path, objects: GitObjects, commit: str, paths: Sequence[str] = ()) -> list[str]:
    """Return the files of a commit that a checkout does not have as they are, compared by content.

    What git notes about its files (their times, or that they are to be taken for unchanged) is not asked.
    """
    files = objects.files(commit, paths)
    return [name for name, entry in files.items() if blob_of(root / name) != entry.blob]


def added_files(root: Path, objects: GitObjects, commit: str) -> list[str]:
    """Return the files of a checkout that its commit does not have, but those that its .gitignore files name."""
    with borrowed(root / ".git") as git:
        words = ["ls-files", "-z", "--others", "--cached", "--exclude-per-directory=.gitignore"]
        listed = run_git(words, git, work_tree=root).output.split("\0")
    files = objects.files(commit)
    return [name for name in listed if name and name not in files]


def blob_of(path: Path) -> str | None:
    """Return the name that git gives the content of a file, or of a link; None where there is neither."""
    try:
        return digest_of(os.fsencode(path.readlink()) if path.is_symlink() else bytes_of(path), "blob")
    except OSError:
        return None


def digest_of(data: bytes, kind: str) -> str:
    """Return the name of an object of git: the SHA-1 of its kind, length and content."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def require_own(folder: Path, cause: str, remedy: str) -> None:
    """Raise SourceUnavailable for a folder of another user."""
    if folder.stat().st_uid != os.geteuid():
        raise SourceUnavailable(f"{folder} belongs to another user", cause=cause, remedy=remedy)


def without_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that bind git to one repository."""
    return {name: value for name, value in environment.items() if name not in OF_A_REPOSITORY}

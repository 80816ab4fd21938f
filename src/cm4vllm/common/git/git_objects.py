"""The objects of a git directory, read without its configuration, and a checkout compared with them.

Whatever a git directory names to be run (filters, hooks, a file system monitor, a command that fetches what is missing)
belongs to its configuration. git is therefore started in a directory made here, which borrows objects and references of
the other one and has a configuration of its own. Each object is hashed again and compared with its name, so that what a
pinned commit gives is the same whoever owns the directory.
"""

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.files import bytes_of, text_of
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import Completed, run

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
#: No configuration but that of the directory itself.
NO_CONFIGURATION = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
}
#: Besides, nothing fetched, nothing replaced, nothing written.
OWN_CONFIGURATION = {
    **NO_CONFIGURATION,
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
#: The most bytes of an object, which is held in memory as a whole: of a file, and of a commit or a folder.
_LARGEST_BYTES, _LARGEST_FOLDER = 2**30, 2**25
#: The most bytes of all files that are written out of one commit.
MOST_ALTOGETHER = 4 * 2**30
#: The most entries of a commit's folders that are read, and the most folders inside one another: a folder of a few
#: objects, each named many times in the next, can stand for any number of files.
_MOST_ENTRIES, _DEEPEST = 100_000, 100
_FOLDER, _SUBMODULE = "40000", "160000"
_WHOLE = re.compile(r"[0-9a-f]{40}")
#: The name of a file that Python keeps for a module beside it; with a number while it is written.
_COMPILED = re.compile(r"(.*/|)__pycache__/([^/]+?)\.[^/.]+(?:\.opt-[^/.]+)?\.pyc(?:\.\d+)?")


@dataclass(frozen=True)
class Entry:
    """A file of a commit: its mode as git writes it ("100644", "100755", "120000" for a link), and its blob."""

    mode: str
    blob: str

    @property
    def is_link(self) -> bool:
        """Return True if the entry is a symbolic link."""
        return self.mode == "120000"

    @property
    def is_executable(self) -> bool:
        """Return True if the entry is an executable file."""
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
        root = self._read(commit, "commit").split(b"\n", 1)[0].removeprefix(b"tree ").decode(errors="replace")
        files = dict(self._files_below(root, [PurePosixPath(path) for path in paths] or [PurePosixPath()]))
        for path in map(PurePosixPath, paths):
            if not any(PurePosixPath(name).is_relative_to(path) for name in files):
                raise self._unavailable(f"{self._git} does not hold {path} at {commit}")
        return files

    def read(self, entry: Entry) -> bytes:
        """Return the content of a file; of a link, the path that it names."""
        return self._read(entry.blob, "blob")

    def _files_below(self, root: str, wanted: Sequence[PurePosixPath]) -> Iterator[tuple[str, Entry]]:
        """Yield the files of a tree that are or lie below one of `wanted`."""
        waiting, entries = [(PurePosixPath(), root)], 0
        while waiting:
            folder, tree = waiting.pop()
            for name, mode, oid in self._tree(tree):
                path = folder / name
                entries += 1
                if entries > _MOST_ENTRIES or len(path.parts) > _DEEPEST:
                    raise self._unavailable(
                        f"the folders in {self._git} are too large",
                        f"they hold more than {_MOST_ENTRIES:,} files and folders, or {_DEEPEST} inside one another",
                    )
                if mode == _SUBMODULE:
                    continue
                below = any(path.is_relative_to(part) for part in wanted)
                if mode == _FOLDER and (below or any(part.is_relative_to(path) for part in wanted)):
                    waiting.append((path, oid))
                elif mode != _FOLDER and below:
                    yield str(path), Entry(mode, oid)

    def _tree(self, tree: str) -> Iterator[tuple[str, str, str]]:
        """Yield name, mode and object of each entry of a tree."""
        data, at = self._read(tree, "tree"), 0
        while at < len(data):
            end = data.find(b"\0", at)
            mode, _, name = os.fsdecode(data[at:end]).partition(" ")
            at = end + 21
            if end < 0 or name in ("", ".", "..") or "/" in name or name.lower() == ".git" or at > len(data):
                raise self._unavailable(f"{self._git} has a tree with an entry {name!r}, which no folder can have")
            yield name, mode, data[end + 1 : at].hex()

    def _read(self, name: str, kind: str) -> bytes:
        """Return the content of an object of this kind. Raises an error if the repository lacks it."""
        with contextlib.suppress(BrokenPipeError):
            self._names.write(f"{name}\n".encode())
            self._names.flush()
        head = self._contents.readline().split()
        if len(head) != 3:
            raise self._unavailable(f"{self._git} does not hold the {kind} {name}")
        size = int(head[2])
        if size > (_LARGEST_BYTES if kind == "blob" else _LARGEST_FOLDER):
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

    Raises SourceUnavailable where git is missing, or the directory is none.
    """
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_REPOSITORY}
    with borrowed(git, remedy) as own:
        try:
            reader = subprocess.Popen(
                ["git", f"--git-dir={own}", "cat-file", "--batch"],
                env={**kept, **OWN_CONFIGURATION},
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
def borrowed(git: Path, remedy: str = "") -> Iterator[Path]:
    """Yield a git directory that has the objects, references and index of `git`, and none of its configuration.

    Raises SourceUnavailable with `remedy` where `git` is none: a worktree or a submodule that was copied, for one.
    """
    try:
        shared, apart = shared_part(git), own_part(git)
        head = bytes_of(apart / "HEAD")
        listed = os.fsencode(os.path.realpath(shared / "objects", strict=True))
    except (OSError, ValueError) as error:
        cause = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise SourceUnavailable(f"{git} is not a git directory", cause=cause, remedy=remedy) from error
    with scratch_folder("mlperf-git-") as own:
        (own / "HEAD").write_bytes(head)  # git takes a link in the place of HEAD for a reference
        (own / "info").mkdir()
        parts = {"index": apart, "packed-refs": shared, "refs": shared, "info/exclude": shared}
        for name, source in parts.items():
            (own / name).symlink_to((source / name).absolute())
        (own / "objects" / "info").mkdir(parents=True)
        (own / "objects" / "info" / "alternates").write_bytes(listed + b"\n")
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
    return [name for name, entry in objects.files(commit, paths).items() if blob_of(root / name) != entry.blob]


def added_files(root: Path, objects: GitObjects, commit: str) -> list[str]:
    """Return the files and links of a checkout that its commit does not have, whatever git is to ignore.

    What Python compiles out of the commit's own modules is left out.
    """
    files = objects.files(commit)
    added = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        if here == root:
            folders[:] = [name for name in folders if name != ".git"]
            names = [name for name in names if name != ".git"]
        links = [name for name in folders if (here / name).is_symlink()]
        added += [
            name for part in (*names, *links) if (name := (here / part).relative_to(root).as_posix()) not in files
        ]
    return [
        name for name in added if not ((match := _COMPILED.fullmatch(name)) and f"{match[1]}{match[2]}.py" in files)
    ]


def blob_of(path: Path) -> str | None:
    """Return the name that git gives the content of a file, or of a link; None where there is neither, or a larger."""
    try:
        return digest_of(os.fsencode(path.readlink()) if path.is_symlink() else bytes_of(path, _LARGEST_BYTES), "blob")
    except OSError:
        return None


def digest_of(data: bytes, kind: str) -> str:
    """Return the name of an object of git: the SHA-1 of its kind, length and content."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def require_own(folder: Path, cause: str, remedy: str) -> None:
    """Raise SourceUnavailable for a folder of another user."""
    if folder.stat().st_uid != os.geteuid():
        raise SourceUnavailable(f"{folder} belongs to another user", cause=cause, remedy=remedy)

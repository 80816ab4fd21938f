"""The running program: its commit, the repository that has the commit, and its files."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cm4vllm.common.errors import CmError, SourceUnavailable
from cm4vllm.common.files import sha256_of
from cm4vllm.common.git.git_objects import blob_of, borrowed, run_git, shared_part
from cm4vllm.common.host_addresses import is_address, is_loopback

#: Lists a published copy's files in the form of sha256sum, after a line that names the commit.
MANIFEST = "MANIFEST.sha256"
_PACKAGE = "cm4vllm"
#: The parts of an installed package that are the repository's top level; the rest is src/cm4vllm.
_TOP = ("cmr.yaml", "requirements.txt", "automation", "script")
#: The parts of a checkout without git and without a list of files.
_PARTS = (
    "cmr.yaml",
    "pyproject.toml",
    "mkdocs.yml",
    "Makefile",
    "environment.py",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "requirements.txt",
    "requirements-test.txt",
    "requirements-tools.txt",
    "automation",
    "script",
    "src",
    "docs",
    "benchmarks",
)


#: Not needed to run the program; made-up secrets and names of people stand in them.
_TESTS = "tests/"


@dataclass(frozen=True)
class ProgramFile:
    """One file of the program: `name` is its path in the repository, `path` where it lies.

    `published` says that it is, byte for byte, what the commit, the installed package or the published copy holds.
    """

    name: str
    path: Path
    published: bool


def commit_of_this_repository() -> str:
    """Return the git commit that this code is of, with `+changes` when files differ; empty where it is not known."""
    root = _root()
    if (root / ".git").exists():
        commit, blobs = _of_commit(root)
        changed = any(blob_of(root / name) != blob for name, blob in blobs.items())
        return f"{commit}+changes" if changed else commit
    if not (root / MANIFEST).is_file():
        return ""
    said = re.search(r"^# .* commit (\S+)$", (root / MANIFEST).read_text(encoding="utf-8"), re.MULTILINE)
    if not said:
        return ""
    unchanged = all(
        (root / name).is_file() and sha256_of(root / name) == digest for digest, name in _manifest_entries(root)
    )
    return said[1] if said[1].endswith("+changes") or unchanged else f"{said[1]}+changes"


def url_of_this_repository() -> str:
    """Return the https address that others can pull this repository from; empty where git names none that is public."""
    root = _root()
    url = _origin(root) if (root / ".git").exists() else ""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" or parts.username or parts.port or "." not in host or is_address(host):
        return ""
    private = (".local", ".internal", ".lan", ".corp", ".intranet", ".home.arpa")
    return "" if is_loopback(host) or host.endswith(private) else url


def program_files() -> list[ProgramFile]:
    """Return the files of this program, by their path in the repository; hidden ones and tests are left out.

    They are those that git lists, that a published copy's MANIFEST lists, that the installed package's RECORD lists, or
    those of a checkout without git. Raises CmError where they cannot be listed.
    """
    root = _root()
    files = _of_git(root) or _of_manifest(root) or _of_package(root) or _of_folder(root)
    if not any(file.name == "cmr.yaml" for file in files):
        raise CmError(
            f"the files of the program in {root} cannot be listed",
            cause="the list has no cmr.yaml",
            remedy="run it from a git checkout, or install it with pip",
        )
    return sorted((file for file in files if not file.name.startswith(_TESTS)), key=lambda file: file.name)


def _root() -> Path:
    """Return the repository's folder: two above the package, or the package itself where it was installed."""
    package = Path(__file__).resolve().parents[2]
    return package if (package / "cmr.yaml").is_file() else package.parents[1]


def _origin(root: Path) -> str:
    """Return the address that a checkout was pulled from; empty where its configuration names none."""
    file = shared_part(root / ".git") / "config"
    return (_git(root, "config", "--file", file, "--get", "remote.origin.url") or "").strip()


def _of_commit(root: Path) -> tuple[str, dict[str, str]]:
    """Return the commit of a checkout and the blobs of its files, by their names in it; empty without a commit."""
    commit = (_git(root, "rev-parse", "--verify", "--quiet", "HEAD") or "").strip()
    listed = _git(root, "ls-tree", "-r", "-z", "--full-tree", commit) if commit else None
    entries = (line.partition("\t") for line in (listed or "").split("\0") if line)
    return commit, {name: words.split()[2] for words, _, name in entries}


def _git(root: Path, *words: str | Path) -> str | None:
    """Return what git prints of a checkout, None where it fails. Another user's, as in a container, is read too."""
    try:
        with borrowed(root / ".git") as git:
            done = run_git(words, git)
    except (OSError, SourceUnavailable):
        return None
    return done.output if done.ok else None


def _of_git(root: Path) -> list[ProgramFile]:
    """Return the files that git lists, each with whether it is as committed; none without git."""
    listed = _git(root, "ls-files", "-z", "--cached") if (root / ".git").exists() else None
    if listed is None:
        return []
    _, blobs = _of_commit(root)
    return [
        ProgramFile(name, root / name, blob_of(root / name) == blobs.get(name, ""))
        for name in listed.split("\0")
        if name
        and not name.startswith(_TESTS)
        and not _is_hidden(name)
        and (root / name).is_file()
        and _is_inside(root, root / name)
    ]


def _of_manifest(root: Path) -> list[ProgramFile]:
    """Return the files that MANIFEST lists, each with whether it has its digest."""
    return [
        ProgramFile(name, root / name, sha256_of(root / name) == digest)
        for digest, name in _manifest_entries(root)
        if (root / name).is_file()
    ]


def _manifest_entries(root: Path) -> Iterator[tuple[str, str]]:
    """Yield digest and name of each file in MANIFEST."""
    if (root / MANIFEST).is_file():
        for line in (root / MANIFEST).read_text(encoding="utf-8").splitlines():
            digest, _, name = line.partition("  ")
            if name and not line.startswith("#") and ".." not in PurePosixPath(name).parts:
                yield digest, name


def _of_package(root: Path) -> list[ProgramFile]:
    """Return the files of the installed package, each with whether it has its digest."""
    try:
        package = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        return []
    files = []
    for listed in package.files or ():
        inside, path = PurePosixPath(*listed.parts[1:]), Path(str(listed.locate()))
        if listed.parts[0] != _PACKAGE or not path.is_file() or path.resolve() != root / inside or listed.hash is None:
            continue
        name = str(inside) if inside.parts[0] in _TOP else f"src/{_PACKAGE}/{inside}"
        if not _is_hidden(name):
            files.append(ProgramFile(name, path, listed.hash.value == _record_digest(path)))
    return files


def _of_folder(root: Path) -> list[ProgramFile]:
    parts = (root / part for part in _PARTS)
    files = (path for part in parts for path in ([part] if part.is_file() else part.rglob("*")))
    names = ((path.relative_to(root).as_posix(), path) for path in files if path.is_file())
    return [ProgramFile(name, path, False) for name, path in names if not _is_hidden(name)]


def _is_hidden(name: str) -> bool:
    """Return True if a submission may not hold a file: the official checkers refuse hidden names and __pycache__."""
    return any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


def _is_inside(root: Path, path: Path) -> bool:
    """Return True if a file that git lists, or what it names as a link, lies in the repository."""
    return not path.is_symlink() or path.resolve().is_relative_to(root)


def _record_digest(path: Path) -> str:
    """Return a digest as a wheel's RECORD has it (the specification of binary distributions)."""
    import base64

    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()

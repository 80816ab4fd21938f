"""All files and folders of a submission, found in one walk: what several checks ask for, and whether they changed."""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Times of files are compared with the clock of this machine, and are no finer than that of some file systems.
RECENT_S = 2.0


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file: its path below the root, its size in bytes, and the target of a link to nothing."""

    path: str
    size: int
    missing_target: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Listing:
    """The files below a folder; its folders, those without an entry, and those that cannot be listed, with the reason.

    `state` is a digest of the names, kinds, sizes, inodes and times of all of them: while it is the same, so are the
    files. A file that is written has another time of change (ctime), which no program can set as it likes. `state` is
    empty where it proves nothing: where a link leads to a folder elsewhere, or where a file was changed less than
    RECENT_S before and may change again within the precision of the file system's times.
    """

    files: list[ListedFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    empty_folders: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    state: str = ""


def list_files(root: Path, home: Path) -> Listing:
    """List what lies below `home`, in a fixed order, with paths below `root`. Links to folders are not followed."""
    listing, digest = Listing(), hashlib.sha256()
    cut, is_proof, settled = len(str(root).rstrip("/")) + 1, True, time.time() - RECENT_S
    for entry in _entries(os.fspath(home), listing, cut):
        target = ""
        try:
            states = [entry.stat(follow_symlinks=False)]
        except OSError as error:
            listing.unreadable.append((entry.path[cut:], error.strerror or str(error)))
            continue
        if entry.is_symlink():
            try:
                states.append(entry.stat())
            except OSError:
                target = str(Path(entry.path).readlink())
        if not stat.S_ISDIR(states[-1].st_mode):
            listing.files.append(ListedFile(entry.path[cut:], states[-1].st_size, target))
        elif len(states) > 1 and not Path(entry.path).resolve().is_relative_to(home):
            is_proof = False
        digest.update(os.fsencode(f"{entry.path}\n"))
        for state in states:
            digest.update(
                b"%d %d %d %d %d\n" % (state.st_mode, state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns)
            )
            is_proof &= 0 < state.st_ctime < settled
    listing.state = digest.hexdigest() if is_proof else ""
    return listing


def _entries(folder: str, listing: Listing, cut: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder and of those below it; the folders themselves are noted in `listing`."""
    listing.folders.append(folder[cut:])
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as error:
        listing.unreadable.append((folder[cut:], error.strerror or str(error)))
        return
    if not entries:
        listing.empty_folders.append(folder[cut:])
    for entry in entries:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, listing, cut)

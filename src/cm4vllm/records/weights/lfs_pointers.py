"""Pointers that git leaves in the place of large files where git-lfs has not fetched them."""

from pathlib import Path

#: The remedy for a pointer.
FETCH = "fetch the files themselves (`git lfs pull` in their folder), or download them again"
_FIRST_LINE = b"version https://git-lfs.github.com/spec/v1"


def is_pointer(path: Path) -> bool:
    """Return True if a file is a pointer, by its first line (git-lfs, docs/spec.md)."""
    try:
        with path.open("rb") as file:
            return file.read(len(_FIRST_LINE)) == _FIRST_LINE
    except OSError:
        return False

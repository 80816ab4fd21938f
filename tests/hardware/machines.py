"""Machines made of files: the /proc, /sys and /etc that a kernel would show."""

from pathlib import Path


def put(root: Path, files: dict[str, str]) -> None:
    """Write the files, with the folders that they need."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

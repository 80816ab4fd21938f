"""Reading what the kernel shows: a file that is missing or unreadable gives no value, and is no error.

No other module reads sysfs, DMI or powercap: an open driver may answer each question of a program with any error.
"""

from pathlib import Path


def content(path: Path) -> bytes:
    """Return a file's bytes; none where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text(path: Path) -> str:
    """Return a file's text without the space around it; empty where it cannot be read."""
    return content(path).decode("utf-8", errors="replace").strip("\0 \t\r\n")


def number(path: Path) -> int | None:
    """Return the whole number that a file holds; None where it holds none or a negative one ("-1" is "not known")."""
    word = text(path)
    return int(word) if word.isascii() and word.isdigit() else None


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return what fits the pattern below a folder, sorted; nothing where the folder cannot be listed."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def exists(path: Path) -> bool:
    """Return True if a path exists and may be asked for."""
    try:
        return path.exists()
    except OSError:
        return False


def target(path: Path) -> Path:
    """Return the path that a link leads to; the link itself where it cannot be followed."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def fields(block: str) -> dict[str, str]:
    """Return the `name : value` lines of a block; the first of a name counts."""
    values: dict[str, str] = {}
    for line in block.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    return values

"""Reading what the kernel shows: a file that is missing or unreadable gives no value, and is no error."""

from __future__ import annotations

from pathlib import Path

__all__ = ["fields", "number", "text"]


def text(path: Path) -> str:
    """Return a file's text without the space around it; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace", encoding="utf-8").strip("\0 \t\r\n")
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Return the whole number that a file holds; None where it holds none or a negative one ("-1" is "not known")."""
    word = text(path)
    return int(word) if word.isascii() and word.isdigit() else None


def fields(block: str) -> dict[str, str]:
    """Return the `name : value` lines of a block; the first of a name counts."""
    values: dict[str, str] = {}
    for line in block.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    return values

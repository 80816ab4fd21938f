"""No file is read or written in the encoding of the locale: in a Chinese one, UTF-8 would be read as GBK."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from syntax import parsed

ROOT = Path(__file__).resolve().parents[1]
#: These read and write ASCII alone. Their text identifies a cached vLLM or model (`made_by`): it would be made again.
ASCII_ONLY = {"compression.py", "compressor.py", "install.py", "bounded_tables.py", "verification.py"}
FILES = sorted(
    path
    for folder in ("src", "script", "automation")
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in ASCII_ONLY
)


#: Calls that open no text file, unless their mode says so.
NO_FILES = ("wave.", "images.", "os.", "gzip.", "tarfile.", "zipfile.", "urllib.")


def in_the_locale(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that read or write text in no stated encoding, or bytes in one, which raises."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_stated = any(word.arg == "encoding" for word in node.keywords)
        is_text = method in ("read_text", "write_text") or is_text_open(node)
        if is_text != is_stated and (is_text or is_bytes_open(node)):
            yield node.lineno


def is_bytes_open(node: ast.Call) -> bool:
    """Return True if a call opens a file, or could, in a mode that is written there and holds a `b`."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    words = (part for part in modes_of(node) for part in ast.walk(part) if isinstance(part, ast.Constant))
    return name == "open" and any(isinstance(word.value, str) and "b" in word.value for word in words)


def modes_of(node: ast.Call) -> list[ast.expr]:
    """Return the argument of a call of `open` that holds the mode; none where the call has none."""
    is_method = isinstance(node.func, ast.Attribute)
    return [*node.args[0 if is_method else 1 :][:1], *(word.value for word in node.keywords if word.arg == "mode")]


def is_text_open(node: ast.Call) -> bool:
    """Return True if a call is `open(path, mode)` or `path.open(mode)` for text."""
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "open"
    if not is_method and not (isinstance(node.func, ast.Name) and node.func.id == "open"):
        return False
    if is_method and ast.unparse(node.func).startswith(NO_FILES):
        return False
    modes = modes_of(node)
    words = [part.value for part in ast.walk(modes[0]) if isinstance(part, ast.Constant)] if modes else ["r"]
    return not any(isinstance(word, str) and "b" in word for word in words)


def test_text_is_read_and_written_in_a_stated_encoding():
    places = [f"{path}:{line}" for path in FILES for line in in_the_locale(parsed(path.read_text(encoding="utf-8")))]
    assert places == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("p.read_text()", 1),
        ("p.read_text(errors='replace')", 1),
        ("p.read_text(encoding='utf-8')", 0),
        ("p.open()", 1),
        ("p.open('w')", 1),
        ("p.open('rb')", 0),
        ("open(p)", 1),
        ("open(p, 'wb')", 0),
        ("open(p, mode='r')", 1),
        ("os.open(p, flags)", 0),
        ("write_text(p, t)", 0),
        ("p.write_text(t)", 1),
        ("p.open('rb', encoding='utf-8')", 1),
        ("p.open('r+b' if here else 'wb', encoding='utf-8')", 1),
        ("p.open('r+b' if here else 'wb')", 0),
        ("open(p, 'wb', encoding='utf-8')", 1),
    ],
)
def test_the_check_finds_such_calls(code, count):
    assert len(list(in_the_locale(ast.parse(code)))) == count

"""The trees of Python files, for tests that read many: a test of all files belongs to the group `source`.

Those of a group share a process (conftest.py), and so what `nodes_of` keeps.
"""

import ast
import gc
from functools import cache
from pathlib import Path


def parsed(text: str) -> ast.Module:
    """Return the tree of a file: at the second try where Python 3.11 fails, as ast.parse() cannot be entered twice.

    It is where a traceback is made at the same time, in another thread or by a finaliser.
    """
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file, the module first; they stay, so no garbage is looked for among them."""
    gc.disable()
    try:
        return list(ast.walk(parsed(path.read_text(encoding="utf-8"))))
    finally:
        gc.freeze()
        gc.enable()

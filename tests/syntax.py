"""The trees of Python files, for tests that read many."""

import ast


def parsed(text: str) -> ast.Module:
    """Return the tree of a file: at the second try where Python 3.11 fails, as ast.parse() cannot be entered twice.

    It is where a traceback is made at the same time, in another thread or by a finaliser.
    """
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)

"""Printed pages, which a reader such as `head` may close before they end."""

from __future__ import annotations

import os
import sys

__all__ = ["page"]


def page(text: str) -> None:
    """Print a text; when the reader has gone, what else is printed goes nowhere."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:  # the locale lacks a letter
        encoding = sys.stdout.encoding or "ascii"
        page(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Commands that a new machine does not have. A test that needs one is skipped with a reason of one form, by which
`.ci/run` finds the tests to run where the command is installed."""

import re
import shutil

import pytest


def need(*names: str) -> str:
    """Return the path of the first of these commands that is installed; skip the test where none is."""
    path = next(filter(None, map(shutil.which, names)), "")
    return path or pytest.skip(f"{names[0]} not found on PATH")


def missing_command(reason: str) -> str:
    """Return the command that a skipped test lacks, empty where it was skipped for another reason."""
    match = re.search(r"(\S+) not found on PATH", reason)
    return match[1] if match else ""

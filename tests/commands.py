"""Commands that a new machine does not have, and data beside the checkout.

A test that needs a command is skipped with a reason of one form, by which `.ci/run` finds the tests to run where the
command is installed.
"""

import re
import shutil
from pathlib import Path

import pytest


def need(*names: str) -> str:
    """Return the path of the first of these commands that is installed; skip the test where none is."""
    path = next(filter(None, map(shutil.which, names)), "")
    return path or pytest.skip(f"{names[0]} not found on PATH")


def missing_command(reason: str) -> str:
    """Return the command that a skipped test lacks, empty where it was skipped for another reason."""
    match = re.search(r"(\S+) not found on PATH", reason)
    return match[1] if match else ""


def beside_checkout(data: str, name: str) -> Path:
    """Return a folder of shared/data/ beside the checkout; skip the test where the data of this name are not there."""
    folders = (parent / "shared/data" / data for parent in Path(__file__).parents)
    return next(filter(Path.is_dir, folders), None) or pytest.skip(f"{name} not on this machine")

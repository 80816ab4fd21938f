"""The constants and methods of the official checkers, read from their sources."""

import os
import re
import subprocess
import textwrap

import pytest

NEWEST = "b66003e1"


def constants(text, *names):
    """Return top-level assignments of a Python source."""
    namespace = {}
    for name in names:
        start = text.index(f"\n{name} = ") if f"\n{name} = " in text else text.index(f"{name} = ")
        source = text[start:].lstrip("\n")
        end = re.search(r"^[}\]]", source, re.MULTILINE).end()
        exec(source[:end], namespace)
    return namespace


def method(text, name):
    """Return a method of a Python source as a function."""
    namespace = {}
    exec(
        textwrap.dedent(re.search(rf"^    def {name}\(.*?(?=^    def |^\S|\Z)", text, re.MULTILINE | re.DOTALL)[0]),
        namespace,
    )
    return namespace[name]


def show(commit, path):
    git = os.environ.get("INFERENCE_GIT")
    if not git:
        pytest.skip("INFERENCE_GIT does not name a git directory of mlcommons/inference")
    return subprocess.run(
        ["git", "--git-dir", git, "show", f"{commit}:{path}"], capture_output=True, text=True, check=True
    ).stdout


TABLES = ("MODEL_CONFIG", "LLM_LATENCY_LIMITS", "OFFLINE_MIN_SPQ_SINCE_V4", "REQUIRED_ACC_BENCHMARK", "ACC_PATTERN")


def numbers_of(text):
    """Return the constants of one number each."""
    return {name: float(value) for name, value in re.findall(r"^([A-Z][A-Z0-9_]+) = ([\d.]+)$", text, re.MULTILINE)}

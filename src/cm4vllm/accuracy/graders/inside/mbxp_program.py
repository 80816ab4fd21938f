"""The side of an MBXP answer: programs are compiled and started here; those in Python run as mxeval runs them."""

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, "/inside")
exchange = importlib.import_module("exchange")


class Python:
    """The names that a Python program defines."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._official: Any = None

    def define(self, code: str) -> None:
        """Run the program."""
        self._official = exchange.module_at("/official/mxeval/mxeval/execution.py")
        os.chdir(tempfile.mkdtemp())
        self._official.reliability_guard()
        with self._official.swallow_io():
            exec(code, self._names)  # noqa: S102 - what this sandbox is for

    def find(self, name: str) -> bool:
        """Return True if the program defines this name."""
        return name in self._names

    def call(self, name: str, arguments: Any) -> Any:
        """Return the result of the program's function."""
        positional, named = exchange.decode(arguments)
        with self._official.swallow_io():
            return exchange.encode(self._names[name](*positional, **named))


def run(argv: list[str], cwd: str | None, timeout: float, files: dict[str, str]) -> dict[str, Any]:
    """Write files and run a program, a compiler or what it wrote."""
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    done = subprocess.run(argv, timeout=timeout, capture_output=True, text=True, cwd=cwd, check=False)
    return {"returncode": done.returncode, "stderr": done.stderr[-4000:]}


if __name__ == "__main__":
    python = Python()
    exchange.run_programs({"run": run, "define": python.define, "find": python.find, "call": python.call})

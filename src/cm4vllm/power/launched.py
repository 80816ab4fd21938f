"""Runs an official Python program that is killed when the process that started it ends, however that ends.

The program finds the modules beside it, and none in the folder that it works in; nor do those that it starts.
"""

import os
import sys
from pathlib import Path

from cm4vllm.common.programs.processes import die_with_parent, safe_environment

__all__: list[str] = []

if __name__ == "__main__":
    die_with_parent()
    env = safe_environment({**os.environ, "PYTHONPATH": str(Path(sys.argv[1]).absolute().parent)})
    os.execve(sys.executable, [sys.executable, "-P", *sys.argv[1:]], env)  # noqa: S606 - the same Python, without a shell

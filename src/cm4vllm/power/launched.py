"""Runs a Python program that is killed when the process that started it ends, however that ends."""

from __future__ import annotations

import os
import sys

from cm4vllm.common.processes import die_with_parent

__all__: list[str] = []

if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - the same Python, without a shell

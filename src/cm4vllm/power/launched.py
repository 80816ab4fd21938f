"""A Python program that ends with the process that started it: what it starts itself, too, where that is the same."""

from __future__ import annotations

import os
import sys

from cm4vllm.common.processes import die_with_parent

__all__: list[str] = []

if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - the same Python, without a shell

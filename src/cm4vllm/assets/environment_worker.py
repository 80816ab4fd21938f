"""Our programs in another environment's Python: subprocesses read line by line, which end with this one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from cm4vllm.common.programs.processes import die_with_parent, safe_environment
from cm4vllm.common.progress import Step

_KEPT_LINES = 40


def run_worker(words: Sequence[str], progress: Step, pattern: re.Pattern[str], template: str) -> tuple[int, list[str]]:
    r"""Run a program to its end, and return its exit status and its last lines.

    Where a line that it prints has `pattern`, the step shows `template`, in which \1 stands for the first group.
    """
    lines: list[str] = []
    # No PYTHONPATH: that environment has its own packages, and ours may not come before them.
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    with subprocess.Popen(
        words,
        env=safe_environment(env),
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    ) as process:
        try:
            for line in process.stdout or ():
                lines = [*lines[-_KEPT_LINES:], line.rstrip()]
                if match := pattern.search(line):
                    progress.update(match.expand(template))
        except BaseException:
            process.kill()
            raise
    return process.returncode, lines

"""Ends what a run.sh started when this process is killed: a process of its own, told by a pipe that closes with us.

The kernel's own signal to orphans (PR_SET_PDEATHSIG) would reach run.sh alone, not what it started; and to ask for it
between fork and exec makes each start of a run.sh cost three times as much.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["Guardian"]

_PROGRAM = """
trap '' HUP INT TERM
live=
while read -r what group; do
  if [ "$what" = began ]; then live="$live $group "; else live="${live/ $group /}"; fi
done
for group in $live; do kill -KILL -- "-$group"; done
"""


class Guardian:
    """The process groups under way; they die with this process, however it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have the guarding process there. Raises OSError when there is no bash."""
        import subprocess  # few runs of what is cached start anything

        if self._process is None:
            self._process = subprocess.Popen(
                ["bash", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)}, cwd="/", process_group=0)

    @contextmanager
    def over(self, group: int) -> Iterator[None]:
        """Guard a process group while the block runs."""
        self._tell(f"began {group}\n")
        try:
            yield
        finally:
            self._tell(f"ended {group}\n")

    def close(self) -> None:
        """End the guarding process."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._process.stdin.fileno(), line.encode())

"""Ends what a run.sh started when this process is killed: a process of its own, told by a pipe that closes with us.

The kernel's own signal to orphans (PR_SET_PDEATHSIG) would reach run.sh alone, not what it started; and to ask for it
between fork and exec makes each start of a run.sh cost three times as much.
"""

from __future__ import annotations

import contextlib
import os
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

    def start(self) -> int:
        """Have the guarding process there. Returns the descriptor by which a shell tells it of itself.

        Raises OSError when there is no bash.
        """
        import subprocess  # few runs of what is cached start anything

        if self._process is None:
            self._process = subprocess.Popen(
                ["bash", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)}, cwd="/", process_group=0)
        assert self._process.stdin is not None  # noqa: S101 it is a pipe
        return self._process.stdin.fileno()

    @staticmethod
    def telling(descriptor: int) -> str:
        """Return the line by which a shell that leads its process group has it guarded from now on.

        It tells it itself: were we to tell, a signal or a kill could come between its start and our word. As long as it
        has not, it holds the pipe open, so that the guarding process waits for its word even when we are gone.
        """
        return f"trap '' PIPE; echo began $$ >&{descriptor}; exec {descriptor}>&-; trap - PIPE"

    def ended(self, group: int) -> None:
        """No longer guard a process group."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._process.stdin.fileno(), f"ended {group}\n".encode())

    def close(self) -> None:
        """End the guarding process."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

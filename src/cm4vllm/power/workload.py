"""The workload of a power session, which the official client starts twice: a measurement that another process makes.

The client runs a shell command. That command asks the process that started the session for a run, over two named pipes,
and waits for its end: the run is made by the same code as without power, and nothing of it, no key and no path, stands
in the files of the session. When the other process ends, the command fails.
"""

import os
from pathlib import Path

#: The command line that the official client logs.
COMMAND = "./workload.sh"
_SCRIPT = """\
#!/bin/sh
# Asks for a run, and waits for its end.
exec 3< answers
echo run > requests
read -r _ <&3
"""
_NAMES = ("requests", "answers")


class Relay:
    """The two pipes between the command in a folder, and the process that makes the runs."""

    def __init__(self, folder: Path) -> None:
        """Write into `folder` the command that the official client runs, and the pipes by which it asks for a run."""
        script = folder / COMMAND
        script.write_text(_SCRIPT, encoding="utf-8")
        script.chmod(0o755)
        for name in _NAMES:
            os.mkfifo(folder / name)
        # Both directions: no side waits for the other to open, and the command reads the end when this process ends.
        self._requests, self._answers = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in _NAMES)

    def close(self) -> None:
        """Close the pipes: a command that waits for a run fails."""
        os.close(self._requests)
        os.close(self._answers)

    def asks_for_run(self) -> bool:
        """Return True once for each time that the command asked for a run."""
        try:
            return bool(os.read(self._requests, len(b"run\n")))
        except BlockingIOError:
            return False

    def answer(self) -> None:
        """End the command: its run has been made."""
        os.write(self._answers, b"made\n")

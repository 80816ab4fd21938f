"""Waits for what processes of a test print and make."""

import os
import select
import subprocess
import time
from pathlib import Path


def wait_for_output(processes: list[subprocess.Popen[str]], text: bytes) -> None:
    """Return once one of the processes has printed `text`."""
    printed = {process.stdout.fileno(): b"" for process in processes}
    while not any(text in own for own in printed.values()):
        ready, _, _ = select.select(printed, [], [], 50)
        assert ready, printed
        for stream in ready:
            data = os.read(stream, 65536)
            assert data, printed
            printed[stream] += data


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)

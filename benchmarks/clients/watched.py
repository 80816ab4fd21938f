"""A Server run of ours that is watched as a job is: status.json written each second, the view drawn on a terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.task import Result, Task
from clients.through_loadgen import settings_of
from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.live.monitor import Monitor, watched
from cm4vllm.campaign.live.status import JobStatus, StepStatus
from cm4vllm.loadgen.process.runner import run

_STEPS = tuple(StepStatus(name=f"step {number}", state=State.PLANNED, expected_s=1.0) for number in range(20))


def watched_run(task: Task, *, drawn: bool) -> Result:
    """Make the run; `cpu_s` is what the client used, `watching_s` what watching it cost, in the client and outside.

    Not counted are the 2 s in which the server's metrics are read once, as in every run.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_of(task, folder)
        status = JobStatus("a benchmark", ["NOT A RESULT"], lambda: _STEPS)
        with _terminal() if drawn else contextlib.nullcontext(), watched(status, folder) as monitor:
            spent = _meter(monitor)
            with monitor.drawn():
                record = run(settings, folder / "run")
        processes = record.client.processes
        return Result(
            queries=record.client.completed,
            tokens=record.client.completion_tokens,
            wall_s=record.duration_s,
            cpu_s=sum(process.cpu_s for process in processes),
            watching_s=spent[0] + sum(process.watching_s for process in processes),
        )


def _meter(monitor: Monitor) -> list[float]:
    """Return a list whose first element grows by the processor time of each report that the monitor passes on."""
    spent, pass_on = [0.0], monitor._pass_on

    def metered() -> None:
        before = time.thread_time()
        pass_on()
        spent[0] += time.thread_time() - before

    monitor._pass_on = metered  # type: ignore[method-assign]
    return spent


@contextmanager
def _terminal() -> Iterator[None]:
    """Have standard output be a terminal of 80 x 24 that is read by a thread."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.environ["TERM"] = "xterm-256color"

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(reader, 65536):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    before = sys.stdout
    with os.fdopen(writer, "w") as sys.stdout:
        try:
            yield
        finally:
            sys.stdout = before

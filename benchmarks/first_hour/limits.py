"""The time of a part: when it is over, and at Ctrl-C, all that the part started ends."""

import ctypes
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

#: Seconds that processes have to end in order, and those that were killed to be gone.
ORDERLY_S, KILLED_S = 10.0, 20.0
_LOOK_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)


class TimeOver(BaseException):
    """The time of a part is over. No `except Exception` of what is measured keeps it back."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Run the block for so many seconds at most; at its end, however it comes, no process that it started is left.

    Raises TimeOver after that time, KeyboardInterrupt at SIGINT and SIGTERM. Only the main thread can call it.
    """
    _adopt(orphans=True)

    def end(signum: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        end_descendants()
        raise TimeOver if signum == signal.SIGALRM else KeyboardInterrupt

    before = {signum: signal.signal(signum, end) for signum in _SIGNALS}
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        end_descendants()
        _adopt(orphans=False)
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _adopt(*, orphans: bool) -> None:
    """Have processes below this one that lose their parent become its children, or those of init again."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def end_descendants() -> None:
    """End all processes below this one: by SIGTERM, and those that are left after ORDERLY_S by SIGKILL."""
    for signum, seconds in ((signal.SIGTERM, ORDERLY_S), (signal.SIGKILL, KILLED_S)):
        deadline, told = time.monotonic() + seconds, set[int]()
        while (left := _descendants()) and time.monotonic() < deadline:
            # A server that ends in order tells its own processes: a second signal would cut that short.
            for process in left:
                if process.pid not in told:
                    told.add(process.pid)
                    with suppress(psutil.Error):
                        process.send_signal(signum)
            time.sleep(_LOOK_S)


def _descendants() -> list[psutil.Process]:
    """Return the processes below this one; those that have ended and are not yet collected are none."""
    below = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                below.append(process)
    return below

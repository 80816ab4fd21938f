"""Calls of a function at intervals, in a thread of their own, while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(call: Callable[[], object], interval_s: float, name: str, *, end_s: float | None = None) -> Iterator[None]:
    """Call a function every `interval_s` seconds through the block, first after that time; `name` is the thread's.

    When the block ends, a call that is under way is waited for: `end_s` seconds at most, None without a limit.
    """
    ended = threading.Event()

    def repeat() -> None:
        """Call the function at each interval until the block ends."""
        while not ended.wait(interval_s):
            call()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(end_s)

"""One top-level run and all that belongs to it: what it prints, its scripts under way, what it cleans up at its end."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cm4vllm.common.errors import CmError, Interrupted
from cm4vllm.common.progress import say, warn
from cm4vllm.engine.cache import Cache
from cm4vllm.engine.catalogue import SCRIPT_AUTOMATION, Catalogue
from cm4vllm.engine.hooks import Hooks
from cm4vllm.engine.meta import ScriptMeta
from cm4vllm.engine.request import flag

__all__ = ["Session", "Stopped"]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal that ends the run; like Ctrl-C, no handler of ordinary failures catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Session:
    """State of a top-level run, shared with all runs inside it. `automation` is what hooks get as i['automation']."""

    def __init__(self, automation: Any, inputs: Mapping[str, Any]) -> None:
        self.automation = automation
        self.catalogue = Catalogue(automation.cmind)
        self.cache = Cache(automation.cmind)
        self.started = time.monotonic()
        self.verbose = flag(inputs, "v", "verbose")
        self.silent = flag(inputs, "s", "silent") and not self.verbose
        self.fake = flag(inputs, "fake_run")
        self.no_deps = flag(inputs, "fake_deps")
        self.as_json = flag(inputs, "j", "json") or inputs.get("out") == "json"
        #: The scripts under way, the innermost last.
        self.scripts: list[ScriptMeta] = []
        self._own_scripts = Path(automation.path).parents[1] / SCRIPT_AUTOMATION[0]
        self._hooks: dict[str, Hooks] = {}
        self._cleanups: list[tuple[str, Callable[[], None]]] = []
        self._failure: tuple[str, list[str]] = ("", [])

    @property
    def output(self) -> IO[str]:
        """Where a script's own output goes: not to standard output when that carries the result as JSON."""
        return sys.stderr if self.as_json else sys.stdout

    def tell(self, text: str, *, detail: bool = False) -> None:
        """Print a line about the script under way; details only when asked for."""
        if self.silent or (detail and not self.verbose):
            return
        say("  " * max(len(self.scripts) - 1, 0) + text)

    @property
    def near(self) -> Path:
        """The folder of scripts to prefer: that of the script under way, or of this engine's own repository."""
        return self.scripts[-1].path.parent if self.scripts else self._own_scripts

    def hooks_of(self, script: ScriptMeta) -> Hooks:
        """Return a script's hooks; its customize.py is loaded once a session."""
        key = str(script.path)
        if key not in self._hooks:
            self._hooks[key] = Hooks(script)
        return self._hooks[key]

    @contextmanager
    def under_way(self, script: ScriptMeta) -> Iterator[None]:
        """Note that a script runs, so that a failure can tell where it happened."""
        self.scripts.append(script)
        try:
            yield
        except CmError as error:
            if not self._failure[0] or self._failure[0] not in str(error):
                self._failure = (str(error), [script.title() for script in self.scripts])
            raise
        finally:
            self.scripts.pop()

    def at_the_end(self, title: str, cleanup: Callable[[], None]) -> None:
        """Have `cleanup` called when the top-level run ends, however it ends; the last one registered first."""
        self._cleanups.append((title, cleanup))

    def explained(self, error: CmError) -> str:
        """Return the text of an error that ends the run, with the way from the script that was asked for to it."""
        text, stack = str(error), self._failure[1]
        return f"{text}\n  in:     {' > '.join(stack)}" if len(stack) > 1 and self._failure[0] in text else text

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Turn SIGTERM and SIGHUP into an exception, and call the cleanups when the block ends, however it ends.

        Raises Interrupted when a signal or Ctrl-C ended it.
        """
        with _signals_as_exceptions():
            try:
                yield
            except Stopped as stop:
                raise _interrupted(stop.signum) from None
            except KeyboardInterrupt:
                raise _interrupted(signal.SIGINT) from None
            finally:
                self._clean_up()

    def _clean_up(self) -> None:
        while self._cleanups:
            title, cleanup = self._cleanups.pop()
            try:
                cleanup()
            except KeyboardInterrupt:
                warn(f"the cleanup of {title} was interrupted")
            except Exception as error:
                warn(f"the cleanup of {title} failed: {error}")


def _interrupted(signum: int) -> Interrupted:
    name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
    error = Interrupted(f"the run was stopped by {name}", remedy="what is finished is kept: run the same command again")
    error.exit_code = 128 + signum
    return error


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(signum: int, _frame: object) -> None:
        raise Stopped(signum)

    # A signal that is ignored stays so: nohup means it.
    before = {signum: signal.signal(signum, stop) for signum in _SIGNALS
              if signal.getsignal(signum) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)

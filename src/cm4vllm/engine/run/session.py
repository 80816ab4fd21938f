"""One top-level run and all that belongs to it: its output, its running scripts, its cleanup."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from cm4vllm.common.clock import present
from cm4vllm.common.errors import CmError, Interrupted, RecipeError
from cm4vllm.common.progress import say, warn
from cm4vllm.common.secrets.redaction import Vault, secret_flags
from cm4vllm.engine.format.dependency import split_tags
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.script_catalogue import SCRIPT_AUTOMATION, Catalogue
from cm4vllm.engine.run.flags import flag, with_usable_flags
from cm4vllm.engine.run.request import Request, Task

if TYPE_CHECKING:
    from cm4vllm.engine.run.hooks import Hooks
    from cm4vllm.engine.run.scope import Outcome
    from cm4vllm.engine.run.shell_script import Guardian


#: Scripts under way at once; more of them go round in circles.
DEEPEST = 40
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: Seconds after a signal in which others are ignored: they would interrupt the handlers of its exception.
_CALM_S = 1.0
_MOST_LOGS = 50


class Session:
    """State of a top-level run, shared with all runs inside it.

    `automation` is what hooks get as i['automation']. `kept_outcome` returns the kept result of a script, or runs
    it and keeps its result; without it nothing is kept, and everything runs.
    """

    def __init__(
        self, automation: Any, inputs: Mapping[str, Any], kept_outcome: Callable[[Any], Outcome] | None = None
    ) -> None:
        """Take cmind's object for the automation and the action's input; `kept_outcome` keeps results in the cache."""
        self.automation = automation
        self.kept_outcome = kept_outcome
        self.vault = Vault()
        self._inputs = inputs
        self._typed = [str(word) for word in inputs.get("cmd") or ()]
        self._is_last = ends_the_process(inputs)
        self.vault.learn_words(self._typed)
        self.catalogue = Catalogue(automation.cmind)
        self.started = time.monotonic()
        self.verbose = flag(inputs, "v", "verbose")
        self.silent = flag(inputs, "s", "silent") and not self.verbose
        self.fake = flag(inputs, "fake_run")
        self.no_deps = flag(inputs, "fake_deps")
        self.ignores_errors = flag(inputs, "ignore_script_error")
        self.keeps_files = flag(inputs, "dirty", "shell")
        #: Tags of the scripts whose shell files are to be written down so that they run without CM; None: of none.
        self.debugged: frozenset[str] | None = None
        if flag(inputs, "debug_script", "debug_script_tags"):
            self.debugged = frozenset(split_tags(inputs.get("debug_script_tags") or inputs.get("tags")))
        self.as_json = flag(inputs, "j", "json") or inputs.get("out") == "json"
        #: The scripts under way, the innermost last, and what each was asked for.
        self.scripts: list[ScriptMeta] = []
        self._requests: list[Request] = []
        #: One entry for each script that ended well: its tags -> UID, alias, variations, version and parent.
        self.versions: list[dict[str, dict[str, str | None]]] = []
        self._logs = os.path.join(automation.cmind.repos_path, "logs")
        self._log_count = 0
        repository = os.path.dirname(os.path.dirname(automation.path))
        self._own_scripts = os.path.join(repository, SCRIPT_AUTOMATION[0])
        self._hooks: dict[str, Hooks] = {}
        self._cleanups: list[tuple[str, Callable[[], object]]] = []
        self._failure: tuple[str, list[ScriptMeta]] = ("", [])

    @cached_property
    def guardian(self) -> Guardian:
        """The guardian, which ends the running native commands if this process is killed."""
        from cm4vllm.engine.run.shell_script import Guardian  # a hit of the cache starts no command

        return Guardian()

    @property
    def output(self) -> IO[str]:
        """The stream for a script's own output: not standard output if that carries the result as JSON."""
        return sys.stderr if self.as_json else sys.stdout

    def tell(self, text: str, *, detail: bool = False) -> None:
        """Print a line about the script under way; details only when asked for."""
        if self.silent or (detail and not self.verbose):
            return
        say("  " * max(len(self.scripts) - 1, 0) + text)

    def warn_of_typed_secrets(self) -> None:
        """Print which flags of the command line hold a secret: others on the machine can list command lines."""
        for typed, name in secret_flags(self._typed, self.vault).items():
            self.tell(
                f"note: the value typed as {typed} is visible in the list of processes and the shell's "
                f"history; set {name} as an environment variable instead: {name}=... cm run script ..."
            )

    @contextmanager
    def with_typed_secrets(self) -> Iterator[None]:
        """Set the variable of a secret that was typed as --env.HF_TOKEN=X, as HF_TOKEN=X before the command would."""
        env = self._inputs.get("env")
        typed = {
            key: str(value)
            for key, value in (env.items() if self._typed and isinstance(env, Mapping) else ())
            if self.vault.is_secret(str(key)) and "\0" not in str(value)
        }
        before = {key: os.environ.get(key) for key in typed}
        os.environ.update(typed)
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value

    @property
    def near(self) -> str:
        """The folder of scripts to prefer: that of the script under way, or of this engine's own repository."""
        return os.path.dirname(self.scripts[-1].folder) if self.scripts else self._own_scripts

    def log_of(self, script: ScriptMeta) -> str:
        """Return the file for the output of a shell script that fails. Only the newest logs are kept."""
        if not self._log_count and os.path.isdir(self._logs):
            for old in sorted(os.listdir(self._logs))[:-_MOST_LOGS]:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._logs, old))
        self._log_count += 1
        name = re.sub(r"[^\w.-]+", "-", script.alias or script.uid)
        return os.path.join(self._logs, f"{present():%Y%m%d-%H%M%S}-{os.getpid()}-{self._log_count}-{name}.log")

    def keep_logs(self, script: ScriptMeta, folder: str, error: CmError) -> None:
        """Move the logs of a cache entry that failed out of its folder, which goes, and let the error name them."""
        import shutil  # costs a hit of the cache more than it takes itself

        with suppress(OSError):  # no folder, or no room: the error itself matters more
            for name in sorted(name for name in os.listdir(folder) if name.endswith(".log")):
                log = os.path.join(folder, name)
                kept = f"{self.log_of(script).removesuffix('.log')}-{name}"
                os.makedirs(self._logs, exist_ok=True)
                shutil.move(log, kept)
                error.reworded(log, kept)

    def run_state(self, task: Task, deps: list[str]) -> dict[str, Any]:
        """Return the facts of the whole run that public hooks may read."""
        script = task.script
        return {
            "parent": self._parent(),
            "deps": deps,
            "fake_deps": self.no_deps,
            "version_info": self.versions,
            "script_id": f"{script.alias},{script.uid}",
            "script_tags": list(script.tags),
            "script_variation_tags": list(task.variations.names),
            "script_repo_alias": script.repo,
        }

    def note_version(self, task: Task, version: str) -> None:
        """Remember which version of a script took part, for --dump_version_info and the records of public scripts."""
        script, names = task.script, task.variations.names
        asked = ",".join((*(task.request.tags or script.tags), *(f"_{name}" for name in names)))
        self.versions.append(
            {
                asked: {
                    "script_uid": script.uid,
                    "script_alias": script.alias,
                    "script_tags": ",".join(script.tags),
                    "script_variations": ",".join(names),
                    "version": version,
                    "parent": self._parent(),
                }
            }
        )

    def _parent(self) -> str | None:
        if len(self.scripts) < 2:
            return None
        parent = self.scripts[-2]
        return f"{parent.alias},{parent.uid}"

    def hooks_of(self, script: ScriptMeta) -> Hooks:
        """Return a script's hooks; its customize.py is loaded once a session."""
        if script.folder not in self._hooks:
            from cm4vllm.engine.run.hooks import Hooks

            self._hooks[script.folder] = Hooks(script)
        return self._hooks[script.folder]

    @contextmanager
    def under_way(self, script: ScriptMeta, request: Request) -> Iterator[None]:
        """Note that a script runs, so that a failure can tell where it happened.

        Raises RecipeError when the same is under way already: it would never end.
        """
        under_way = zip(self.scripts, self._requests, strict=True)
        same = any(script is other and request.same_run(asked) for other, asked in under_way)
        self.scripts.append(script)
        self._requests.append(request)
        try:
            if same or len(self.scripts) > DEEPEST:
                raise depends_on_itself(self.scripts)
            yield
        except CmError as error:
            if not self._failure[0] or self._failure[0] not in self.vault.clean(str(error)):
                self._failure = (self.vault.clean(str(error)), list(self.scripts))
            raise
        finally:
            self.scripts.pop()
            self._requests.pop()

    def at_the_end(self, title: str, cleanup: Callable[[], object]) -> None:
        """Register a function to call when the top-level run ends, however it ends; the last one is called first."""
        self._cleanups.append((title, cleanup))

    def explain(self, error: CmError) -> str:
        """Return the text of an error that ends the run, with the way from the script that was asked for to it."""
        text, stack = self.vault.clean(str(error)), self._failure[1]
        if len(stack) < 2 or self._failure[0] not in text:
            return text
        return f"{with_usable_flags(text, stack)}\n  in:     {' > '.join(script.title() for script in stack)}"

    @contextmanager
    def supervision(self) -> Iterator[None]:
        """Turn SIGTERM and SIGHUP into an exception, and call the cleanups when the block ends, however it ends.

        Raises Interrupted when a signal or Ctrl-C ended it.
        """
        with _signals_as_exceptions(is_last=self._is_last) as signals, self.vault.guarded_output():
            try:
                try:
                    yield
                finally:
                    signals.end()
            except KeyboardInterrupt as stop:
                signals.end()
                signum = next((number for number in _SIGNALS if number in stop.args), signal.SIGINT)
                error = Interrupted(
                    f"the run was stopped by {'Ctrl-C' if signum == signal.SIGINT else signum.name}",
                    remedy="finished steps are kept: run the same command again",
                )
                error.exit_code = 128 + signum
                raise error from None
            finally:
                self._clean_up(signals)
                if "guardian" in vars(self):
                    self.guardian.close()

    def _clean_up(self, signals: _Signals) -> None:
        """Call the cleanups, the last registered one first; a signal interrupts one of them, not the others."""
        while self._cleanups:
            title, cleanup = self._cleanups.pop()
            try:
                try:
                    signals.armed = True
                    cleanup()
                finally:
                    signals.armed = False
            except KeyboardInterrupt:
                warn(f"the cleanup of {title} was interrupted")
            except Exception as error:
                warn(f"the cleanup of {title} failed: {error}")


def ends_the_process(inputs: Mapping[str, Any]) -> bool:
    """Return True if an action's inputs are those of this process's own command line: `cm` ends after the action."""
    words = [str(word) for word in inputs.get("cmd") or ()]
    return bool(words) and sys.argv[-len(words) :] == words


def depends_on_itself(scripts: Sequence[ScriptMeta]) -> RecipeError:
    """Return the error for scripts that ask for each other in turn, the last one for itself."""
    last = max((n for n, script in enumerate(scripts[:-1]) if script is scripts[-1]), default=0)
    return RecipeError(
        f"{scripts[-1].title()} depends on itself",
        cause=" > ".join(script.title() for script in scripts[last:]),
        remedy="remove one of these dependencies, or give it a condition",
    )


class _Signals:
    """The handler of signals: each is an exception, which no handler of ordinary failures catches.

    At the end of a run a signal interrupts one cleanup; what comes beside the cleanups is ignored.
    """

    def __init__(self) -> None:
        self.armed = True
        self._calm_until_s = 0.0
        self._ending = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self, signum: int, _frame: object) -> None:
        """Raise KeyboardInterrupt for a signal, but not again within the time that one burst of signals takes."""
        now_s = time.monotonic()
        if self.armed and (self._ending or now_s >= self._calm_until_s):
            self.armed = not self._ending
            self._calm_until_s = now_s + _CALM_S
            raise KeyboardInterrupt(signum)

    def handle(self, *numbers: signal.Signals) -> None:
        """Handle these signals. One that is ignored stays so: nohup means it."""
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for signum in numbers:
                if signum not in self._before and signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._before[signum] = signal.signal(signum, self)

    def end(self) -> None:
        """Begin the end of the run; from now on Ctrl-C is one of the signals also where a program handles it itself."""
        self.armed, self._ending = False, True
        self.handle(signal.SIGINT)

    def give_back(self, *, is_last: bool) -> None:
        """Set the handlers that there were before; Ctrl-C is ignored from now on where nothing more is run."""
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_IGN if is_last and signum == signal.SIGINT else handler)


@contextmanager
def _signals_as_exceptions(*, is_last: bool) -> Iterator[_Signals]:
    """Yield the handler of signals. `is_last`: the process ends after the run."""
    signals = _Signals()
    signals.handle(*_SIGNALS)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signals.handle(signal.SIGINT)
    try:
        yield signals
    finally:
        signals.give_back(is_last=is_last)

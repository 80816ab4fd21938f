"""The base of the automations `script` and `cache`, whose actions `cm` calls."""

import contextlib
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from cmind.automation import Automation

from cm4vllm.common.errors import CmError, Interrupted, NotWritable, translated_os_errors
from cm4vllm.common.files import free_bytes, working_folder
from cm4vllm.common.programs.standard_streams import ensure_streams, lost_output, report
from cm4vllm.common.secrets.redaction import vault
from cm4vllm.engine.cache.entries import Cache
from cm4vllm.engine.cache.reuse import kept_outcome
from cm4vllm.engine.format.script_catalogue import Catalogue, protect, slim
from cm4vllm.engine.run.execution import run
from cm4vllm.engine.run.flags import NOT_DONE, PROVENANCE_FLAGS, flag
from cm4vllm.engine.run.request import Request, choice_note
from cm4vllm.engine.run.scope import asked_by_code
from cm4vllm.engine.run.session import Session, ends_the_process

Result = dict[str, Any]

#: Where the run under way is kept on the CM object: cmind makes a new automation for every call that goes through it.
_SESSION = "cm4vllm.session"

# What is loaded by now, cmind's index included, stays to the end of the process: to walk it again at each collection,
# and once more at the exit, is a tenth of what a hit of the cache takes.
gc.freeze()
ensure_streams()


class OwnAutomation(Automation):  # type: ignore[misc]
    """An automation whose errors `cm` prints as they are: cmind itself would put an exclamation mark after each."""

    def __init__(self, cmind: Any, automation_file: str) -> None:
        super().__init__(cmind, automation_file)
        cmind.error = lambda result: _report(cmind, result)

    def _result_of(self, action: str, i: Result, **given: Any) -> Result:
        """Return the result of an action; what it raises becomes the result that cmind expects: message and code.

        `action` is a function by its place below this package: each command loads its own modules alone.
        """
        module, _, name = action.rpartition(".")
        try:
            with vault().guarded_output():
                result: Result = getattr(import_module(f"cm4vllm.engine.{module}"), name)(self, i, **given)
            return result if result["return"] else _not_printed() or result
        except KeyboardInterrupt:
            if _SESSION in self.cmind.state:  # a run is under way, and ends in order itself
                raise
            if ends_the_process(i):
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            known: CmError = Interrupted("stopped by Ctrl-C")
        except Exception as error:
            known = _error_to_show(error, verbose=flag(i, "v", "verbose"))
        return {"return": known.exit_code, "error": str(known)}


def _report(cmind: Any, result: Result) -> Result:
    """Print the error of a result to standard error, as `cm` does at its end."""
    if result["return"] > 0:
        if cmind.debug:
            raise RuntimeError(result["error"])
        report(f"\n{cmind.cfg['error_prefix']} {str(result['error']).rstrip()}\n")
    return result


class ScriptAutomation(OwnAutomation):
    """The runs of scripts. Each action takes cmind's input dictionary and returns {'return': 0, ...} or an error."""

    #: By this hooks know that the engine that runs them is this one.
    engine = "cm4vllm"

    def run(self, i: Result) -> Result:
        """Run a script: from the command line, from Python, or from a hook of a script that runs."""
        if flag(i, "help", "h"):
            # cmind would print its own help for this action below that.
            return {**self._result_of("tools.help.script_help", i), "skip_delayed_help": True}
        if flag(i, "plan", "graph"):
            return self._result_of("plan.graph.print_plan", i)
        session = self.cmind.state.get(_SESSION)
        if session is None:
            return self._top_level(i)
        try:
            return run(session, asked_by_code(i, working_folder())).as_result()
        except CmError as error:
            return {"return": error.exit_code, "error": str(error)}

    def _top_level(self, i: Result) -> Result:
        """Run an action as the outermost one, in a session of its own, and return its result."""
        protect(self.cmind)
        session = Session(self, i, partial(kept_outcome, Cache(self.cmind)))
        folder = ""
        self.cmind.state[_SESSION] = session
        try:
            with contextlib.redirect_stdout(session.output), session.supervision(), session.with_typed_secrets():
                session.warn_of_typed_secrets()
                if other := _other_checkout(self.path):
                    session.tell(other)
                folder = working_folder()
                _require_result_file(self.cmind)
                free = free_bytes(folder)
                request = Request.of(i, folder, from_person=bool(i.get("cmd")))
                _print_warnings(session, request)
                result = run(session, request).as_result()
                _print_more(session, i, result, folder, free)
                session.catalogue.metas.keep()
                slim(self.cmind)
        except Exception as error:
            known = _error_to_show(error, verbose=session.verbose)
            result = {"return": known.exit_code, "error": session.explain(known)}
            if known.state:
                result["new_state"] = dict(known.state)
        finally:
            del self.cmind.state[_SESSION]
        return _handed_over(session, i, result, folder)

    def __getattr__(self, name: str) -> Any:
        """Return one of the helpers that public hooks call on i['automation']; few runs need them."""
        if not name.startswith("_"):
            from cm4vllm.engine.run.helpers import HELPERS

            if name in HELPERS:
                return HELPERS[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def prepare(self, i: Result) -> Result:
        """Run the dependencies of a script, not the script itself."""
        return self.run({**i, "prepare": True})

    def adr_targets(self, i: Result) -> Result:
        """Return the targets of --adr in the scripts with these tags: their inputs, and the names below them."""
        from cm4vllm.engine.plan.chain import adr_targets

        session = self.cmind.state.get(_SESSION)
        return {"return": 0, **adr_targets(session.catalogue if session else Catalogue(self.cmind), i.get("tags"))}


def _error_to_show(error: Exception, *, verbose: bool) -> CmError:
    """Return the error to show for a failure: itself, or one that says where an unforeseen failure happened."""
    if isinstance(error, CmError):
        return error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, OSError):
        try:
            with translated_os_errors("use", str(error.filename or frame.filename)):
                raise error
        except CmError as known:
            return known
        except OSError:
            pass
    from cm4vllm.engine.run.hooks import shadowed_packages

    return CmError(
        f"{type(error).__name__}: {error}",
        cause=f"at {frame.filename}:{frame.lineno}",
        remedy=shadowed_packages() or "this is a bug in cm4vllm: run again with -v and report the output",
    )


def _other_checkout(automation: str) -> str:
    """Return a warning where the recipes are those of one checkout and the package is that of another; else nothing."""
    recipes = os.path.dirname(os.path.dirname(os.path.realpath(automation)))
    package = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    if package == recipes or not os.path.isfile(os.path.join(package, "cmr.yaml")):
        return ""
    return (
        f"WARNING: the recipes of {recipes} run with the Python package of {package}: they are those of CM_REPOS, the "
        "package is that of the `cm` that comes first on PATH"
    )


def _require_result_file(cmind: Any) -> None:
    """Refuse a --save_to_json for which there is no folder: cmind writes it when all is done, and would fail then."""
    target, cmind.save_to_json = cmind.save_to_json, ""
    if target and not os.path.isdir(os.path.dirname(os.path.abspath(target))):
        raise NotWritable(
            f"--save_to_json={target} cannot be written",
            cause="its folder does not exist",
            remedy="create the folder first",
        )
    cmind.save_to_json = target


def _print_warnings(session: Session, request: Request) -> None:
    """Print which script is run where several match the tags, and which parts of the request have no effect."""
    if request.adr or request.explicit:
        from cm4vllm.engine.plan.chain import warnings_of

        lines = warnings_of(session.catalogue, request, session.near)
    else:
        lines = choice_note(session.catalogue, request, session.near)
    for line in lines:
        session.tell(line)


def _handed_over(session: Session, i: Mapping[str, Any], result: Result, folder: str) -> Result:
    """Write and print what the flags ask for, and return the result; without secrets where it is written by cmind."""
    with contextlib.redirect_stdout(session.output), session.vault.guarded_output():
        if folder and flag(i, *PROVENANCE_FLAGS):
            from cm4vllm.engine.tools.provenance import leave

            try:
                leave(session, i, result, folder)
            except CmError as error:
                result = result if result["return"] else {"return": error.exit_code, "error": str(error)}
    if session.as_json or i.get("save_to_json") or i.get("save_to_yaml"):
        result = session.vault.cleaned(result)
    if flag(i, "j", "json") and (not result["return"] or "new_state" in result):
        with session.vault.guarded_output():
            print(json.dumps(result, indent=2, default=str))
    # Not in a program that calls cmind itself: what it prints is its own affair.
    return result if result["return"] or not i.get("cmd") else {**result, **_not_printed()}


def _not_printed() -> Result:
    """Return the error of a command whose output could not be written; empty if it was."""
    if not (lost := lost_output()):
        return {}
    error = NotWritable(
        "what the command printed could not be written",
        cause=lost,
        remedy="give it another standard output; the command itself has ended well, and its results are there",
    )
    return {"return": error.exit_code, "error": str(error)}


def _print_more(session: Session, i: Mapping[str, Any], result: Result, folder: str, free_before: int) -> None:
    """Print what further flags ask for."""
    if flag(i, "print_deps"):
        result["new_state"]["print_deps"] = [f"cm run script --tags={tags}" for tags in result["deps"]]
        for line in result["new_state"]["print_deps"]:
            session.tell(line)
    if flag(i, "print_env"):
        for key, value in sorted(session.vault.cleaned(result["new_env"]).items()):
            session.tell(f"{key}={value}")
    if flag(i, "time"):
        session.tell(f"took {time.monotonic() - session.started:.1f} s")
    if flag(i, "space"):
        used = free_before - free_bytes(folder)
        session.tell(f"disk space used: {max(used, 0) / 1e6:.1f} MB")
    for name in sorted(NOT_DONE.keys() & i.keys()):
        session.tell(f"note: --{name} is accepted and ignored" + (f": {NOT_DONE[name]}" if NOT_DONE[name] else ""))
    if flag(i, "pause") and sys.stdin.isatty():
        input("Enter ends the run: ")

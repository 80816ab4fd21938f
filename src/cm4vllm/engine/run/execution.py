"""One script's run: small steps, in the order of the public format, over one immutable task and one explicit scope.

deps -> preprocess -> prehook_deps -> run.sh -> posthook_deps -> postprocess -> post_deps
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cm4vllm.common.errors import CmError, RecipeError, translated_os_errors
from cm4vllm.common.files import require_space
from cm4vllm.engine.format.conditions import is_no
from cm4vllm.engine.format.documents import merged
from cm4vllm.engine.format.meta import Dependency
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.run import dependencies
from cm4vllm.engine.run.environment import Env, as_text, merge_into
from cm4vllm.engine.run.request import Request, flag
from cm4vllm.engine.run.scope import Outcome, Scope, remarks
from cm4vllm.engine.run.selection import select
from cm4vllm.engine.run.session import Session
from cm4vllm.engine.run.task import Task

__all__ = ["Outcome", "Run", "run"]

_ENV_OUT, _STATE_OUT, _STATE_IN, _VERSION_OUT = "tmp-run-env.out", "tmp-run-state.json", "tmp-state.json", "tmp-ver.out"


def run(session: Session, request: Request) -> Outcome:
    """Run the script that `request` means, or use what the cache holds of it. Raises CmError when it fails."""
    script = select(session.catalogue, request, session.near)
    with session.under_way(script, request):
        task = Task.of(script, request)
        scope = Scope.of(task)
        session.vault.declare(script.secret_env_keys)
        session.vault.learn(request.inputs)
        session.vault.learn(scope.env)
        for remark in remarks(task, scope.env, session.vault.is_secret):
            session.tell(remark)
        outcome = perform(session, task, scope)
        check_version(task, outcome.version)
        if not _is_fake(session, task):
            _check_promises(task, outcome.new_env)
        session.note_version(task, outcome.version)
        _tell_exported(session, task, outcome)
    return outcome


def perform(session: Session, task: Task, scope: Scope) -> Outcome:
    """Run a task, or use what the cache holds of it."""
    if task.is_cached and not _is_fake(session, task):
        from cm4vllm.engine.cache.reuse import from_cache

        return from_cache(session, task, scope, fresh)
    return fresh(session, task, scope)


def fresh(session: Session, task: Task, scope: Scope) -> Outcome:
    """Run a script step by step, from the scope of its task. A step that returns an outcome is the last one."""
    settled = task.settled()
    if settled is not task:  # a version more has its own say
        task, scope = settled, Scope.of(settled).but(folder=scope.folder)
    current = Run(session, task, scope)
    for step in _STEPS:
        outcome = step(current)
        if outcome is not None:
            return outcome
    current.hold_constants()
    return scope.outcome(task)


class Run(Value):
    """What every step gets: the session, what is settled, and what changes."""

    session: Session
    task: Task
    scope: Scope

    @property
    def is_fake(self) -> bool:
        """Tell whether only dependencies are looked at: in fake runs, and of the script that is only prepared."""
        return _is_fake(self.session, self.task)

    def hold_constants(self) -> None:
        """Give constants their values back, as public scripts rely on; one with strict_input may overrule its flags."""
        if not self.task.script.strict_input:
            self.scope.env.update(self.scope.const)

    def hook(self, name: str) -> Mapping[str, Any]:
        """Call a hook of customize.py, and take in what it returned and left in the environment."""
        hooks, scope = self.session.hooks_of(self.task.script), self.scope
        if hooks.get(name) is None:
            return {}
        from cm4vllm.engine.run.hooks import hook_input, reworded, working_in

        # The folder of a cached script that failed is gone when its cleanup is called.
        with working_in(scope.folder if os.path.isdir(scope.folder) else self.task.request.folder):
            given = hook_input(self)
            with reworded(self.task.script, self.task.request):
                result = hooks.call(name, given)
        for key, value in scope.env.items():
            if not isinstance(key, str):
                raise RecipeError(f"{name} of {self.task.script.title()} set an environment key that is no text",
                                  cause=f"{key!r}", remedy=f"correct {self.task.script.folder}/customize.py")
            if not isinstance(value, (str, list, dict)):
                scope.env[key] = as_text(value)
        scope.version = str(result.get("version") or scope.env.get("CM_DETECTED_VERSION") or scope.version)
        scope.extra_tags = tuple(dict.fromkeys((*scope.extra_tags, *(result.get("add_extra_cache_tags") or ()))))
        dependencies.update_from(given["meta"], scope.phases)
        self.session.vault.learn(scope.env)
        return result

    def detect_version(self) -> Mapping[str, Any]:
        """Call the hook detect_version, whose answer is a helper's and not yet this run's."""
        from cm4vllm.engine.run.hooks import hook_input

        hooks = self.session.hooks_of(self.task.script)
        return hooks.call("detect_version", hook_input(self)) if hooks.get("detect_version") else {}

    def native(self, name: str, env: dict[str, Any], folder: str) -> bool:
        """Run a shell file of the script, and merge what it writes into `env` and the state.

        An empty name means run.sh, which may be missing: then False comes back. Raises NativeCommandError.
        """
        from cm4vllm.engine.run.native import find_native, process_environment, read_assignments, run_native

        session, script, scope = self.session, self.task.script, self.scope
        path = find_native(script.folder, name, env)
        if path is None:
            return False
        from cm4vllm.engine.run.git_access import git_environment
        from cm4vllm.engine.run.shell_text import shell_keys

        out, state_out = os.path.join(folder, _ENV_OUT), os.path.join(folder, _STATE_OUT)
        with translated_os_errors("run a script in", folder):
            for leftover in (out, state_out):
                with suppress(FileNotFoundError):
                    os.unlink(leftover)
            if scope.state:
                with open(os.path.join(folder, _STATE_IN), "w") as file:
                    file.write(json.dumps(session.vault.cleaned(scope.state), default=str))
        prefix = [str(line) for line in scope.state.get("script_prefix") or ()]
        if session.debugged is not None and session.debugged <= set(self.task.title().split(",")):
            from cm4vllm.engine.tools.provenance import debug_script

            debug_script(session, path, env, folder, prefix)
        access = git_environment(env)
        for value in access.values():
            session.vault.learn({"TOKEN": value.partition("Basic ")[2]})  # derived from a secret, hence one itself
        given = {**process_environment(env, shell_keys(script, self.task.layers, env)), **access}
        run_native(path, given, folder, title=script.title(), log=session.log_of(script), guardian=session.guardian,
                   output=session.output, clean=session.vault.clean, prefix=prefix)
        try:
            merge_into(env, read_assignments(out))
        except OSError as error:
            raise RecipeError(f"run.sh of {script.title()} left no readable {_ENV_OUT}", cause=str(error)) from error
        session.vault.learn(env)
        if os.path.exists(state_out):
            scope.state = merged(scope.state, _native_state(state_out, script.title()))
        return True


def _is_fake(session: Session, task: Task) -> bool:
    return session.fake or session.no_deps or flag(task.request.inputs, "prepare")


# --- the steps -------------------------------------------------------------------------------------------------------

def announce(run: Run) -> None:
    """Tell what runs, and what its meta and variations warn of."""
    session, script, scope = run.session, run.task.script, run.scope
    in_cache = scope.folder != run.task.request.folder
    session.tell(script.title(), detail=not in_cache and len(session.scripts) > 1)
    for warning in (*script.warnings, *(text for one in run.task.variations.layers for text in one.warnings)):
        session.tell(f"note: {warning}")
    for variation in run.task.variations.layers:
        if variation.disk_space_mb and not run.is_fake:
            require_space(scope.folder, int(variation.disk_space_mb * 1e6), f"{script.title()}, _{variation.name}")


def prepare_folder(run: Run) -> None:
    """Tell the script where it is, and make the folder that CM_OUTDIRNAME asks for."""
    scope, script = run.scope, run.task.script
    scope.env.update({
        "CM_TMP_CURRENT_PATH": run.task.request.folder, "CM_TMP_CURRENT_SCRIPT_PATH": script.folder,
        "CM_TMP_CURRENT_SCRIPT_WORK_PATH": scope.folder})
    if run.session.fake:
        scope.env["CM_TMP_FAKE_RUN"] = "yes"
    if run.task.is_cached and flag(run.task.request.inputs, "renew"):
        scope.env["CM_RENEW_CACHE_ENTRY"] = "yes"
    if scope.env.get("CM_OUTDIRNAME"):
        scope.folder = os.path.join(scope.folder, str(scope.env["CM_OUTDIRNAME"]))
        with translated_os_errors("make", scope.folder):
            os.makedirs(scope.folder, exist_ok=True)
    if not run.is_fake:
        _remove(scope.folder, (*script.clean_files, *script.clean_output_files))


def run_deps(phase: str) -> Callable[[Run], None]:
    """Return the step that runs the dependencies of one phase whose conditions hold."""
    def step(run: Run) -> None:
        run_phase(run, phase)
    return step


def run_phase(run: Run, phase: str, *, only_dynamic: bool = False) -> None:
    """Run the dependencies of a phase; of a script that is cached, those that are dynamic."""
    for dependency in list(run.scope.phases[phase]):
        dependency = dependencies.amended(dependency, run.task.ad + run.task.adr, run.scope.env)
        if run.session.fake and dependency.skip_if_fake_run:
            continue
        if dependency.conditions.hold(run.scope.env) and (dependency.dynamic or not only_dynamic):
            _run_dep(run, dependency, phase)


def _run_dep(current: Run, dependency: Dependency, phase: str) -> None:
    task, scope = current.task, current.scope
    request = dependencies.request_for(
        dependency, script=task.script, variations=task.variations, env=scope.env, const=scope.const,
        state=scope.state, const_state=scope.const_state, adr=task.adr, phase=phase, folder=task.request.folder)
    scope.deps.append(request.title())
    if not current.session.no_deps:
        scope.receive(run(current.session, request))
        current.hold_constants()


def preprocess(run: Run) -> Outcome | None:
    """Call preprocess; it may end the run here, or have another script run in this one's place."""
    run.hold_constants()
    if run.is_fake:
        return None
    if run.session.hooks_of(run.task.script).get("cleanup"):
        run.session.at_the_end(run.task.script.title(), lambda: run.hook("cleanup"))
    result = run.hook("preprocess")
    return _instead(run, result) if result.get("skip") else None


def _instead(current: Run, result: Mapping[str, Any]) -> Outcome:
    task, scope = current.task, current.scope
    other = result.get("script")
    if not other:
        return scope.outcome(task).but(skipped=True)
    if not isinstance(other, (str, Mapping)):
        raise RecipeError(f"preprocess of {task.script.title()} names a script by {other!r}",
                          remedy="it must be tags, or a mapping with tags")
    given: dict[str, Any] = {"tags": other} if isinstance(other, str) else dict(other)
    request = Request.of({**given, "env": {**scope.env, **(given.get("env") or {})}}, scope.folder)
    outcome = run(current.session, request.but(const=scope.const, state=scope.state, adr=task.adr))
    scope.deps.append(request.title())
    merge_into(scope.env, outcome.new_env)
    return outcome.but(env=scope.env, deps=scope.deps)


def native(run: Run) -> None:
    """Run run.sh."""
    if run.is_fake:
        return
    script, scope = run.task.script, run.scope
    run.hold_constants()
    for prefix, other in script.env_key_mappings.items():
        scope.env.update({key.replace(prefix, other): value for key, value in list(scope.env.items())
                          if key.startswith(prefix)})
    try:
        run.native(run.task.script_name, scope.env, scope.folder)
    except CmError as error:
        _show_files(run)
        if not flag(run.task.request.inputs, "ignore_script_error") and not run.session.ignores_errors:
            raise
        run.session.tell(f"note: --ignore_script_error: going on after: {error.what}")


def postprocess(run: Run) -> None:
    """Call postprocess, then remove what the script and the engine only needed on the way."""
    if run.is_fake:
        return
    run.hold_constants()
    run.hook("postprocess")
    if not run.session.keeps_files:
        _remove(run.scope.folder, (_ENV_OUT, _STATE_OUT, _STATE_IN, _VERSION_OUT, *run.task.script.clean_files))


def post_deps(run: Run) -> None:
    """Run post_deps: not in a fake run, since they build on what the script makes."""
    if not run.is_fake:
        run_phase(run, "post_deps")


_STEPS: tuple[Callable[[Run], Outcome | None], ...] = (
    announce, prepare_folder, run_deps("deps"), preprocess, run_deps("prehook_deps"), native,
    run_deps("posthook_deps"), postprocess, post_deps,
)


# --- parts of steps --------------------------------------------------------------------------------------------------

def _native_state(path: str, title: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            state = json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"run.sh of {title} wrote a {_STATE_OUT} that is not JSON", cause=str(error)) from error
    if not isinstance(state, dict):
        raise RecipeError(f"run.sh of {title} wrote a {_STATE_OUT} that is not a mapping")
    return state


def _remove(folder: str, names: tuple[str, ...]) -> None:
    """Remove files that a meta names. Raises RecipeError for one outside of `folder`."""
    for name in names:
        path = os.path.join(folder, name)
        # A plain name cannot lead out; to resolve a path is to look at each folder on the way.
        if name != os.path.basename(name) and not _is_inside(os.path.dirname(path), folder):
            raise RecipeError(f"the meta asks to remove {name!r}", cause=f"it is not inside {folder}")
        if os.path.isfile(path):
            with translated_os_errors("remove", path):
                os.unlink(path)


def _is_inside(path: str, folder: str) -> bool:
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(folder), ""))


def _show_files(run: Run) -> None:
    for name in run.task.script.files_on_error:
        path = os.path.join(run.scope.folder, name)
        if os.path.isfile(path):
            with open(path, errors="replace") as file:
                run.session.tell(f"{path}:\n{file.read()}")


def check_version(task: Task, version: str) -> None:
    """Raise CmError unless a version that became known is one that was asked for."""
    if version and not task.wanted.accepts(version):
        raise CmError(f"{task.script.title()} has version {version}, but {task.wanted} is wanted",
                      remedy="install a version that fits, or ask for another one")


def _check_promises(task: Task, new_env: Env) -> None:
    for key in task.promised_env_keys:
        if is_no(new_env.get(key, "")):
            raise RecipeError(f"{task.script.title()} ended without {key}, which its meta promises",
                              remedy=f"set it in {task.script.folder}, or take it out of promised_env_keys")


def _tell_exported(session: Session, task: Task, outcome: Outcome) -> None:
    for key, label in sorted(task.script.env_at_the_end.items()):
        if key in outcome.env:
            session.tell(f"{label or key}: {outcome.env[key]}", detail=len(session.scripts) > 1)

"""One script's run: small steps, in the order of the public format, over one immutable task and one explicit scope.

deps -> preprocess -> prehook_deps -> run.sh -> posthook_deps -> postprocess -> post_deps
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cm4vllm.common.errors import CmError, InstallError, RecipeError, translated_os_errors
from cm4vllm.common.files import require_space
from cm4vllm.engine.format.dependency import Dependency, is_no
from cm4vllm.engine.run.environment import Env, merge_into
from cm4vllm.engine.run.flags import flag, require_inputs
from cm4vllm.engine.run.request import Request, Task, select, without_replaced_variations
from cm4vllm.engine.run.scope import Outcome, Scope, complete, remarks, request_for, with_amendments
from cm4vllm.engine.run.script_run import ENGINE_FILES, Run
from cm4vllm.engine.run.session import Session


def run(session: Session, request: Request) -> Outcome:
    """Run the script that `request` names, or use its entry in the cache. Raises CmError when it fails."""
    request = without_replaced_variations(session.catalogue, request, session.near)
    script = select(session.catalogue, request, session.near)
    with session.under_way(script, request):
        task = Task.of(script, request)
        current = Run(session, task, Scope.of(task))
        session.vault.declare(script.secret_env_keys)
        session.vault.learn(request.inputs)
        session.vault.learn(current.scope.env)
        for remark in remarks(task, current.scope.env, session.vault.is_secret):
            session.tell(remark)
        outcome = perform(current)
        check_version(task, outcome.version)
        if not current.is_fake:
            _check_promises(task, outcome.new_env)
        session.note_version(task, outcome.version)
        for key, label in sorted(script.env_at_the_end.items()):
            if key in outcome.env:
                session.tell(f"{label or key}: {outcome.env[key]}", detail=len(session.scripts) > 1)
    return outcome


def perform(run: Run) -> Outcome:
    """Run a task, or use its entry in the cache."""
    if run.session.kept_outcome is not None and run.task.is_cached and not run.is_fake:
        return run.session.kept_outcome(run)
    return run_steps(run)


def run_steps(run: Run) -> Outcome:
    """Run a script step by step, from the scope of its task. A step that returns an outcome is the last one."""
    task = run.task.with_default_version()
    if task is not run.task:  # a version more has its own say
        run = run.but(task=task, scope=Scope.of(task).but(folder=run.scope.folder))
    for step in _STEPS:
        outcome = step(run)
        if outcome is not None:
            return outcome
    run.hold_constants()
    return run.scope.outcome(run.task)


# --- the steps -------------------------------------------------------------------------------------------------------


def announce(run: Run) -> None:
    """Print what runs, and what its meta and variations warn of."""
    session, script, scope = run.session, run.task.script, run.scope
    in_cache = scope.folder != run.task.request.folder
    session.tell(script.title(), detail=not in_cache and len(session.scripts) > 1)
    for warning in (*script.warnings, *(text for layer in run.task.variations.layers for text in layer.warnings)):
        session.tell(f"note: {warning}")
    for variation in run.task.variations.layers:
        if variation.disk_space_mb and not run.is_fake:
            require_space(scope.folder, int(variation.disk_space_mb * 1e6), f"{script.title()}, _{variation.name}")


def prepare_folder(run: Run) -> None:
    """Set the keys by which the script knows its folder, and make the folder that CM_OUTDIRNAME asks for."""
    scope, script = run.scope, run.task.script
    scope.env.update(
        {
            "CM_TMP_CURRENT_PATH": run.task.request.folder,
            "CM_TMP_CURRENT_SCRIPT_PATH": script.folder,
            "CM_TMP_CURRENT_SCRIPT_WORK_PATH": scope.folder,
        }
    )
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


def deps(run: Run) -> None:
    """Let a script refuse and complete its inputs, then run its dependencies.

    Where the packages that its code needs are still to be installed, its first dependency installs them before.
    """
    dependencies_left = list(run.scope.phases["deps"])
    try:
        _before_deps(run)
    except InstallError:
        if not dependencies_left:
            raise
        _take(run, dependencies_left.pop(0), "deps")
        _before_deps(run)
    for dependency in dependencies_left:
        _take(run, dependency, "deps")


def _before_deps(run: Run) -> None:
    """Call the hook before_deps: dependencies get the inputs as it left them. Raises UsageError for missing inputs."""
    if run.session.hooks_of(run.task.script).get("before_deps") is not None:
        run.hook("before_deps")
        complete(run.scope)
    if not run.is_fake:
        require_inputs(run.session.catalogue, run.task.script, run.scope.env)


def run_phase(run: Run, phase: str, *, only_dynamic: bool = False) -> None:
    """Run the dependencies of a phase whose conditions hold; for a cached script, only the dynamic ones."""
    for dependency in list(run.scope.phases[phase]):
        _take(run, dependency, phase, only_dynamic=only_dynamic)


def _take(current: Run, dependency: Dependency, phase: str, *, only_dynamic: bool = False) -> None:
    """Run a dependency as it is amended, if its conditions hold."""
    session, task, scope = current.session, current.task, current.scope
    dependency = with_amendments(dependency, task.ad + task.adr, scope.env)
    if session.fake and dependency.skip_if_fake_run:
        return
    if not dependency.conditions.hold(scope.env) or (only_dynamic and not dependency.dynamic):
        return
    request = without_replaced_variations(session.catalogue, request_for(dependency, task, scope, phase), session.near)
    scope.deps.append(request.title())
    if not session.no_deps:
        scope.receive(run(session, request))
        current.hold_constants()


def preprocess(run: Run) -> Outcome | None:
    """Call preprocess; it may end the run here, or have another script run in this one's place.

    Of a script that is only prepared, the hook `prepare` is called, which gets what its own code runs later.
    """
    run.hold_constants()
    if run.is_fake:
        if not run.session.fake and not run.session.no_deps:
            run.hook("prepare")
        return None
    if run.session.hooks_of(run.task.script).get("cleanup"):
        run.session.at_the_end(run.task.script.title(), lambda: run.hook("cleanup"))
    result = run.hook("preprocess")
    return _run_instead(run, result) if result.get("skip") else None


def _run_instead(current: Run, result: Mapping[str, Any]) -> Outcome:
    """Run the script that `preprocess` named in place of this one; without one, skip it. Return the outcome."""
    task, scope = current.task, current.scope
    other = result.get("script")
    if not other:
        return scope.outcome(task).but(skipped=True)
    if not isinstance(other, (str, Mapping)):
        raise RecipeError(
            f"preprocess of {task.script.title()} names a script by {other!r}",
            remedy="it must be tags, or a mapping with tags",
        )
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
        scope.env.update(
            {key.replace(prefix, other): value for key, value in list(scope.env.items()) if key.startswith(prefix)}
        )
    try:
        run.native(run.task.script_name, scope.env, scope.folder)
    except CmError as error:
        _show_files(run)
        if not flag(run.task.request.inputs, "ignore_script_error") and not run.session.ignores_errors:
            raise
        run.session.tell(f"note: --ignore_script_error: continuing after: {error.what}")


def postprocess(run: Run) -> None:
    """Call postprocess, then remove what the script and the engine only needed on the way."""
    if run.is_fake:
        return
    run.hold_constants()
    run.hook("postprocess")
    if not run.session.keeps_files:
        _remove(run.scope.folder, (*ENGINE_FILES, *run.task.script.clean_files))


def post_deps(run: Run) -> None:
    """Run post_deps: not in a fake run, since they build on what the script makes."""
    if not run.is_fake:
        run_phase(run, "post_deps")


_STEPS: tuple[Callable[[Run], Outcome | None], ...] = (
    announce,
    prepare_folder,
    deps,
    preprocess,
    partial(run_phase, phase="prehook_deps"),
    native,
    partial(run_phase, phase="posthook_deps"),
    postprocess,
    post_deps,
)


# --- parts of steps --------------------------------------------------------------------------------------------------


def _remove(folder: str, names: tuple[str, ...]) -> None:
    """Remove files that a meta names. Raises RecipeError for one outside of `folder`."""
    for name in names:
        path = os.path.join(folder, name)
        # A plain name cannot lead out; to resolve a path costs a system call for each folder.
        if name != os.path.basename(name) and not _is_inside(os.path.dirname(path), folder):
            raise RecipeError(f"the meta asks to remove {name!r}", cause=f"it is not inside {folder}")
        if os.path.isfile(path):
            with translated_os_errors("remove", path):
                os.unlink(path)


def _is_inside(path: str, folder: str) -> bool:
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(folder), ""))


def _show_files(run: Run) -> None:
    """Print the files that the meta asks to see after a failure."""
    for name in run.task.script.files_on_error:
        path = os.path.join(run.scope.folder, name)
        if os.path.isfile(path):
            with open(path, errors="replace", encoding="utf-8") as file:
                run.session.tell(f"{path}:\n{file.read()}")


def check_version(task: Task, version: str) -> None:
    """Raise CmError unless a version that became known is one that was asked for."""
    if version and not task.wanted.accepts(version):
        raise CmError(
            f"{task.script.title()} has version {version}, but {task.wanted} is wanted",
            remedy="install a version that fits, or ask for another one",
        )


def _check_promises(task: Task, new_env: Env) -> None:
    """Raise RecipeError if a key of `promised_env_keys` was not set."""
    for key in task.promised_env_keys:
        if is_no(new_env.get(key, "")):
            raise RecipeError(
                f"{task.script.title()} ended without setting {key}, which its meta promises",
                remedy=f"set it in {task.script.folder}, or take it out of promised_env_keys",
            )

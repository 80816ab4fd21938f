"""A cached script: the entry that stands for its run, or the run that makes the entry."""

import os

from cm4vllm.common.errors import CmError
from cm4vllm.engine.cache.entries import Cache, Damaged, Entry, remove_entry
from cm4vllm.engine.cache.entry_key import Identity, cache_tags, identity_of
from cm4vllm.engine.format.dependency import PHASES
from cm4vllm.engine.format.documents import merge
from cm4vllm.engine.run.environment import merge_into
from cm4vllm.engine.run.execution import check_version, run_phase, run_steps
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.scope import Outcome, Scope
from cm4vllm.engine.run.script_run import Run

_VALIDATE = "validate_cache"
#: Set by public scripts whose entry is of no use without a path elsewhere.
_DEPENDENT = "CM_GET_DEPENDENT_CACHED_PATH"


def kept_outcome(cache: Cache, run: Run) -> Outcome:
    """Use the entry that fits; where none does, hold its lock, run the script and make the entry."""
    session, task = run.session, run.task
    identity = identity_of(task, run.scope, session.vault.is_secret)
    again = flag(task.request.inputs, "new", "renew")
    if not again and (entry := cache.find(identity, task.wanted)) is not None:
        try:
            return _use_entry(run, entry)
        except Damaged:
            pass  # found once more, and reported, with the lock held
    with cache.lock(identity, session.tell):
        cache.recover(identity)
        entry = cache.find(identity, task.wanted)
        if entry is not None and not again:
            try:
                return _use_entry(run, entry)
            except Damaged as damage:
                session.tell(
                    f"{task.script.title()}: its cache entry has changed since it was made ({damage}); making it again"
                )
                remove_entry(entry.folder)
                entry = None
        renews = entry is not None and flag(task.request.inputs, "renew")
        with cache.emptied_folder(entry.folder if entry and renews else cache.free_folder(identity)) as folder:
            try:
                return _make_entry(run.but(scope=run.scope.but(folder=folder)), identity, cache)
            except CmError as error:
                session.keep_logs(task.script, folder, error)
                raise


def _use_entry(run: Run, entry: Entry) -> Outcome:
    """Return the content of an entry: only dynamic dependencies run. Raises Damaged."""
    saved = entry.result()
    current = run.but(scope=run.scope.but(env=dict(run.scope.env), deps=[], folder=entry.folder))
    if os.path.isfile(os.path.join(run.task.script.folder, f"{_VALIDATE}.sh")):
        _validate(current, str(saved.get("version", "")), entry)
    run.session.tell(
        f"{run.task.script.title()} (from the cache: {entry.folder})", detail=run.task.request.is_dependency
    )
    for phase in PHASES:
        run_phase(current, phase, only_dynamic=True)
    env, state = current.scope.env, merge(current.scope.state, saved["new_state"])
    merge_into(env, saved["new_env"])
    return Outcome(
        env,
        state,
        dict(saved["new_env"]),
        saved["new_state"],
        [*saved.get("deps", []), *current.scope.deps],
        str(saved.get("version", "")),
        cached=True,
    )


def _validate(current: Run, version: str, entry: Entry) -> None:
    """Run the script's validate_cache.sh, after its dependencies; the entry is damaged when it fails or sees another
    version than the entry's.
    """
    trial = current.but(scope=Scope.of(current.task))
    trial.scope.folder = entry.folder
    trial.scope.env["CM_TMP_CURRENT_SCRIPT_PATH"] = current.task.script.folder
    run_phase(trial, "deps")
    try:
        trial.native(_VALIDATE, trial.scope.env, entry.folder)
        seen = str(trial.hook("detect_version").get("version") or "")
    except CmError as error:
        raise Damaged(f"{_VALIDATE}.sh: {error.what}") from error
    if seen and version and seen != version:
        raise Damaged(f"it has version {version}, and {_VALIDATE}.sh detects {seen}")


def _make_entry(run: Run, identity: Identity, cache: Cache) -> Outcome:
    """Run the script in the folder of its entry, that of the scope, and finish the entry when it ends well."""
    outcome, task, vault = run_steps(run), run.task, run.session.vault
    check_version(task, outcome.version)
    versions = [f"version-{version}" for version in dict.fromkeys((task.wanted.version, outcome.version)) if version]
    tags = [*cache_tags(task, outcome.env), *versions, *outcome.extra_tags, f"script-artifact-{task.script.uid}"]
    kept = {key: value for key, value in outcome.new_env.items() if not vault.is_secret(key) and not vault.holds(value)}
    for key in sorted(outcome.new_env.keys() - kept.keys()):
        run.session.tell(f"note: {key} is or contains a secret, and is not stored in the cache")
    cache.finish(
        run.scope.folder,
        identity,
        script=(task.script.alias, task.script.uid),
        asked=task.wanted.pip_text(),
        tags=[tag for tag in tags if not vault.holds(tag)],
        depends_on=str(outcome.env.get(_DEPENDENT, "")),
        result={
            "new_env": kept,
            "new_state": vault.cleaned(outcome.new_state),
            "deps": outcome.deps,
            "version": outcome.version,
        },
    )
    return outcome

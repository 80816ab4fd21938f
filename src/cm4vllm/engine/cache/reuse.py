"""The run of a cached script: an entry of the cache replaces it, or it makes the entry.

The key of a run in the cache has all dependencies that it declares, and a digest of the recipe.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import cm4vllm
from cm4vllm.common.digests import content_digest, digest_of
from cm4vllm.common.errors import CmError, RecipeError
from cm4vllm.common.secrets.secret_forms import is_secret_name
from cm4vllm.engine.cache.entries import Cache, Damaged, Entry, remove_entry
from cm4vllm.engine.format.dependency import PHASES, split_tags
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.meta_files import merge
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.run.environment import Env, merge_into, substitute
from cm4vllm.engine.run.execution import check_version, run_phase, run_steps
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.request import Task
from cm4vllm.engine.run.scope import Outcome, Scope
from cm4vllm.engine.run.script_run import Run

# Keys of a meta that change how a script is found, shown or wrapped, but not what it makes.
_DESCRIPTIVE = frozenset(
    {
        "alias",
        "uid",
        "automation_alias",
        "automation_uid",
        "tags",
        "tags_help",
        "shared_tags",
        "name",
        "category",
        "category_sort",
        "developers",
        "copyright",
        "input_description",
        "print_env_at_the_end",
        "print_files_if_script_error",
        "warnings",
        "docker",
        "docker_input_mapping",
        "gui",
        "tests",
        "sort",
        "variation_groups_order",
        "cache",
        "can_force_cache",
        "min_cm_version",
        "strict_input",
        "variations",
        "inputs",
        "inputs_of",
        "input_groups",
        "variations_of",
        "input_changes",
        "removed_inputs",
        "first_inputs",
        "examples",
        "data",
    }
)
_NO_PART_OF_A_RECIPE = frozenset({"_cm.yaml", "_cm.json", "__pycache__", "docs", "tests", "dockerfiles"})

_PACKAGE = os.path.dirname(os.path.abspath(cm4vllm.__file__))


class Identity(Value):
    """Identity of a script's run, versions aside: runs with equal identities are the same. `recipe` is a digest."""

    script: str
    recipe: str
    variations: tuple[str, ...]
    inputs: Mapping[str, Any]
    tags: tuple[str, ...]

    def key(self) -> str:
        """Return the digest of the whole key."""
        parts = [self.script, self.recipe, sorted(self.variations), dict(self.inputs), sorted(self.tags)]
        return digest_of(json.dumps(parts, sort_keys=True).encode())


def identity_of(task: Task, scope: Scope, is_secret: Callable[[str], bool] = is_secret_name) -> Identity:
    """Return the identity of this run in the cache: all declared dependencies, as they are before it runs.

    Versions are left out: entries are compared by their own. So are secrets.
    """
    bare = task.of_version(Wanted())
    if len(bare.layers) != len(task.layers):
        scope = Scope.of(task.but(layers=bare.layers))
    script = task.script
    declared = set(script.input_mapping.values())
    for layer in bare.layers:
        declared |= {*layer.env, *layer.default_env, *layer.const}
    inputs = {
        key: scope.env[key]
        for key in declared
        if key in scope.env and not is_secret(key) and not key.startswith(("CM_TMP_", "CM_VERSION"))
    }
    made_by = dict.fromkeys(module for layer in bare.layers for module in layer.made_by)
    extra = [tag for tag in cache_tags(task, scope.env) if tag not in script.tags and not tag.startswith("_")]
    return Identity(
        script.uid or script.folder,
        recipe_digest(script, task.variations.names, made_by),
        task.variations.names,
        inputs,
        tuple(extra),
    )


def cache_tags(task: Task, env: Env) -> list[str]:
    """Return the tags of an entry that are known before the run: the script's, its variations, name and extra tags."""
    tags = [*task.script.tags, *(f"_{name}" for name in task.variations.names)]
    tags += [*substitute(list(task.request.extra_cache_tags), env), *split_tags(env.get("CM_EXTRA_CACHE_TAGS"))]
    if env.get("CM_NAME"):
        tags.append(f"name-{str(env['CM_NAME']).strip().lower()}")
    for key, prefix in task.script.cache_tags_from_env:
        tags += [f"deps-{prefix}{value}" for value in split_tags(env.get(key))]
    return list(dict.fromkeys(tags))


def recipe_digest(script: ScriptMeta, variations: Collection[str], made_by: Iterable[str] = ()) -> str:
    """Return a digest of what a script does with these variations: its effective meta, the files beside it, and the
    modules of this package that make what it keeps.

    Texts for people (README, descriptions) and variations that are off do not count. Raises RecipeError when a module
    does not exist.
    """
    meta = {key: value for key, value in script.raw.items() if key not in _DESCRIPTIVE}
    meta["variations"] = {name: script.variations.get(name) for name in variations}
    parts = [json.dumps(meta, sort_keys=True, default=str)]
    parts += [
        f"{os.path.relpath(path, script.folder)}\0{content_digest(path)}"
        for path in sorted(_recipe_files(script.folder))
    ]
    parts += [f"{module}\0{_code_digest(module, script)}" for module in made_by]
    return digest_of(os.fsencode("\n".join(parts)))


def module_file(module: str) -> str:
    """Return the file of a module of this package, or of a data file as `rules/catalogue.yaml`; it may not exist."""
    if "/" in module:
        return os.path.join(_PACKAGE, *module.split("/"))
    return os.path.join(_PACKAGE, *module.removeprefix("cm4vllm.").split(".")) + ".py"


def _code_digest(module: str, script: ScriptMeta) -> str:
    """Return a digest of a module's lines; empty ones and comments do not count."""
    try:
        with open(module_file(module), "rb") as file:
            lines = [line for line in file if not line.isspace() and not line.lstrip().startswith(b"#")]
    except OSError as error:
        raise RecipeError(
            f"made_by of {script.title()} names {module}, which cannot be read", cause=str(error)
        ) from error
    return digest_of(b"".join(lines))


def _recipe_files(folder: str) -> Iterator[str]:
    """Yield the files of a script's folder that decide what it makes: no README, no docs, no bytecode."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NO_PART_OF_A_RECIPE or entry.name.endswith((".md", ".pyc")) or entry.name[0] == ".":
                continue
            if entry.is_dir():
                yield from _recipe_files(entry.path)
            elif entry.is_file():
                yield entry.path


_VALIDATE = "validate_cache"
#: Set by public scripts whose entry is of no use without a path elsewhere.
_DEPENDENT = "CM_GET_DEPENDENT_CACHED_PATH"


def kept_outcome(cache: Cache, run: Run) -> Outcome:
    """Use the entry that fits; where none does, hold its lock, run the script and make the entry."""
    session, task = run.session, run.task
    key = identity_of(task, run.scope, session.vault.is_secret).key()
    again = flag(task.request.inputs, "new", "renew")
    if not again and (entry := cache.find(key, task.wanted)) is not None:
        try:
            return _use_entry(run, entry)
        except Damaged:
            pass  # found once more, and reported, with the lock held
    with cache.lock(key, session.tell):
        cache.recover(key)
        entry = cache.find(key, task.wanted)
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
        with cache.emptied_folder(entry.folder if entry and renews else cache.free_folder(key)) as folder:
            try:
                return _make_entry(run.but(scope=run.scope.but(folder=folder)), key, cache)
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


def _make_entry(run: Run, key: str, cache: Cache) -> Outcome:
    """Run the script in the folder of its entry, that of the scope, and finish the entry when it ends well."""
    outcome, task, vault = run_steps(run), run.task, run.session.vault
    check_version(task, outcome.version)
    versions = [f"version-{version}" for version in dict.fromkeys((task.wanted.version, outcome.version)) if version]
    tags = [*cache_tags(task, outcome.env), *versions, *outcome.extra_tags, f"script-artifact-{task.script.uid}"]
    kept = {key: value for key, value in outcome.new_env.items() if not vault.is_secret(key) and not vault.holds(value)}
    for name in sorted(outcome.new_env.keys() - kept.keys()):
        run.session.tell(f"note: {name} is or contains a secret, and is not stored in the cache")
    cache.finish(
        run.scope.folder,
        key,
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

"""The dependencies of one script: which there are after all changes, and what each is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cm4vllm.common.errors import RecipeError, UsageError, nearest
from cm4vllm.engine.format.dependency import PHASES, Amendment, Dependency, amendments_of, split_tags
from cm4vllm.engine.format.documents import merged
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.meta_shapes import require_shapes
from cm4vllm.engine.format.versions import ANY, Wanted
from cm4vllm.engine.run.environment import LOCAL_KEYS, Env, as_text, matching, merge_into, substitute, unresolved
from cm4vllm.engine.run.request import Request, Task, parse_tags

if TYPE_CHECKING:
    from cm4vllm.engine.run.scope import Scope

__all__ = ["Phases", "amended", "asked_by_code", "check_names", "collect", "request_for", "update_from"]

Phases = dict[str, list[Dependency]]


def collect(layers: Iterable[Layer]) -> Phases:
    """Return the dependencies of all layers by phase.

    One that a later layer adds replaces those of earlier layers with the same names, or, where it has none, with the
    same tags and conditions. Within one layer, alternatives of the same names stand side by side.
    """
    phases: Phases = {phase: [] for phase in PHASES}
    for layer in layers:
        for phase, present in phases.items():
            earlier = list(present)
            for new in layer.deps[phase]:
                replaced = [n for n, old in enumerate(present) if old in earlier and _same(old, new)]
                if replaced:
                    present[replaced[0]] = new
                    for n in reversed(replaced[1:]):
                        del present[n]
                else:
                    present.append(new)
    return phases


def update_from(meta: Mapping[str, Any], phases: Phases) -> None:
    """Take in what a hook changed in the dependencies of i['meta']."""
    for phase, present in phases.items():
        raw = meta.get(phase)
        if isinstance(raw, list) and raw != [dependency.raw for dependency in present]:
            require_shapes("a script, as its customize.py changed it,", {phase: raw})
            present[:] = [Dependency.of(entry) for entry in raw if entry.get("tags")]


def _same(old: Dependency, new: Dependency) -> bool:
    if new.names:
        return old.names == new.names
    return not old.names and set(old.tags) == set(new.tags) and old.conditions == new.conditions


def check_names(script: ScriptMeta, phases: Phases, amendments: Sequence[Amendment]) -> None:
    """Raise UsageError when an `ad` names a dependency that this script has not."""
    names = {name for deps in phases.values() for dep in deps for name in dep.names}
    for amendment in amendments:
        if amendment.name not in names:
            raise UsageError(
                f"{script.title()} has no dependency named {amendment.name!r}",
                remedy=nearest(amendment.name, names) or "it has no named dependencies",
            )


def amended(dependency: Dependency, amendments: Iterable[Amendment], env: Mapping[str, Any]) -> Dependency:
    """Return a dependency with all changes for its names whose conditions hold, in their order."""
    for amendment in amendments:
        if amendment.name in dependency.names and amendment.conditions.hold(env):
            dependency = dependency.amended(substitute(amendment.change, env))
    return dependency


def request_for(dependency: Dependency, task: Task, scope: Scope, phase: str) -> Request:
    """Return the request of a task's dependency, given the task's environment at this moment."""
    env = scope.env
    own_env = {key: as_text(substitute(value, {**dependency.env, **env})) for key, value in dependency.env.items()}
    tags = _tags(dependency, own_env, env)
    script_tags, excluded_tags, chosen, excluded = parse_tags(substitute(tags, env))
    if dependency.inherit_variation_tags:
        inherited = task.variations.inheritable(dependency.skip_inherit_groups)
        chosen = tuple(dict.fromkeys((*chosen, *(name for name in inherited if name not in excluded))))
    child_env = _inherited(dependency, task.script, env, phase)
    merge_into(child_env, own_env)
    if not script_tags:
        raise RecipeError(
            f"a dependency of {task.script.title()} has variations and no tags", cause=", ".join(dependency.tags)
        )
    extra_cache_tags = split_tags(substitute(list(dependency.extra_cache_tags), env))
    inputs: dict[str, Any] = {"tags": ",".join(tags), "env": own_env, **substitute(dict(dependency.inputs), env)}
    if dependency.force_cache:
        inputs["force_cache"] = True
    if extra_cache_tags:
        inputs["extra_cache_tags"] = ",".join(extra_cache_tags)
    nested_adr = [inputs.pop(key, None) or {} for key in ("adr", "add_deps_recursive")]
    return Request(
        tags=script_tags,
        excluded_tags=excluded_tags,
        variations=chosen,
        excluded_variations=excluded,
        env=child_env,
        const=dict(scope.const),
        state=merged(scope.state, substitute(dict(dependency.raw.get("state") or {}), env)),
        const_state=scope.const_state,
        adr=(*task.adr, *(amendment for change in nested_adr for amendment in amendments_of(change))),
        wanted=_wanted(dependency, env),
        extra_cache_tags=extra_cache_tags,
        force_new_env_keys=dependency.force_new_env_keys,
        replacing=dependency.replacing,
        inputs=inputs,
        folder=task.request.folder,
        is_dependency=True,
    )


def asked_by_code(given: Mapping[str, Any], folder: str) -> Request:
    """Return the request of a recipe's code, changed by `adr` of the same input for its `names`."""
    rest = {key: value for key, value in given.items() if key != "names"}
    if not given.get("names"):
        return Request.of(rest, folder)
    env = rest.get("env") or {}
    entry = Dependency.of({"tags": rest.get("tags"), "names": given["names"], "env": env})
    entry = amended(entry, Request.of(rest, folder).adr, env)
    changed = {key: value for key, value in entry.raw.items() if key != "names"}
    return Request.of({**rest, **changed}, folder).but(replacing=entry.replacing)


def _tags(dependency: Dependency, own_env: Mapping[str, Any], env: Mapping[str, Any]) -> list[str]:
    """Return the tags of a dependency, including the tags that the environment adds."""
    tags = [*dependency.tags]
    for prefix, keys in dependency.update_tags_with_prefix.items():
        for key in keys:
            value = str(own_env.get(key) or env.get(key) or "").strip()
            if value:
                tags += split_tags(prefix + value)
    for key in dependency.update_tags_from_env:
        tags += split_tags(env.get(key))
    return tags


def _inherited(dependency: Dependency, script: ScriptMeta, env: Mapping[str, Any], phase: str) -> Env:
    """Return the keys of a script that its dependency gets: not the local ones, and no values that still hold `<<<`."""
    local = script.clean_env_keys_post_deps if phase == "post_deps" else (*LOCAL_KEYS, *script.local_env_keys)
    dropped = set(matching(env, local))
    forced = set(matching(env, (*dependency.force_env_keys, *(["CM_VERSION*"] if dependency.reuse_version else ()))))
    return {key: value for key, value in env.items() if key in forced or not (key in dropped or unresolved(value))}


def _wanted(dependency: Dependency, env: Mapping[str, Any]) -> Wanted:
    wanted = dependency.wanted
    return (
        wanted
        if wanted is ANY
        else wanted.but(
            **{name: substitute(getattr(wanted, name), env) for name in ("version", "minimum", "maximum", "max_usable")}
        )
    )

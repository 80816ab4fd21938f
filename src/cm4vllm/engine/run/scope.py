"""Environment, state and dependencies that the steps of one run read and change, and what the caller gets back.

Of a dependency: which there are after all changes, and what each is asked for.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cm4vllm.common.errors import RecipeError, UsageError, nearest
from cm4vllm.common.host_addresses import PROXY_VARIABLES
from cm4vllm.common.secrets.secret_forms import is_secret_name
from cm4vllm.engine.format.dependency import PHASES, Amendment, Conditions, Dependency, amendments_of, split_tags
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.meta_files import merge
from cm4vllm.engine.format.meta_shapes import require_shapes
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.run.environment import (
    LOCAL_KEYS,
    Env,
    as_text,
    compose,
    exported_keys,
    is_unresolved,
    matching,
    merge_into,
    substitute,
    substitute_all,
)
from cm4vllm.engine.run.flags import mapped_inputs
from cm4vllm.engine.run.request import Request, Task, parse_tags

Phases = dict[str, list[Dependency]]


class Outcome(Value):
    """The result of a script. `new_env` and `new_state` are the parts that its caller gets."""

    env: Env
    state: dict[str, Any]
    new_env: Env
    new_state: dict[str, Any]
    deps: list[str]
    version: str
    extra_tags: tuple[str, ...] = ()
    cached: bool = False
    skipped: bool = False

    def as_result(self) -> dict[str, Any]:
        """Return it as the dictionary that an action of cmind returns."""
        return {
            "return": 0,
            "env": self.env,
            "new_env": self.new_env,
            "state": self.state,
            "new_state": self.new_state,
            "deps": self.deps,
            **({"version": self.version} if self.version else {}),
            **({"skipped": True} if self.skipped else {}),
        }


# Of the caller's process environment, hooks see these; shell files see all of it.
_OUTSIDE = ("GH_TOKEN", *PROXY_VARIABLES, "ftp_proxy", "FTP_PROXY", "socks_proxy", "SOCKS_PROXY")


def _from_outside(task: Task) -> Env:
    """Return the variables that a script takes from the process environment: proxies, and the secrets of its meta.

    A secret that comes this way shows in no list of processes.
    """
    named = {key for key in task.script.input_mapping.values() if is_secret_name(key)}
    # A dependency gets the proxies from its parent, as that one has them.
    outside = () if task.request.is_dependency else _OUTSIDE
    return {
        key: os.environ[key] for key in (*outside, *sorted(named), *task.script.secret_env_keys) if os.environ.get(key)
    }


class Scope(Value, frozen=False):
    """The explicit state of one run: its own copies, which no other run sees.

    `const` are the keys that keep their values in this script and its dependencies; `folder` is where hooks and run.sh
    work; `deps` are the tags of the dependencies met so far.
    """

    env: Env
    const: Env
    state: dict[str, Any]
    const_state: dict[str, Any]
    phases: Phases
    folder: str
    deps: list[str]
    version: str = ""
    extra_tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: Task, holds: Callable[[Conditions, Env], bool] = Conditions.hold) -> Scope:
        """Make environment, constants, state and dependencies of a script from all its layers.

        `holds` decides about update_meta_if_env.
        """
        request = task.request
        special, mapped = mapped_inputs(task.script, request.inputs)
        caller = {**_from_outside(task), **request.env, **special, **task.wanted.environment()}
        env, const = compose(
            caller, task.layers[0], task.layers[1:], {**request.const, **mapped}, explicit=request.explicit
        )
        state: dict[str, Any] = copy.deepcopy(dict(request.state))
        const_state = dict(request.const_state)
        for layer in task.layers:
            state = merge(state, layer.state)
            const_state = merge(const_state, layer.const_state)
        for update in (update for layer in task.layers for update in layer.updates):
            if holds(update.conditions, env):
                merge_into(env, {key: value for key, value in update.env.items() if key not in const})
                state = merge(state, update.state)
        substitute_all(env)
        scope = cls(
            env,
            const,
            merge(state, const_state),
            const_state,
            _dependencies_by_phase(task.layers),
            request.folder,
            [],
            task.wanted.version,
        )
        _check_names(task.script, scope.phases, task.ad)
        return scope

    def receive(self, outcome: Outcome) -> None:
        """Merge the results that a dependency returned."""
        merge_into(self.env, outcome.new_env)
        self.state = merge(self.state, outcome.new_state)
        substitute_all(self.env)

    def outcome(self, task: Task) -> Outcome:
        """Return the keys that go back to the caller: only those that new_env_keys and new_state_keys name."""
        state_keys = [key for layer in task.layers for key in layer.new_state_keys]
        return Outcome(
            self.env,
            self.state,
            exported_keys(self.env, task.new_env_keys),
            exported_keys(self.state, state_keys),
            self.deps,
            self.version,
            self.extra_tags,
        )


def complete(scope: Scope) -> None:
    """Make constant what the hook before_deps has left of the flags: dependencies get the same values."""
    scope.const.update({key: scope.env[key] for key in scope.const if key in scope.env})


def remarks(task: Task, env: Env, is_secret: Callable[[str], bool] = is_secret_name) -> list[str]:
    """Return a line for each unknown flag, and for each --env that has no effect."""
    lines = list(task.notes)
    for key in task.request.explicit:
        given = as_text(task.request.env[key])
        if not is_secret(key) and env.get(key) != given and not is_unresolved(given):
            lines.append(
                f"note: --env.{key}={given} is overridden by {env.get(key)!r} of a variation or an input; "
                f"--const.{key}={given} would not be"
            )
    return lines


# --- dependencies ----------------------------------------------------------------------------------------------------


def _dependencies_by_phase(layers: Iterable[Layer]) -> Phases:
    """Return the dependencies of all layers by phase.

    One that a later layer adds replaces those of earlier layers with the same names, or, where it has none, with the
    same tags and conditions. Within one layer, alternatives of the same names stand side by side.
    """
    phases: Phases = {phase: [] for phase in PHASES}
    for layer in layers:
        for phase, present in phases.items():
            earlier = list(present)
            for new in layer.deps[phase]:
                replaced = [n for n, old in enumerate(present) if old in earlier and _is_same(old, new)]
                kept = [old for n, old in enumerate(present) if n not in replaced]
                kept.insert(replaced[0] if replaced else len(kept), new)
                present[:] = kept
    return phases


def update_from(meta: Mapping[str, Any], phases: Phases) -> None:
    """Apply the changes that a hook made to the dependencies in i['meta']."""
    for phase, present in phases.items():
        raw = meta.get(phase)
        if isinstance(raw, list) and raw != [dependency.raw for dependency in present]:
            require_shapes("a script, as its customize.py changed it,", {phase: raw})
            present[:] = [Dependency.of(entry) for entry in raw if entry.get("tags")]


def _is_same(old: Dependency, new: Dependency) -> bool:
    same = set(old.tags) == set(new.tags) and old.conditions == new.conditions
    return old.names == new.names and (same or bool(new.names))


def _check_names(script: ScriptMeta, phases: Phases, amendments: Sequence[Amendment]) -> None:
    """Raise UsageError when an `ad` names a dependency that this script has not."""
    names = {name for deps in phases.values() for dep in deps for name in dep.names}
    for amendment in amendments:
        if amendment.name not in names:
            raise UsageError(
                f"{script.title()} has no dependency named {amendment.name!r}",
                remedy=nearest(amendment.name, names) or "it has no named dependencies",
            )


def with_amendments(dependency: Dependency, amendments: Iterable[Amendment], env: Mapping[str, Any]) -> Dependency:
    """Return a dependency with all changes for its names whose conditions hold, in their order."""
    for amendment in amendments:
        if amendment.name in dependency.names and amendment.conditions.hold(env):
            dependency = dependency.with_change(substitute(amendment.change, env))
    return dependency


def request_for(dependency: Dependency, task: Task, scope: Scope, phase: str) -> Request:
    """Return the request of a task's dependency, given the task's environment at this moment."""
    env = scope.env
    own_env = {key: as_text(substitute(value, {**dependency.env, **env})) for key, value in dependency.env.items()}
    tags = _tags(dependency, own_env, env)
    script_tags, excluded_tags, chosen, excluded = parse_tags(substitute(tags, env))
    if dependency.inherit_variation_tags:
        inherited = task.variations.inheritable_names(dependency.skip_inherit_groups)
        chosen = tuple(dict.fromkeys((*chosen, *(name for name in inherited if name not in excluded))))
    child_env = _inherited_keys(dependency, task.script, env, phase)
    merge_into(child_env, own_env)
    if not script_tags:
        raise RecipeError(
            f"a dependency of {task.script.title()} has variations and no tags", cause=", ".join(dependency.tags)
        )
    extra_cache_tags = split_tags(substitute(list(dependency.extra_cache_tags), env))
    inputs: dict[str, Any] = {
        "tags": ",".join(tags),
        "env": own_env,
        **substitute(dict(dependency.inputs), env),
        **({"force_cache": True} if dependency.force_cache else {}),
        **({"extra_cache_tags": ",".join(extra_cache_tags)} if extra_cache_tags else {}),
    }
    nested_adr = [inputs.pop(key, None) or {} for key in ("adr", "add_deps_recursive")]
    return Request(
        tags=script_tags,
        excluded_tags=excluded_tags,
        variations=chosen,
        excluded_variations=excluded,
        env=child_env,
        const=dict(scope.const),
        state=merge(scope.state, substitute(dict(dependency.raw.get("state") or {}), env)),
        const_state=scope.const_state,
        adr=(*task.adr, *(amendment for change in nested_adr for amendment in amendments_of(change))),
        wanted=Wanted(*(substitute(limit, env) for limit in dependency.wanted.limits)),
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
    entry = with_amendments(entry, Request.of(rest, folder).adr, env)
    changed = {key: value for key, value in entry.raw.items() if key != "names"}
    return Request.of({**rest, **changed}, folder).but(replacing=entry.replacing)


def _tags(dependency: Dependency, own_env: Mapping[str, Any], env: Mapping[str, Any]) -> list[str]:
    """Return the tags of a dependency, including the tags that the environment adds."""
    tags = [*dependency.tags]
    for prefix, keys in dependency.update_tags_with_prefix.items():
        values = (str(own_env.get(key) or env.get(key) or "").strip() for key in keys)
        tags += [tag for value in values if value for tag in split_tags(prefix + value)]
    return tags + [tag for key in dependency.update_tags_from_env for tag in split_tags(env.get(key))]


def _inherited_keys(dependency: Dependency, script: ScriptMeta, env: Mapping[str, Any], phase: str) -> Env:
    """Return the keys of a script that its dependency gets: not the local ones, and no values that still hold `<<<`."""
    local = script.clean_env_keys_post_deps if phase == "post_deps" else (*LOCAL_KEYS, *script.local_env_keys)
    dropped = set(matching(env, local))
    forced = set(matching(env, (*dependency.force_env_keys, *(["CM_VERSION*"] if dependency.reuse_version else ()))))
    return {key: value for key, value in env.items() if key in forced or not (key in dropped or is_unresolved(value))}

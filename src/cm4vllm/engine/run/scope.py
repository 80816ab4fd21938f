"""Environment and state that the steps of one run read and change, and the part that the caller gets back."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

from cm4vllm.common.secret_names import is_secret_name
from cm4vllm.engine.format.conditions import Conditions
from cm4vllm.engine.format.documents import merged
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.run import dependencies
from cm4vllm.engine.run.environment import Env, as_text, compose, exported, merge_into, substitute_all, unresolved
from cm4vllm.engine.run.flags import mapped_inputs
from cm4vllm.engine.run.request import Task

__all__ = ["Outcome", "Scope", "completed", "remarks"]


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
        result: dict[str, Any] = {
            "return": 0,
            "env": self.env,
            "new_env": self.new_env,
            "state": self.state,
            "new_state": self.new_state,
            "deps": self.deps,
        }
        if self.version:
            result["version"] = self.version
        if self.skipped:
            result["skipped"] = True
        return result


# Of the caller's process environment, hooks see these; shell files see all of it.
_OUTSIDE = (
    "GH_TOKEN",
    "ftp_proxy",
    "FTP_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "socks_proxy",
    "SOCKS_PROXY",
)


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
    phases: dependencies.Phases
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
            state = merged(state, layer.state)
            const_state = merged(const_state, layer.const_state)
        for update in (update for layer in task.layers for update in layer.updates):
            if holds(update.conditions, env):
                merge_into(env, {key: value for key, value in update.env.items() if key not in const})
                state = merged(state, update.state)
        substitute_all(env)
        scope = cls(
            env,
            const,
            merged(state, const_state),
            const_state,
            dependencies.collect(task.layers),
            request.folder,
            [],
            task.wanted.version,
        )
        dependencies.check_names(task.script, scope.phases, task.ad)
        return scope

    def receive(self, outcome: Outcome) -> None:
        """Take in what a dependency handed back."""
        merge_into(self.env, outcome.new_env)
        self.state = merged(self.state, outcome.new_state)
        substitute_all(self.env)

    def outcome(self, task: Task) -> Outcome:
        """Return the keys that go back to the caller: only those that new_env_keys and new_state_keys name."""
        state_keys = [key for layer in task.layers for key in layer.new_state_keys]
        return Outcome(
            self.env,
            self.state,
            exported(self.env, task.new_env_keys),
            exported(self.state, state_keys),
            self.deps,
            self.version,
            self.extra_tags,
        )


def completed(scope: Scope) -> None:
    """Make constant what the hook before_deps has left of the flags: dependencies get the same values."""
    scope.const.update({key: scope.env[key] for key in scope.const if key in scope.env})


def remarks(task: Task, env: Env, is_secret: Callable[[str], bool] = is_secret_name) -> list[str]:
    """Return a line for each unknown flag, and for each --env that has no effect."""
    lines = list(task.notes)
    for key in task.request.explicit:
        given = as_text(task.request.env[key])
        if not is_secret(key) and env.get(key) != given and not unresolved(given):
            lines.append(
                f"note: --env.{key}={given} is overridden by {env.get(key)!r} of a variation or an input; "
                f"--const.{key}={given} would not be"
            )
    return lines

"""A script as a plan sees it: its environment holds facts where only a run could tell the value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cm4vllm.engine.format.conditions import Conditions, Truth, both
from cm4vllm.engine.format.dependency import Dependency
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.plan.run_facts import decide, facts_in, in_words, is_assured, mark_of_assured, unknown
from cm4vllm.engine.run.environment import LOCAL_KEYS, Env, exported_keys, matching, merge_into, substitute_all
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.request import Request, Task
from cm4vllm.engine.run.scope import Scope, request_for, with_amendments

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")
_WILD = re.compile(r"[*?\[]")


def vocabulary_of(script: ScriptMeta) -> frozenset[str]:
    """Return all words of a meta that could be environment keys."""
    return frozenset(_WORD.findall(repr(script.raw)))


@dataclass(frozen=True, slots=True)
class Exports:
    """Return values of a script: `known` values, keys that it may or will set, and patterns of keys that it may set."""

    known: Mapping[str, Any] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    assured: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    @classmethod
    def of_patterns(cls, patterns: Iterable[str], promised: Iterable[str] = ()) -> Exports:
        """Return the exports of code of which only the patterns are known."""
        listed, kept = list(patterns), frozenset(promised)
        return cls(
            open=frozenset(key for key in listed if not _WILD.search(key)) - kept,
            assured=kept,
            globs=tuple(key for key in listed if _WILD.search(key)),
        )


class PlannedTask:
    """A task of which nothing is run, with a scope of its own that becomes what a run's would.

    `globs` are patterns of keys that scripts before may have set by now. Raises UsageError as a task does.
    """

    def __init__(self, request: Request, script: ScriptMeta, inherited_globs: Iterable[str] = ()) -> None:
        """Prepare the plan of one request: its task and its environment as far as they are known."""
        self.vocabulary = vocabulary_of(script)
        self.globs: list[str] = []
        self.inherited_globs = list(inherited_globs)
        self.script = script
        self.request = request
        self.asked = Task.of(script, request)
        self.task = self.asked
        self.scope = self.compose_scope()

    def compose_scope(self) -> Scope:
        """Return the environment before the run; a key that only an open condition sets is unknown."""
        scope = Scope.of(self.task, lambda conditions, env: decide(conditions, env) is True)
        for update in (update for layer in self.task.layers for update in layer.updates):
            if not isinstance(decide(update.conditions, scope.env), bool):
                scope.env.update({key: unknown(key) for key in update.env if key not in scope.const})
        return scope

    @property
    def env(self) -> Env:
        """Return the environment of the script, with marks for what only the run will tell."""
        return self.scope.env

    @property
    def wanted(self) -> Wanted:
        """The requested version or range, without the default version."""
        return self.asked.wanted

    @property
    def is_kept(self) -> bool:
        """Return True if the script's result is kept in the cache."""
        return self.task.is_cached and not flag(self.request.inputs, "prepare")

    def settle_version(self) -> str:
        """Take the default version if none is asked for, apply the meta of the version, and return it."""
        task = self.task.with_default_version()
        if task is not self.task:
            self.task = task
            self.scope = self.compose_scope()
        return task.wanted.version

    @property
    def known_env(self) -> Env:
        """The keys whose values do not depend on the run."""
        return {key: value for key, value in self.env.items() if not facts_in(value)}

    def asked_of(self, dependency: Dependency, phase: str) -> Request:
        """Return the request of a dependency, given the environment as it is now."""
        return request_for(dependency, self.task, self.scope, phase)

    def added_by_facts(self, dependency: Dependency) -> frozenset[str]:
        """Return the facts that may add tags to a dependency, or may be empty and add none."""
        keys = {
            *dependency.update_tags_from_env,
            *(key for keys in dependency.update_tags_with_prefix.values() for key in keys),
        }
        return frozenset(
            key
            for key in keys
            for value in [dependency.env.get(key) or self.env.get(key)]
            if facts_in(value) and not is_assured(value)
        )

    def with_certain_changes(self, dependency: Dependency) -> tuple[Dependency, Truth]:
        """Return a dependency with the changes that are certain, and the facts that decide about others."""
        truth: Truth = True
        changes = []
        for change in self.task.ad + self.task.adr:
            if change.name not in dependency.names:
                continue
            holds = decide(change.conditions, self.env)
            if isinstance(holds, frozenset):
                truth = both(truth, holds)
            elif holds:
                changes.append(change.but(conditions=Conditions()))
        return with_amendments(dependency, changes, self.env), truth

    def origin(self, dependency: Dependency, phase: str) -> str:
        """Return the variation that brings a dependency; empty where the script itself does."""
        for variation in self.task.variations.layers:
            if any(declared is dependency for declared in variation.layer.deps[phase]):
                return in_words(variation.name)
        return ""

    @property
    def all_globs(self) -> list[str]:
        """Return the patterns of keys that may change: those of this script and of the scripts above it."""
        return list(dict.fromkeys([*self.globs, *self.inherited_globs]))

    def learn(self, words: Iterable[str]) -> None:
        """Put a fact at each of these keys that is absent but may have got a value."""
        absent = [word for word in words if word not in self.env]
        inherited = set(matching(absent, self.inherited_globs)) - set(matching(absent, LOCAL_KEYS))
        self.env.update({key: unknown(key) for key in {*matching(absent, self.globs), *inherited}})

    def take(self, exports: Exports, *, certain: bool) -> None:
        """Merge what a script returns; what may be so, but need not, becomes a fact."""
        self.globs += exports.globs
        self.env.update({key: unknown(key) for key in {*matching(self.env, exports.globs), *exports.open}})
        self.env.update({key: mark_of_assured(key) if certain else unknown(key) for key in exports.assured})
        if certain:
            merge_into(self.env, exports.known)
        else:
            self.env.update({key: unknown(key) for key, value in exports.known.items() if self.env.get(key) != value})
        self.learn(self.vocabulary)
        substitute_all(self.env)

    def blur(self) -> None:
        """Forget all values: code that has run may have changed any of them."""
        self.globs = ["*"]
        self.env.update({key: unknown(key) for key in self.env})
        self.learn(self.vocabulary)

    def exports(self, *, runs_code: bool) -> Exports:
        """Return the exports of the script once all its dependencies are taken."""
        if runs_code:
            return Exports.of_patterns(self.task.new_env_keys, self.task.promised_env_keys)
        known = exported_keys(self.env, self.task.new_env_keys)
        # Keys that a dependency may have set and that this script hands on; where both are patterns, take no chance.
        open_ = Exports.of_patterns(self.task.new_env_keys)
        return Exports(
            known=known,
            open=frozenset(matching(open_.open - known.keys(), self.all_globs)),
            globs=open_.globs if self.all_globs else (),
        )

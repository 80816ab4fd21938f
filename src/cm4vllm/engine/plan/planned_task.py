"""A script as a plan sees it, and its node in the tree: what a run would do with it and bring onto the machine for it.

Facts that only a run can give are marked text that stands where the value will be. A fact goes through substitution,
tags and lists like any other text, so that each text made from it shows its mark. An assured fact is known to be set to
something that does not say no; its value is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.units import size_text
from cm4vllm.engine.cache.entries import Entry
from cm4vllm.engine.format.dependency import Conditions, Dependency, Truth, both, matches, says_no, says_yes
from cm4vllm.engine.format.meta import Bring, ScriptMeta
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.run.environment import (
    LOCAL_KEYS,
    Env,
    exported_keys,
    matching,
    merge_into,
    substitute,
    substitute_all,
)
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.python_packages import all_listed, needs
from cm4vllm.engine.run.request import Request, Task
from cm4vllm.engine.run.scope import Scope, request_for, with_amendments

_OPEN, _CLOSE = "\u27e6", "\u27e7"
_MARK = re.compile(f"{_OPEN}[!?]([^{_CLOSE}]*){_CLOSE}")


def unknown(key: str) -> str:
    """Return the mark for a value that a run may give to `key`."""
    return f"{_OPEN}?{key}{_CLOSE}"


def mark_of_assured(key: str) -> str:
    """Return the mark for a value that a run will give to `key`."""
    return f"{_OPEN}!{key}{_CLOSE}"


def is_assured(value: Any) -> bool:
    """Return True if a value holds an assured fact, and so does not say no."""
    return f"{_OPEN}!" in str(value)


def facts_in(value: Any) -> frozenset[str]:
    """Return the keys of all facts in a text, or in the texts of a list or mapping."""
    if isinstance(value, str):
        return frozenset(_MARK.findall(value)) if _OPEN in value else frozenset()
    if isinstance(value, Mapping):
        return facts_in([*value.keys(), *value.values()])
    if isinstance(value, Iterable):
        return frozenset(key for item in value for key in facts_in(item))
    return frozenset()


def in_words(text: str) -> str:
    """Return a text in which `<KEY>` stands for each fact."""
    return _MARK.sub(r"<\1>", text)


def decide(conditions: Conditions, env: Mapping[str, Any]) -> Truth:
    """Return True or False for an entry that takes part under `env` or not, else the facts on which it depends."""
    return conditions.decide(partial(_matches, env))


def _matches(env: Mapping[str, Any], key: str, values: frozenset[str], missing_is_no: bool) -> Truth:
    """Return True or False for a key that has one of the values or not, else the facts on which it depends."""
    facts = facts_in(env.get(key))
    if not facts:
        return matches(env, key, values, missing_is_no)
    is_decided = is_assured(env[key]) and (says_yes(values) or says_no(values))
    return says_yes(values) if is_decided else facts


_WILD = re.compile(r"[*?\[]")


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
        self.vocabulary = script.vocabulary
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
        """Mark each of these keys as unknown that is absent but may have been set."""
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
        """Mark all values as unknown: code that has run may have changed any of them."""
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


class Status(StrEnum):
    """The action of a run for a script."""

    CACHED = "cached"
    REUSED = "made above"
    MAKE = "to make"
    RUN = "to run"
    OPEN = "open"
    FAILS = "fails"


#: How something is brought that is as large on the network as on the disk.
_DOWNLOAD = "download"


@dataclass(frozen=True, slots=True)
class Brought:
    """One thing that a run would download, install or make. The bytes are 0 where they are not known."""

    how: str
    what: str
    disk_bytes: int
    measured: str
    download_bytes: int = 0

    def __str__(self) -> str:
        size = f"{size_text(self.disk_bytes)} on disk" if self.disk_bytes else "size not known in advance"
        if self.download_bytes:
            size = f"{size_text(self.download_bytes)} to download, {size}"
        return f"{self.how} {self.what} ({size}{f', {self.measured}' if self.measured else ''})"

    @property
    def transfer_bytes(self) -> int:
        """The bytes that go over the network, 0 where they are not known; a download takes as many as on the disk."""
        return self.download_bytes or (self.disk_bytes if self.how == _DOWNLOAD else 0)


@dataclass(slots=True, kw_only=True)
class Node:
    """One script of the tree.

    `why` is the phase of `parent` that asks for it, or "step" where the code of `parent` runs it; `name` and `data` are
    that code's for it. `env` is what the asking entry sets, `added_by` the variation that brings the entry, `only_if`
    what decides whether it takes part at all, `open_facts` what decides which script it is or which cache entry fits.
    `takes` says in words how long the code of the script takes, empty where it does not know.
    """

    tags: str
    why: str
    parent: str = ""
    name: str = ""
    data: Any = None
    names: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    added_by: str = ""
    only_if: tuple[str, ...] = ()
    status: Status = Status.OPEN
    script: ScriptMeta | None = None
    variations: tuple[str, ...] = ()
    asked: str = ""
    version: str = ""
    entry: Entry | None = None
    open_facts: tuple[str, ...] = ()
    brings: tuple[Brought, ...] = ()
    notes: list[str] = field(default_factory=list)
    takes: str = ""
    error: CmError | None = None
    children: list[Node] = field(default_factory=list)

    def walk(self, certain: bool = True) -> Iterator[tuple[Node, bool]]:
        """Yield this node and all below it, each with whether it is certain to take part."""
        certain = certain and not self.only_if
        yield self, certain
        for child in self.children:
            yield from child.walk(certain and self.status is not Status.OPEN)

    def failure(self) -> CmError | None:
        """Return the first error that the run is certain to meet."""
        return next((node.error for node, certain in self.walk() if certain and node.error is not None), None)


def brought_by(
    script: ScriptMeta,
    brings: Iterable[Bring],
    wanted: Wanted,
    missing: Callable[[Path], list[str]],
    env: Mapping[str, Any],
) -> tuple[Brought, ...]:
    """Return the things that a run of the script would bring; none for Python packages that are installed already.

    `missing` gives the requirements of a file that the running Python does not fulfil. `env` is the environment of the
    script as far as it is known.
    """
    brought = (_brought(script, bring, wanted, missing) for bring in brings if bring.conditions.hold(env))
    return tuple(replace(thing, what=in_words(substitute(thing.what, env))) for thing in brought if thing)


def _brought(script: ScriptMeta, bring: Bring, wanted: Wanted, missing: Callable[[Path], list[str]]) -> Brought | None:
    """Return what an entry of `brings` brings here, None where nothing is missing."""
    title, size = bring.what, bring.disk_bytes
    if bring.package:
        condition = wanted.pip_text()
        if bring.shared and not needs(bring.package, condition):
            return None
        title = f"{title or 'the package'} {bring.package}{condition}"
    elif bring.requirements:
        path = (script.path / bring.requirements).resolve()
        packages = missing(path) if bring.shared else all_listed(path)
        if not packages:
            return None
        title = f"{title}: {len(packages)} package{'s' if len(packages) > 1 else ''} of {path.name}"
        if len(packages) < len(all_listed(path)):  # the sizes are those of all
            return Brought(bring.how, title, 0, "")
    return Brought(bring.how, title, size, bring.measured, bring.download_bytes)
